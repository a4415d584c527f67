package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestElsewhere: what reaches out of the host.
func TestElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const pull = "/nodes/father/storage/local/oci-registry-pull"
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.steps(
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "OK"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine"}, "500 refusing to override existing file 'nginx_alpine.tar'"},
			step{"POST", pull, form{"reference": "docker.io/library/nginx:alpine", "filename": "web.tar"}, "OK"},
			step{"POST", "/nodes/father/storage/local-lvm/oci-registry-pull", form{"reference": "docker.io/library/nginx:alpine"}, "500 can't upload to storage type 'lvmthin', not a file based storage!"},
		)
		var names []string
		for _, v := range c.list("/nodes/father/storage/local/content?content=vztmpl") {
			names = append(names, fmt.Sprint(v["volid"]))
		}
		require.Equal(t, []string{"local:vztmpl/nginx_alpine.tar", "local:vztmpl/web.tar.tar"}, names)
		shown := func(c *client) []any {
			entry := c.object("/nodes/father/subscription")
			return []any{entry["status"], entry["key"], entry["level"], entry["serverid"] != nil, entry["message"]}
		}
		c.ok("POST", "/access/users", form{"userid": "guest@pve"})
		token, _ := c.ok("POST", "/access/users/guest@pve/token/look", nil).(map[string]any)
		nobody := c.as(fmt.Sprint("guest@pve!look=", token["value"]))
		require.Equal(t, []any{"notfound", nil, nil, true, "There is no subscription key"}, shown(c))
		require.Equal(t, []any{"notfound", nil, nil, false, "There is no subscription key"}, shown(nobody))
	})
}
