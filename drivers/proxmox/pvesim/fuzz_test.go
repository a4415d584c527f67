package pvesim_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// FuzzRequests sends requests made of parts of the API to a host with a VM. It
// must never panic, and always answer: a good status with JSON, or a failure
// with a reason on one line.
func FuzzRequests(f *testing.F) {
	methods := pveapi.Methods()
	f.Add(uint16(0), "father", "100", "memory=64&scsi0=local-lvm:1", "", false)
	f.Add(uint16(100), "mother", "999", "net0=virtio,bridge=vmbr0&boot=order=scsi0", "delete=scsi0", true)
	f.Add(uint16(250), "father", "100", `{"scsi0":"local-lvm:0,import-from=local:import/d.qcow2","description":["a"]}`, "revert=memory", true)
	f.Add(uint16(300), "father", "local-lvm:vm-100-disk-0", "content=images&size=1G&filename=vm-100-disk-9", "vmid=100", false)
	f.Fuzz(func(t *testing.T, which uint16, node, id, body, query string, running bool) {
		if !utf8.ValidString(query + body) {
			return
		}
		m := methods[int(which)%len(methods)]
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pvesim.Config{Nodes: []string{"mother"}, Guests: 2, Workers: 1})
			c.done("POST", "/nodes/father/qemu", form{"vmid": "200", "scsi0": "local-lvm:1", "ide2": "none,media=cdrom", "net0": "virtio,bridge=vmbr0"})
			if running {
				c.h.Edit(func(e *pvesim.Edit) { e.Start(200) })
			}
			path := strings.NewReplacer("{node}", url.PathEscape(node), "{vmid}", "200", "{storage}", "local-lvm").Replace(m.Path)
			for strings.Contains(path, "{") {
				from, to := strings.Index(path, "{"), strings.Index(path, "}")
				path = path[:from] + url.PathEscape(id) + path[to+1:]
			}
			r, err := http.NewRequest(m.Verb, "https://pve/api2/json"+path, nil)
			require.NoError(t, err)
			if m.Verb == http.MethodPost || m.Verb == http.MethodPut {
				r, err = http.NewRequest(m.Verb, "https://pve/api2/json"+path, strings.NewReader(body))
				require.NoError(t, err)
				if strings.HasPrefix(body, "{") {
					r.Header.Set("Content-Type", "application/json")
				}
			}
			r.URL.RawQuery = query
			r.Header.Set("Authorization", "PVEAPIToken="+c.token)
			response, err := c.h.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.NotContains(t, response.Status, "\n")
			if response.StatusCode == http.StatusOK {
				require.NotEmpty(t, response.Header.Get("Content-Type"))
			}
			require.GreaterOrEqual(t, response.StatusCode, 200)
			c.h.Snapshot()
		})
	})
}
