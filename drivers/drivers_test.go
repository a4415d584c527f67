package drivers_test

import (
	"net/http"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A transport stands for the network, and its token for that of the host.
func TestAccess(t *testing.T) {
	site, host := &model.Site{Name: "home"}, &model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	_, err := drivers.Access{}.Open(engine.Desired{Site: site}, host)
	require.ErrorContains(t, err, "no API token for host father")

	a := drivers.Access{Owner: "cli:me@here", Files: fstest.MapFS{}, Transport: func(s *model.Site, h *model.Host) (http.RoundTripper, string) {
		require.Same(t, site, s)
		return http.DefaultTransport, "root@pam!sim=" + h.Name
	}}
	d, err := a.Open(engine.Desired{Site: site}, host)
	require.NoError(t, err)
	require.NotNil(t, d)
	cfg := a.Proxmox(site, host)
	require.Equal(t, "cli:me@here", cfg.Owner)
	require.Equal(t, "root@pam!sim=father", cfg.Token)
	require.Equal(t, "father", drivers.Access{}.Proxmox(site, host).Owner)
	require.NotEmpty(t, drivers.Kinds())

	require.Nil(t, drivers.Kinds().Get("guest"), "no block declares it")
	require.Nil(t, a.Kinds().Get("guest"), "nobody answers in a simulator")
	require.NotNil(t, drivers.Access{}.Kinds().Get("guest").Inside)
}
