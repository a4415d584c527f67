package proxmox_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
)

// What PVE reports of containers has two forms.
func TestAddressesOfAContainer(t *testing.T) {
	for _, body := range []string{
		`{"data":[{"name":"lo","hwaddr":"00:00:00:00:00:00","inet":"127.0.0.1/8"},{"name":"eth0","hwaddr":"bc:24:11:00:00:01","inet":"10.0.12.7/24","inet6":"fe80::1/64"}]}`,
		`{"data":[{"name":"eth0","hwaddr":"bc:24:11:00:00:01","inet":"10.0.12.7/24","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.0.12.7","ip-address-type":"inet","prefix":"24"}]}]}`,
	} {
		seen, err := proxmox.ContainerInterfaces(t.Context(), roundTrip(func(r *http.Request) (*http.Response, error) {
			require.Equal(t, "/api2/json/nodes/father/lxc/200/interfaces", r.URL.Path)
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
		}))
		require.NoError(t, err)
		card := proxmox.CardOf("net0", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,gw=10.0.12.1")
		at, ok := health.Choose([]health.NIC{card}, seen, nil, "its host")
		require.True(t, ok)
		require.Equal(t, "10.0.12.7 on net0 by its host", at.Why)
	}
	static := proxmox.CardOf("net0", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=10.0.12.9/24,ip6=2001:db8::9/64")
	at, ok := health.Declared([]health.NIC{static})
	require.True(t, ok)
	require.Equal(t, "10.0.12.9", at.IP.String())
}

// The API runs nothing in containers, and is not asked to.
func TestContainerHasNoAgent(t *testing.T) {
	m := proxmox.Container(roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("a request")
		return nil, io.EOF
	}))
	for _, err := range []error{m.Ping(t.Context()), insideSecond(m.Run(t.Context(), guest.Command{Args: []string{"true"}}))} {
		require.EqualError(t, err, "CT 200 has no guest agent, since it is a container: the API runs nothing in it")
		drivertest.Hopeless(t, err, true)
	}
}

func insideSecond(_ guest.Output, err error) error { return err }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
