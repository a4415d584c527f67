package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// foundIn are the findings of a plan as lines: where, how bad, what.
func foundIn(p *plan.Plan) string {
	var out []string
	for _, f := range p.Findings {
		out = append(out, fmt.Sprintf("%d %s %s | %s", f.At.Start.Line, f.Severity, f.Summary, f.Detail))
	}
	return strings.Join(out, "\n")
}

func (w *world) at(addr string, line int, path string) {
	for _, n := range w.Site.Manifests["web"].Nodes {
		if n.Resource.Addr.String() == addr {
			n.Resource.Ranges = append(n.Resource.Ranges, model.AttrRange{Path: path, At: diag.Range{File: "web.hcl", Start: diag.Pos{Line: line, Column: 1}}})
		}
	}
}

// TestThePlanReportsWhatTheHostLacks before anything is made of it, and makes what does
// not need it.
func TestThePlanReportsWhatTheHostLacks(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(*world)
		want  []string
		steps []string
	}{
		"a storage that is not there": {
			func(w *world) {
				w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5, Storage: "local-lmv"}} })
				w.at("vm.db", 7, "disk.data.storage")
			},
			[]string{`7 error vm.db is not created: there is no storage "local-lmv" on node father | none of that name is switched on there (did you mean "local-lvm"?)`, "pvesm status"},
			[]string{"image.debian-12"},
		},
		"one that does not take disks, said once for all at the host": {
			func(w *world) {
				w.Site.Hosts["father"].Storage = &model.Storage{Disks: "local"}
				w.Site.Hosts["father"].At = diag.Range{File: "host.hcl", Start: diag.Pos{Line: 3, Column: 1}}
				for i := range 5 {
					w.Node(fmt.Sprintf("web-%d", i+1), nil)
				}
			},
			[]string{`3 error vm.web-1, vm.web-2 and 3 more are not created: storage "local" on node father does not take disks of VMs (images) |`, "pvesm set local --content", "such as local-lvm"},
			[]string{"image.debian-12"},
		},
		"one that does not take container templates": {
			func(w *world) {
				w.ct("cache", nil)
				w.Site.Objects[model.Address{Kind: "template", Name: "debian-ct"}].Spec.(*guest.Template).Storage = "local-lvm"
			},
			[]string{`error template.debian-ct is not created: storage "local-lvm" on node father does not take container templates (vztmpl)`, "ct.cache is not created: it needs template.debian-ct"},
			nil,
		},
		"a storage of images that is not there is no unknown": {
			func(w *world) {
				w.Node("db", nil)
				w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image).Storage = "nas"
			},
			[]string{`error image.debian-12 is not created: there is no storage "nas" on node father | none of that name is switched on there (known: local)`, "vm.db is not created: it needs image.debian-12"},
			nil,
		},
		"a bridge that is not there": {
			func(w *world) {
				w.Node("db", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", Bridge: "vmbr7"}} })
				w.at("vm.db", 9, "nic.lan.bridge")
			},
			[]string{`9 error vm.db is not created: node father lists no bridge "vmbr7" | correct the name (did you mean "vmbr0"?)`},
			[]string{"image.debian-12"},
		},
		"a MAC address of a guest that runs": {
			func(w *world) {
				w.undeclaredNIC("virtio=BC:24:11:00:00:07,bridge=vmbr0", true)
				w.Node("db", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", MAC: "bc:24:11:00:00:07"}} })
				w.at("vm.db", 9, "nic.lan.mac")
			},
			[]string{`9 error vm.db is not created: the MAC address of nic.lan is that of net0 of VM 500 "old", which is unmanaged |`, "stop that first"},
			[]string{"image.debian-12"},
		},
		"one of a guest that runs, for one that shall not": {
			func(w *world) {
				w.undeclaredNIC("virtio=BC:24:11:00:00:07,bridge=vmbr0", true)
				w.Node("db", func(v *guest.VM) {
					v.Power, v.NICs = "stopped", []guest.NIC{{Name: "lan", MAC: "bc:24:11:00:00:07"}}
				})
			},
			[]string{`warning vm.db: the MAC address of nic.lan is that of net0 of VM 500 "old", which is unmanaged |`, "this one shall not run now"},
			[]string{"image.debian-12", "vm.db"},
		},
		"one of a guest that is stopped": {
			func(w *world) {
				w.undeclaredNIC("virtio=BC:24:11:00:00:07,bridge=vmbr0", false)
				w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", MAC: "bc:24:11:00:00:07"}} })
			},
			[]string{`warning ct.cache: the MAC address of nic.lan is that of net0 of VM 500 "old", which is unmanaged |`, "stopped now"},
			[]string{"ct.cache", "template.debian-ct"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				c.edit(w)
				p := w.Plan()
				for _, text := range c.want {
					require.Contains(t, foundIn(p), text)
				}
				var steps []string
				for _, s := range p.Steps {
					steps = append(steps, s.Address.String())
				}
				require.ElementsMatch(t, c.steps, steps, foundIn(p))
				require.Empty(t, p.Unknown)
			})
		})
	}
}

func (w *world) undeclaredNIC(card string, running bool) {
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 500, Kind: "qemu", Running: running, Config: map[string]string{"name": "old", "net0": card}})
	})
}

// TestAnEditIsHeldAgainstTheHost as a creation is, and a guest that is as wanted is
// not asked about: what it stands on may have gone since.
func TestAnEditIsHeldAgainstTheHost(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Node("web", nil)
		w.Apply()
		before := w.Host.Snapshot().Requests
		w.Converged()
		for call, n := range w.Host.Snapshot().Requests {
			if strings.Contains(call, "/network") || strings.HasSuffix(call, "/storage") || strings.Contains(call, "permissions") && n-before[call] > 1 {
				require.Equal(t, before[call], n, call)
			}
		}
		w.VM("db").Disks = []guest.Disk{{Name: "root", Storage: "local"}}
		w.VM("web").NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", Bridge: "vmbr1"}}
		p := w.Plan()
		require.Contains(t, foundIn(p), `error vm.db is not changed: storage "local" on node father does not take disks of VMs`)
		require.Contains(t, foundIn(p), `error vm.web is not changed: node father lists no bridge "vmbr1"`)
		require.Empty(t, p.Steps)
		w.VM("db").Disks, w.VM("web").NICs = nil, nil
		w.Converged()
	})
}

// A card is not made on a bridge that the node does not list. A guest that is plugged into one may start: it may be made by other
// means than PVE's. Where the list is not shown, the step fails.
func TestN15ABridgeThatIsNotThere(t *testing.T) {
	lan := func(w *world) {
		w.Node("db", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", Bridge: "vmbr7"}} })
	}
	t.Run("created, changed", func(t *testing.T) {
		inTime(t, pve.Config{}, func(t *testing.T, w *world) {
			lan(w)
			require.Contains(t, foundIn(w.Plan()), `error vm.db is not created: node father lists no bridge "vmbr7" | correct the name (did you mean "vmbr0"?)`)
			w.VM("db").NICs[0].Bridge = "vmbr0"
			w.Apply()
			w.VM("db").NICs[0].Bridge = "vmbr7"
			p := w.Plan()
			require.Contains(t, foundIn(p), `error vm.db is not changed: node father lists no bridge "vmbr7"`)
			require.Empty(t, p.Steps)
		})
	})
	t.Run("off", func(t *testing.T) {
		inTime(t, pve.Config{Bridges: []string{"vmbr0", "vmbr7"}}, func(t *testing.T, w *world) {
			lan(w)
			w.Apply()
			w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
			w.Root(http.MethodDelete, "/nodes/father/network/vmbr7", nil)
			w.Root(http.MethodPut, "/nodes/father/network", nil)
			p := w.Plan()
			require.Contains(t, foundIn(p), `warning vm.db: node father lists no bridge "vmbr7", without which it does not start`)
			require.Len(t, p.Steps, 1)
		})
	})
	t.Run("not shown", func(t *testing.T) {
		fault := pve.Faults(pve.Fault{Method: "GET", Pattern: "/nodes/father/network", Status: 403})
		inTime(t, pve.Config{Version: "9.2", Fault: fault}, func(t *testing.T, w *world) {
			lan(w)
			p := w.Plan()
			require.NotContains(t, foundIn(p), "vmbr7")
			failed := w.Run(p)
			require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "db"}], "bridge 'vmbr7' does not exist")
		})
	})
}

// TestUnseenIsNotMissing: where there is no answer, and no right.
func TestUnseenIsNotMissing(t *testing.T) {
	lacking := func(w *world) {
		w.Node("db", func(v *guest.VM) {
			v.Disks = []guest.Disk{{Name: "data", Size: 5, Storage: "nowhere"}}
			v.NICs = []guest.NIC{{Name: "lan", Bridge: "vmbr7"}}
		})
	}
	for _, c := range []struct {
		path   string
		nth    int
		silent string
	}{
		{"/nodes/father/network", 0, "bridge"},
		{"/nodes/father/storage", 0, "nowhere"},
		{"/access/permissions", 2, "nowhere"}, // the first says which guests the token sees
	} {
		for _, status := range []int{403, 500, 595, -1} {
			if c.nth > 0 && (status == 595 || status == -1) {
				continue // such a question is asked again
			}
			t.Run(fmt.Sprintf("%s %d", c.path, status), func(t *testing.T) {
				fault := pve.Faults(pve.Fault{Method: "GET", Pattern: c.path, Nth: c.nth, Status: status})
				inTime(t, pve.Config{Fault: fault}, func(t *testing.T, w *world) {
					lacking(w)
					p := w.Plan()
					require.NotContains(t, foundIn(p), c.silent)
					require.Contains(t, foundIn(p), map[string]string{"bridge": "nowhere", "nowhere": "vmbr7"}[c.silent])
				})
			})
		}
	}
	for role, seen := range map[string]bool{"": false, "Datastore.AllocateSpace": true, "Datastore.Audit": true} {
		t.Run("role "+role, func(t *testing.T) {
			inTime(t, pve.Config{Token: "ops@pve!agent=secret"}, func(t *testing.T, w *world) {
				w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {"Try"}, "privs": {role}})
				for _, name := range []string{"local-lvm", "nowhere"} {
					w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/storage/" + name}, "users": {"ops@pve"}, "roles": {"Try"}})
				}
				lacking(w)
				p := w.Plan()
				require.Equal(t, seen, strings.Contains(foundIn(p), `there is no storage "nowhere"`), foundIn(p))
				require.NotContains(t, foundIn(p), `there is no storage "local-lvm"`)
			})
		})
	}
}

// TestThePreflightIsBounded, as a check without any is (goal P4): one question for
// each guest that there is or shall be, three a node, and five.
func TestThePreflightIsBounded(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Host.Edit(func(e *pve.Edit) {
			for i := range 40 {
				e.Add(pve.Guest{VMID: 500 + i, Kind: "qemu", Running: true, Config: map[string]string{"name": fmt.Sprintf("old-%d", i), "net0": fmt.Sprintf("virtio=BC:24:11:00:01:%02X,bridge=vmbr0", i)}})
			}
		})
		for i := range 20 {
			w.Node(fmt.Sprintf("web-%d", i), func(v *guest.VM) {
				v.Disks = []guest.Disk{{Name: "data", Size: 1, Storage: fmt.Sprintf("none-%d", i%2)}}
				v.NICs = []guest.NIC{{Name: "lan", Bridge: fmt.Sprintf("vmbr%d", 1+i), MAC: fmt.Sprintf("BC:24:11:00:01:%02X", i)}}
			})
		}
		before := total(w)
		p := w.Plan()
		require.LessOrEqual(t, total(w)-before, 40+20+3+5)
		require.Contains(t, foundIn(p), `"old-19"`)
		require.Len(t, p.Steps, 1, "the image")
	})
}

// TestADiskThatLiesThereGrows whatever its storage takes by now: PVE asks for that where
// one is made or moved.
func TestADiskThatLiesThereGrows(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 2, Storage: "local-zfs"}} })
		w.Apply()
		w.Root(http.MethodPut, "/storage/local-zfs", url.Values{"content": {"rootdir"}})
		w.VM("db").Disks[0].Size = 4
		w.VM("db").NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", Bridge: "vmbr0"}} // so that the host is read
		w.Apply()
		w.Converged()
		w.VM("db").Disks = append(w.VM("db").Disks, guest.Disk{Name: "more", Size: 1, Storage: "local-zfs"})
		require.Contains(t, foundIn(w.Plan()), `vm.db is not changed: storage "local-zfs" on node father does not take disks of VMs`)
	})
}

// TestAListingFromAnotherNodeDoesNotCount: that a listing did not come is still
// said, and no image is taken for gone.
func TestAListingFromAnotherNodeDoesNotCount(t *testing.T) {
	nas := pve.Storage{Name: "nas", Type: "dir", Content: []string{"images", "import", "iso"}}
	broken := false
	c := pve.Config{
		Nodes: []string{"mother"}, Storages: append(pve.DefaultStorages(), nas),
		Fault: func(r *http.Request) (int, bool) {
			if broken && strings.HasSuffix(r.URL.Path, "/storage/nas/content") {
				return http.StatusInternalServerError, false
			}
			return 0, false
		},
	}
	inTime(t, c, func(t *testing.T, w *world) {
		w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
		w.Root(http.MethodPut, "/storage/nas", url.Values{"nodes": {"father"}})
		w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image).Storage = "nas"
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		w.Root(http.MethodPost, "/nodes/father/qemu/10000/migrate", url.Values{"target": {"mother"}})
		w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 2, Storage: "nas"}}
		broken = true
		p := w.Plan()
		require.Contains(t, foundIn(p), `there is no storage "nas" on node mother`)
		require.Empty(t, p.Steps, proxmoxtest.Describe(p))
		require.True(t, slices.ContainsFunc(p.Unknown, func(u model.Unknown) bool { return u.Scope == "images on storage nas" }))
	})
}

// optionValues are a value of every key that an option may have.
var optionValues = map[string]string{
	"acpi": "0", "allow-ksm": "0", "audio0": "device=ich9-intel-hda", "autostart": "1", "balloon": "0", "bios": "ovmf", "boot": "order=net0",
	"cicustom": "user=local:snippets/u.yaml", "citype": "nocloud", "ciupgrade": "0", "cpu": "host", "cpulimit": "1", "cpuunits": "200",
	"efidisk0": "local-lvm:1", "freeze": "1", "hostpci[n]": "mapping=gpu", "hotplug": "disk", "ide[n]": "none,media=cdrom", "keyboard": "de", "kvm": "0", "localtime": "1",
	"machine": "q35", "migrate_downtime": "1", "migrate_speed": "5", "numa": "1", "numa[n]": "cpus=0,memory=512", "ostype": "l26", "reboot": "0",
	"rng0": "source=/dev/urandom", "scsihw": "virtio-scsi-single", "serial[n]": "socket", "shares": "500", "startdate": "now",
	"tablet": "0", "tdf": "1", "tpmstate0": "local-lvm:1,version=v2.0", "usb[n]": "mapping=stick", "vcpus": "1", "vga": "std",
	"virtiofs[n]": "dirid=share", "vmstatestorage": "local-lvm", "watchdog": "model=i6300esb",
}
