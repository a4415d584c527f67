package children_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/children"
)

// Nodes reach the server of their host at the address of the host that they know, and never at one that
// means themselves.
func TestURL(t *testing.T) {
	listen := &net.TCPAddr{IP: net.IPv6unspecified, Port: 44443}
	for _, c := range []struct {
		site, api, ssh, want string
	}{
		{"", "https://192.0.2.10:8006", "", "https://192.0.2.10:44443"},
		{"", "https://father.home.example:8006", "", "https://father.home.example:44443"},
		{"", "https://[2001:db8::1]:8006", "", "https://[2001:db8::1]:44443"},
		{"", "https://127.0.0.1:8006", "192.0.2.10", "https://192.0.2.10:44443"},
		{"https://specs.example", "https://127.0.0.1:8006", "", "https://specs.example"},
		{"", "https://127.0.0.1:8006", "", ""},
		{"", "https://localhost:8006", "", ""},
		{"", "https://[::1]:8006", "", ""},
		{"", "https://192.0.2.10:8006", "0.0.0.0", ""},
	} {
		h := &model.Host{Name: "father", API: c.api}
		if c.ssh != "" {
			h.SSH = &model.HostSSH{Address: c.ssh}
		}
		url, err := children.URL(&model.Site{ServerURL: c.site}, h, listen)
		if c.want == "" {
			require.ErrorContains(t, err, "set address in ssh of host father", c.api)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, url)
	}
}
