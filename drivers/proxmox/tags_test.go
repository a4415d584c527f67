package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// inPool runs a story with a token that has its privileges on guests through a pool
// alone. refused decides which requests of the story PVE answers with an error.
func inPool(t *testing.T, version string, refused func(*http.Request) bool, story func(t *testing.T, w *world)) {
	t.Helper()
	ready := false
	c := pve.Config{Version: version, Token: "ops@pve!agent=secret", TaskTime: time.Second, Fault: func(r *http.Request) (int, bool) {
		if ready && refused != nil && refused(r) {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}}
	inTime(t, c, func(t *testing.T, w *world) {
		w.Root(http.MethodPost, "/pools", url.Values{"poolid": {"ours"}})
		for _, path := range []string{"/pool/ours", "/storage", "/sdn/zones", "/nodes"} {
			w.Root(http.MethodPut, "/access/acl", url.Values{"path": {path}, "users": {"ops@pve"}, "roles": {"Administrator"}})
		}
		w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Administrator"}, "delete": {"1"}})
		w.Site.Hosts["father"].Pool = "ours"
		w.Reopen()
		ready = true
		story(t, w)
	})
}

// TestCreateWithPrivilegesThroughAPool: PVE checks the right to set tags before a new
// guest is in its pool, so they follow when it is. Every kind of guest gets them.
func TestCreateWithPrivilegesThroughAPool(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			inPool(t, version, nil, func(t *testing.T, w *world) {
				w.declare("tmpl", &guest.Template{Image: "debian-12", VMID: 9100})
				w.Node("one", func(v *guest.VM) { v.Tags = []string{"web"} })
				w.Node("two", func(v *guest.VM) { v.Tags, v.Disks = []string{"web"}, []guest.Disk{{Name: "data", Size: 2}} })
				w.Node("copy", func(v *guest.VM) { v.Tags, v.Template = []string{"web"}, "tmpl" })
				w.ct("box", func(c *guest.CT) { c.Tags = []string{"web"} })
				w.ct("boxes", func(c *guest.CT) {
					c.Tags, c.Disks = []string{"web"}, []guest.CTDisk{{Name: "data", Size: 2, Path: "/srv"}}
				})
				w.Apply()
				w.Converged()
				guests := w.Host.Snapshot().Guests
				require.Len(t, guests, 6)
				for _, g := range guests {
					require.Equal(t, map[bool]string{true: "homestak", false: "homestak;web"}[g.VMID == 9100], g.Config["tags"], "%d", g.VMID)
					require.Equal(t, g.VMID != 9100, g.Running)
				}
			})
		})
	}
}

// TestTagsOfACreateCostOneRequest at most, and none where the token has its privileges
// elsewhere: then they are in the request that creates the guest.
func TestTagsOfACreateCostOneRequest(t *testing.T) {
	count := func(pool string, disks ...guest.Disk) (puts, all int) {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			if pool != "" {
				w.Root(http.MethodPost, "/pools", url.Values{"poolid": {pool}})
				w.Site.Hosts["father"].Pool = pool
				w.Reopen()
			}
			w.Node("first", nil) // with which the image is downloaded
			w.Apply()
			w.Node("web-1", func(v *guest.VM) { v.Disks = disks })
			p := w.Plan()
			before := w.Host.Snapshot().Requests
			require.Empty(t, w.Run(p))
			for call, n := range w.Host.Snapshot().Requests {
				all += n - before[call]
				if strings.HasPrefix(call, "PUT ") && strings.HasSuffix(call, "/config") {
					puts += n - before[call]
				}
			}
		})
		return puts, all
	}
	puts, all := count("")
	pooledPuts, pooled := count("ours")
	require.Equal(t, []int{0, 1}, []int{puts, pooledPuts})
	require.LessOrEqual(t, pooled, all+2, "the tags, and a look before them")
	puts, all = count("", guest.Disk{Name: "data", Size: 2})
	pooledPuts, pooled = count("ours", guest.Disk{Name: "data", Size: 2})
	require.Equal(t, []int{1, 1}, []int{puts, pooledPuts}, "the volumes are written down anyway")
	require.Equal(t, all, pooled)
}

// TestCrashBeforeTheTags: the guest is found by its name, or by its VMID where its node
// has left the files meanwhile, and is what its ownership tag says.
func TestCrashBeforeTheTags(t *testing.T) {
	for _, version := range versions {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s leaves %v", version, leaves), func(t *testing.T) {
				down := true
				inPool(t, version, func(r *http.Request) bool {
					return down && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/config")
				}, func(t *testing.T, w *world) {
					w.Node("web-1", nil)
					w.ct("box", nil)
					failed := w.Run(w.Plan())
					require.Len(t, failed, 2)
					require.Len(t, w.Host.Snapshot().Guests, 2)
					for _, g := range w.Host.Snapshot().Guests {
						require.Empty(t, g.Config["tags"])
					}
					down = false
					w.Reopen()
					time.Sleep(time.Minute)
					if leaves {
						w.Drop("web-1")
						w.Drop("box")
						w.Node("other", nil)
					}
					p := w.Plan()
					for _, s := range p.Steps {
						if !leaves {
							require.ElementsMatch(t, []string{"power", "tags"}, proxmoxtest.Paths(s))
						}
					}
					require.Empty(t, w.Run(p))
					w.Converged()
					require.Len(t, w.Host.Snapshot().Guests, map[bool]int{false: 2, true: 1}[leaves])
					for _, g := range w.Host.Snapshot().Guests {
						require.Equal(t, "homestak", g.Config["tags"])
						require.True(t, g.Running)
					}
				})
			})
		}
	}
}

// TestTagsThatPVEWouldChange are found where they are declared, and written as PVE keeps
// them; whatever a host keeps, there is nothing left to do.
func TestTagsThatPVEWouldChange(t *testing.T) {
	for _, version := range versions {
		for _, style := range []string{"", "case-sensitive=1", "ordering=config", "case-sensitive=1,ordering=config"} {
			t.Run(version+" "+style, func(t *testing.T) {
				inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
					if style != "" {
						w.Root(http.MethodPut, "/cluster/options", url.Values{"tag-style": {style}})
					}
					w.Node("web-1", func(v *guest.VM) { v.Tags = []string{"zeta", "Prod", "web", "web"} })
					w.ct("box", func(c *guest.CT) { c.Tags = []string{"zeta", "Prod", "prod"} })
					_, found := w.Site.Want("father")
					var said []string
					for _, f := range found {
						require.Equal(t, diag.Warning, f.Severity)
						said = append(said, f.Summary)
					}
					slices.Sort(said)
					require.Equal(t, []string{`tag "Prod" is kept as "prod"`, `tag "Prod" is kept as "prod"`, `tag "prod" is there twice`, `tag "web" is there twice`}, said)
					w.Apply()
					w.Converged()
					for _, g := range w.Host.Snapshot().Guests {
						require.Equal(t, strings.Fields(map[string]string{"qemu": "homestak prod web zeta", "lxc": "homestak prod zeta"}[g.Kind]), strings.Split(g.Config["tags"], ";"))
					}
					w.VM("web-1").Tags = []string{"Other"}
					require.Equal(t, []string{"tags"}, proxmoxtest.Paths(w.Apply().Steps[0]))
					w.Converged()
					id := w.Host.Snapshot().Guests[0].VMID
					was := w.Guest(id).Config["tags"]
					w.Host.Edit(func(e *pve.Edit) { e.Set(id, "tags", strings.ToUpper(was)) }) // as a create on 8.4 left it
					w.Converged()
				})
			})
		}
	}
}

// TestSimulatedHostRefusesTagsOfANewGuest: without the pool's help, of containers always
// and of VMs on 9.2.
func TestSimulatedHostRefusesTagsOfANewGuest(t *testing.T) {
	for _, version := range []string{"8.4", "9.1", "9.2"} {
		inPool(t, version, nil, func(t *testing.T, w *world) {
			post := func(kind string, p map[string]any) error {
				p["pool"], p["tags"] = "ours", "B;a;b"
				upid, err := w.Driver.Post(t.Context(), "/nodes/father/"+kind, p)
				if err != nil {
					return err
				}
				return w.Driver.WaitTask(t.Context(), upid)
			}
			err := post("qemu", map[string]any{"vmid": 100, "scsi0": "local-lvm:1"})
			if version == "9.2" {
				require.ErrorContains(t, err, "unable to create VM 100 - 403 Permission check failed (/vms/100, VM.Config.Options)")
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Empty(t, w.Host.Snapshot().Volumes["local-lvm"])
			} else {
				require.NoError(t, err)
				require.Equal(t, "B;a;b", w.Guest(100).Config["tags"], "as it was sent")
			}
			err = post("lxc", map[string]any{"vmid": 101, "ostemplate": "local:vztmpl/none.tar.zst", "rootfs": "local-lvm:1"})
			require.ErrorContains(t, err, "Permission check failed (/vms/101, VM.Config.Options)")
		})
	}
}
