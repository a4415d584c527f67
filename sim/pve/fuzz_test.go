package pve_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
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
	f.Add(uint16(140), "father", "one", "target=mother&online=1&newid=400&hostname=x&size=%2B1G&disk=mp0", "", true)
	f.Add(uint16(180), "father", "one", "vmid=400&ostemplate=local:vztmpl/"+debianTemplate+"&storage=local-lvm&rootfs=1&snapname=two&mp1=local-lvm:1,mp=/x", "force=1&purge=1", false)
	f.Fuzz(func(t *testing.T, which uint16, node, id, body, query string, running bool) {
		if !utf8.ValidString(query + body) {
			return
		}
		m := methods[int(which)%len(methods)]
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Nodes: []string{"mother"}, Guests: 2, Workers: 1})
			c.done("POST", "/nodes/father/qemu", form{"vmid": "200", "scsi0": "local-lvm:1", "ide2": "none,media=cdrom", "net0": "virtio,bridge=vmbr0"})
			if running {
				c.h.Edit(func(e *pve.Edit) { e.Start(200) })
			}
			c.ct("300", form{"mp0": "local-lvm:1,mp=/srv"})
			c.done("POST", vmURL("200", "/snapshot"), form{"snapname": "one"})
			c.done("POST", "/nodes/father/vzdump", form{"vmid": "300", "storage": "local"})
			c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:200"})
			c.ok("POST", vmURL("200", "/firewall/rules"), form{"type": "in", "action": "DROP"})
			vmid := "200"
			if strings.Contains(m.Path, "/lxc/") {
				vmid = "300"
			}
			path := strings.NewReplacer("{node}", url.PathEscape(node), "{vmid}", vmid, "{storage}", "local-lvm", "{snapname}", "one",
				"{sid}", "vm:200", "{pos}", "0").Replace(m.Path)
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
			time.Sleep(time.Minute) // What it started comes to its end.
			c.list("/cluster/resources")
		})
	})
}
