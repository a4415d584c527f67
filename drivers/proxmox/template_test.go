package proxmox_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func volumeIDs(w *world, storage string) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		out = append(out, v.ID)
	}
	return out
}

// TestTemplateThatIsOnlyNamed: what a template names by volume or VMID must be there,
// be a template, and be of the right kind; the plan says so before anything is made.
func TestTemplateThatIsOnlyNamed(t *testing.T) {
	lies := "local:vztmpl/debian-12.tar.zst"
	for name, c := range map[string]struct {
		template guest.Template
		vm       bool   // a VM is made from it, else a container
		says     string // "" if all is well
	}{
		"volume":               {guest.Template{Volume: lies}, false, ""},
		"volume not there":     {guest.Template{Volume: "local:vztmpl/other.tar.zst"}, false, "template.x is not usable: it names volume local:vztmpl/other.tar.zst, and there is no such volume on father"},
		"container template":   {guest.Template{VMID: 9001}, false, ""},
		"VM template":          {guest.Template{VMID: 9000}, true, ""},
		"nothing there":        {guest.Template{VMID: 9999}, false, "ct.n is not created: it needs template.x, which is not usable"},
		"no template":          {guest.Template{VMID: 9002}, false, "it names template 9002, and there is CT 9002, which is not a template"},
		"a VM for a container": {guest.Template{VMID: 9000}, false, "there is VM 9000, of which ct.n cannot be a clone"},
		"a container for a VM": {guest.Template{VMID: 9001}, true, "there is CT 9001, of which vm.n cannot be a clone"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				w.ctTemplate(9001)
				w.Host.Edit(func(e *pve.Edit) {
					e.Add(pve.Guest{VMID: 9002, Kind: "lxc", Config: map[string]string{"hostname": "plain"}})
				})
				w.declare("x", &c.template)
				if c.vm {
					w.Node("n", func(v *guest.VM) { v.Template = "x" })
				} else {
					w.ct("n", func(v *guest.CT) { v.Template = "x" })
				}
				before := volumeIDs(w, "local")
				p := w.Plan()
				if c.says != "" {
					require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
					require.True(t, p.Findings.HasErrors())
					require.Contains(t, fmt.Sprint(p.Findings), c.says)
					return
				}
				w.Apply()
				w.Converged()
				require.True(t, w.Guest(10000).Running)
				w.Drop("n")
				w.Apply()
				delete(w.Site.Objects, model.Address{Kind: "template", Name: "x"})
				w.Apply()
				w.Converged()
				require.Equal(t, before, volumeIDs(w, "local"), "what was only named is never removed")
				require.Len(t, w.Host.Snapshot().Guests, 3)
			})
		})
	}
}

// TestTemplateInUseStays: as long as a container that was made from it stays, for
// whatever reason; so does an image.
func TestTemplateInUseStays(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Node("web-1", nil)
		w.Apply()
		require.Contains(t, volumeIDs(w, "local"), "local:vztmpl/homestak.home.debian-ct.000000000000.tar.zst")
		w.Site.Manifests["web"].Suspend = true
		objects := w.Site.Objects
		w.Site.Objects = model.State{}
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Contains(t, fmt.Sprint(p.Findings), "template.debian-ct is not deleted: ct.cache still needs it")
		require.Contains(t, fmt.Sprint(p.Findings), "image.debian-12 is not deleted: vm.web-1 still needs it")
		w.Site.Objects, w.Site.Manifests["web"].Suspend = objects, false
		w.Converged()
		w.Drop("cache")
		w.Drop("web-1")
		w.Site.Objects = model.State{}
		w.Apply()
		require.NotContains(t, strings.Join(volumeIDs(w, "local"), " "), "homestak.")
	})
}

// TestTemplateWithNewContent: the new file is fetched, the old one goes, and what was
// made from it stays as it is.
func TestTemplateWithNewContent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		before := w.Guest(10000)
		url := "https://images.test/debian-12-standard.tar.zst"
		w.declare("debian-ct", &guest.Template{URL: url, Checksum: "sha256:" + strings.Repeat("ab", 32)})
		p := w.Apply()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		require.Equal(t, []string{"file"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, []string{"local:vztmpl/homestak.home.debian-ct.abababababab.tar.zst"}, volumeIDs(w, "local"))
		require.Equal(t, before, w.Guest(10000))
		w.Converged()
	})
}

// TestKeysOfAContainerAreOfItsBirth: later ones cannot reach it, and a warning says so.
func TestKeysOfAContainerAreOfItsBirth(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		require.Empty(t, w.Plan().Findings)
		w.Site.Secrets.Values["ssh_keys"]["new"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCx new@home"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Findings, 1)
		require.Contains(t, p.Findings[0].Summary, "the ssh keys for ct.cache changed since it was made")
	})
}

// TestAMountPointDetachedByHandComesBack with its data.
func TestAMountPointDetachedByHandComesBack(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.ct("cache", func(c *guest.CT) {
				c.Power, c.Disks = power, []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}, {Name: "logs", Size: 2, Path: "/var/log"}}
			})
			w.Apply()
			all, mp := volumesOf(w, 10000), w.Guest(10000).Config["mp0"]
			w.detach(10000, "mp0", "unused0")
			p := w.Apply()
			require.Contains(t, p.Steps[0].Reason, "disk data was detached by hand, and is attached again with its data ("+file(mp)+")")
			w.Converged()
			require.Equal(t, mp, w.Guest(10000).Config["mp0"])
			require.Equal(t, all, volumesOf(w, 10000))
		})
	}
}

// TestDisksOfAContainerAreSafe: none is taken for another, and none goes while the
// container is protected.
func TestDisksOfAContainerAreSafe(t *testing.T) {
	data := []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}}
	for name, c := range map[string]struct {
		hand func(*pve.Edit, string)
		file func(*guest.CT)
		says string
	}{
		"detached by hand, beside another volume": {func(e *pve.Edit, volume string) {
			e.Set(10000, "mp0", "")
			e.Set(10000, "unused0", volume)
			e.Set(10000, "unused1", "local-lvm:vm-10000-disk-7")
		}, nil, "`pct set 10000 --mp0 VOLUME,mp=PATH`"},
		"root detached": {func(e *pve.Edit, _ string) { e.Set(10000, "rootfs", "") }, nil, "its root disk is gone"},
		"shrinks":       {nil, func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 4, Path: "/srv"}} }, "cannot shrink from 5 to 4 GiB"},
		"moves running": {nil, func(c *guest.CT) {
			c.Disks = []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv", Storage: "local-zfs"}}
		}, "can only be moved while it is stopped"},
		"goes, protected": {func(e *pve.Edit, _ string) { e.Set(10000, "protection", "1") }, func(c *guest.CT) { c.Disks = nil }, "it is protected, and so is its disk data"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Disks = data })
				w.Apply()
				volume, _, _ := strings.Cut(w.Guest(10000).Config["mp0"], ",")
				if c.hand != nil {
					w.Host.Edit(func(e *pve.Edit) { c.hand(e, volume) })
				}
				if c.file != nil {
					c.file(ct)
				}
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Contains(t, fmt.Sprint(p.Findings)+p.Findings[0].Detail, c.says)
			})
		})
	}
}

var goldenAddr = model.Address{Kind: "template", Name: "golden"}

// withTank has a storage whose linked clones depend on their base.
func withTank() pve.Config {
	tank := pve.Storage{Name: "tank", Type: "zfspool", Content: []string{"images", "rootdir"}}
	return pve.Config{TaskTime: time.Second, Storages: append(pve.DefaultStorages(), tank)}
}

// makes declares the template golden, made from the image debian-12.
func (w *world) makes(storage string) {
	w.declare("golden", &guest.Template{Image: "debian-12", VMID: 9000, Storage: storage})
	w.Site.Objects[goldenAddr].Needs = []model.Address{{Kind: "image", Name: "debian-12"}}
}

func (w *world) cloned(name, how string) *guest.VM {
	w.Node(name, func(v *guest.VM) { v.Template, v.Clone = "golden", how })
	return w.VM(name)
}

// newImage gives the image another content, and so another file.
func (w *world) newImage() {
	i := w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image)
	i.Checksum = "sha256:" + strings.Repeat("cd", 32)
}

func (w *world) volumesOf(storage string, vmid int) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		if v.VMID == vmid && v.Content == "images" {
			out = append(out, v.ID)
		}
	}
	return out
}

// templateLife makes a template, a full and a linked clone, removes the linked one,
// recreates the template from a new image, and removes all.
func templateLife(t *testing.T, r *storyRun) {
	t.Helper()
	c := withTank()
	c.Guests = 2
	w := r.world(t, c)
	others := w.Host.Snapshot().Guests
	w.makes("tank")
	w.cloned("whole", "")
	w.cloned("light", "linked")
	settle(w)
	require.Equal(t, []string{"tank:base-9000-disk-0"}, w.volumesOf("tank", 9000))
	require.Equal(t, "1", w.Guest(9000).Config["template"])
	require.Equal(t, []string{"tank:base-9000-disk-0/vm-10000-disk-0"}, w.volumesOf("tank", 10000), "vm.light draws its VMID first")
	require.True(t, w.Guest(10000).Running)
	require.Contains(t, w.Guest(10000).Config["scsi0"], "size=10G")
	require.Len(t, w.volumesOf("local-lvm", 10001), 2, "root and cloud-init: nothing is ordered twice")
	require.True(t, w.Guest(10001).Running)
	w.Drop("light")
	settle(w)
	before := w.Guest(10001)
	w.newImage()
	settle(w)
	require.Equal(t, before, w.Guest(10001), "a full clone stays as it is")
	_, m, _ := owner.ParseDescription(w.Guest(9000).Config["description"])
	require.Equal(t, "homestak.home.debian-12.cdcdcdcdcdcd.qcow2", m.Content)
	require.Equal(t, []string{"tank:base-9000-disk-0"}, w.volumesOf("tank", 9000))
	w.Drop("whole")
	w.Site.Objects = model.State{}
	settle(w)
	require.Equal(t, others, w.Host.Snapshot().Guests)
	require.Empty(t, w.Host.Snapshot().Volumes["tank"])
	require.NotContains(t, strings.Join(volumeIDs(w, "local"), " "), "homestak.")
}

// TestEveryRequestOfATemplatesLifeMayFail faults each request in turn, once without
// and once with effect.
func TestEveryRequestOfATemplatesLifeMayFail(t *testing.T) {
	runWithFaults(t, "template", []int{596, 500, -1}, templateLife)
}

// TestTemplateInUse: linked clones, be they ours or anybody's, keep a template from
// being recreated and from being removed; full ones do not.
func TestTemplateInUse(t *testing.T) {
	others := func(w *world) {
		upid, err := w.Driver.Post(w.T.Context(), "/nodes/father/qemu/9000/clone", map[string]any{"newid": 777, "name": "hers", "full": false})
		require.NoError(w.T, err)
		require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
	}
	for name, c := range map[string]struct {
		clone          string // ours
		others         bool
		remade, remove string // what keeps it from that
	}{
		"linked, managed":   {"linked", false, "template.golden is not changed: its disk is in use by linked clones: vm.web-1 (VM 10000)", "template.golden is not deleted: vm.web-1 still needs it"},
		"linked, unmanaged": {"", true, "template.golden is not changed: its disk is in use by linked clones: VM 777 hers", "template.golden is not deleted: its disk is in use by linked clones: VM 777 hers"},
		"full, managed":     {"full", false, "", "template.golden is not deleted: vm.web-1 still needs it"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, withTank(), func(t *testing.T, w *world) {
				w.makes("tank")
				w.cloned("web-1", c.clone)
				w.Apply()
				w.Converged()
				if c.others {
					others(w)
					w.Drop("web-1")
					w.Apply()
				}
				objects := w.Site.Objects
				w.Site.Manifests["web"].Suspend = true
				w.Site.Objects = model.State{}
				p := w.Plan()
				require.NotContains(t, proxmoxtest.Describe(p), "template.golden")
				require.Contains(t, fmt.Sprint(p.Findings), c.remove)
				w.Site.Objects = objects
				w.Site.Manifests["web"].Suspend = false
				w.newImage()
				if c.others {
					w.cloned("web-2", "")
				}
				p = w.Plan()
				if c.remade != "" {
					require.NotContains(t, proxmoxtest.Describe(p), "update template.golden")
					require.Contains(t, fmt.Sprint(p.Findings), c.remade)
					return
				}
				require.Contains(t, proxmoxtest.Describe(p), "the template is removed and recreated")
				require.Empty(t, w.Run(p))
				w.Converged()
			})
		})
	}
}

// TestTemplateInUseWithTheLeastRole: without Datastore.Audit on its storage the list of disks is empty, without an
// error. The configuration of a clone of ours says what its disk stands on. A clone that the token cannot see keeps the
// template all the same, since PVE refuses.
func TestTemplateInUseWithTheLeastRole(t *testing.T) {
	for _, storage := range []string{"tank", "local-lvm"} { // on the latter a linked clone stands for itself
		t.Run(storage, func(t *testing.T) {
			inTime(t, withTank(), func(t *testing.T, w *world) {
				w.reopenAs(w.least(true))
				w.makes(storage)
				w.cloned("web-1", "linked")
				w.cloned("web-2", "full")
				w.Apply()
				w.Converged()
				list, err := w.Driver.Content(t.Context(), "father", storage, "images")
				require.NoError(t, err)
				require.Empty(t, list)
				w.newImage()
				p := w.Plan()
				if storage == "local-lvm" {
					require.Contains(t, proxmoxtest.Describe(p), "update template.golden")
					return
				}
				require.NotContains(t, proxmoxtest.Describe(p), "template.golden")
				require.Contains(t, card(p), "template.golden is not changed: its disk is in use by linked clones: vm.web-1 (VM 10000);")
				require.Contains(t, card(p), "remove them first, or move their disks with PVE, which makes them full clones; or declare a second template")
				w.Drop("web-1")
				w.Apply()
				w.Apply()
				w.Converged()
			})
		})
	}
}

// TestTemplateInUseByWhatTheTokenCannotSee: nothing shows the clone, and PVE refuses. The step says why.
func TestTemplateInUseByWhatTheTokenCannotSee(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.reopenAs(w.least(true))
		w.makes("tank")
		w.cloned("web-1", "full")
		w.Apply()
		w.Root(http.MethodPost, "/nodes/father/qemu/9000/clone", url.Values{"newid": {"777"}, "name": {"hers"}, "full": {"0"}})
		time.Sleep(time.Minute)
		w.newImage()
		require.Contains(t, card(w.Plan()), "in use by linked clones: VM 777 hers", "it took our tag along, so it is read")
		w.Root(http.MethodPut, "/nodes/father/qemu/777/config", url.Values{"delete": {"tags"}})
		time.Sleep(time.Minute)
		err := w.Run(w.Plan())[goldenAddr]
		require.ErrorContains(t, err, "guests that this token cannot see are linked clones of it")
		require.ErrorContains(t, err, "with Datastore.Audit on the storage the plan does")
		require.Equal(t, "1", w.Guest(9000).Config["template"])
		require.Equal(t, []string{"tank:base-9000-disk-0/vm-777-disk-0"}, w.volumesOf("tank", 777))
	})
}

// TestTemplateCloneThatCameLate: a linked clone made after the plan keeps the template.
func TestTemplateCloneThatCameLate(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.makes("tank")
		w.cloned("web-1", "full")
		w.Apply()
		w.Drop("web-1")
		w.Site.Objects = model.State{}
		p := w.Plan()
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/9000/clone", map[string]any{"newid": 777, "full": false})
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		require.ErrorContains(t, w.Run(p)[goldenAddr], "VM 777 is a linked clone and stands on its disk")
		require.Equal(t, "1", w.Guest(9000).Config["template"])
	})
}

// TestHalfATemplate is brought to its end, wherever its making was cut off.
func TestHalfATemplate(t *testing.T) {
	for name, half := range map[string]func(e *pve.Edit, disk string){
		"never converted": func(e *pve.Edit, disk string) {
			e.Set(9000, "template", "")
			e.Set(9000, "scsi0", disk)
		},
		"disk not converted": func(e *pve.Edit, disk string) { e.Set(9000, "scsi0", disk) },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, withTank(), func(t *testing.T, w *world) {
				w.makes("tank")
				w.cloned("web-1", "full")
				w.Apply()
				upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu", map[string]any{"vmid": 600, "scsi0": "tank:2"})
				require.NoError(t, err)
				require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
				disk := w.Guest(600).Config["scsi0"]
				w.Host.Edit(func(e *pve.Edit) { half(e, disk) })
				p := w.Apply()
				require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
				require.Equal(t, []string{"made"}, proxmoxtest.Paths(p.Steps[0]))
				require.Equal(t, "1", w.Guest(9000).Config["template"])
				require.Contains(t, w.Guest(9000).Config["scsi0"], "tank:base-600-disk-0")
				w.Converged()
			})
		})
	}
}

// TestUnmanagedTemplate: one of that name or VMID is left alone, and none is made
// beside it.
func TestUnmanagedTemplate(t *testing.T) {
	for name, c := range map[string]struct {
		vmid int
		name string
		says string
	}{
		"of its VMID": {9000, "hers", `vm 9000 "hers" exists already and is unmanaged`},
		"of its name": {9100, "golden", `vm 9100 "golden" exists already and is unmanaged`},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, withTank(), func(t *testing.T, w *world) {
				w.Template(c.vmid, c.name)
				before := w.Guest(c.vmid)
				w.makes("tank")
				w.cloned("web-1", "linked")
				p := w.Plan()
				require.NotContains(t, proxmoxtest.Describe(p), "template.golden")
				require.NotContains(t, proxmoxtest.Describe(p), "vm.web-1", "who needs it waits")
				require.Contains(t, fmt.Sprint(p.Findings), c.says)
				w.Run(p)
				require.Equal(t, []pve.Guest{before}, w.Host.Snapshot().Guests)
			})
		})
	}
}

// TestCopyOfATemplateIsUnmanaged: a clone takes the description along, and with it the ownership tag.
func TestCopyOfATemplateIsUnmanaged(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.makes("tank")
		w.cloned("web-1", "full")
		w.Apply()
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/9000/clone", map[string]any{"newid": 777, "name": "copy", "full": true})
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		w.Converged()
		w.Drop("web-1")
		w.Site.Objects = model.State{}
		w.Apply()
		require.Len(t, w.Host.Snapshot().Guests, 1)
		require.Equal(t, "copy", w.Guest(777).Config["name"])
	})
}

// TestLinkedCloneOfANamedTemplate is on the storage of the template, whatever the host's storage is.
func TestLinkedCloneOfANamedTemplate(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.TemplateOn("father", "tank", 9000, "golden")
		v := w.cloned("web-1", "linked")
		w.Apply()
		require.Equal(t, []string{"tank:base-9000-disk-0/vm-10000-disk-0"}, w.volumesOf("tank", 10000)[:1])
		w.Converged()
		v.Clone = "full"
		v.Disks = []guest.Disk{{Name: "root", Storage: "tank"}}
		place := diag.Range{File: "web.hcl", Start: diag.Pos{Line: 7, Column: 5}}
		w.Site.Manifests["web"].Nodes[0].Resource.Ranges = []model.AttrRange{{Path: "clone", At: place}}
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Contains(t, fmt.Sprint(p.Findings), "vm.web-1 is a linked clone and stays one")
		require.Equal(t, place, p.Findings[0].At)
		v.Clone, v.Disks = "linked", nil
		v.Tags = []string{"more"}
		w.Apply()
		w.Converged()
	})
}

// TestClonesAndTemplatesThatCannotBe are refused before anything is asked of PVE.
func TestClonesAndTemplatesThatCannotBe(t *testing.T) {
	for says, edit := range map[string]func(*guest.VM, *guest.Template){
		`clone = "link" is not valid`:                         func(v *guest.VM, _ *guest.Template) { v.Clone = "link" },
		"clone without template":                              func(v *guest.VM, _ *guest.Template) { v.Template, v.Image, v.Clone = "", "debian-12", "full" },
		"lies where its template lies, on tank and not on x":  func(v *guest.VM, _ *guest.Template) { v.Disks = []guest.Disk{{Name: "root", Storage: "x"}} },
		`template "golden" has no vmid`:                       func(_ *guest.VM, t *guest.Template) { t.VMID = 0 },
		`template "golden" does not say what it is`:           func(_ *guest.VM, t *guest.Template) { t.URL = "https://images.test/x.tar.zst" },
		"a template from an image has no checksum of its own": func(_ *guest.VM, t *guest.Template) { t.Checksum = "sha256:" + strings.Repeat("ab", 32) },
	} {
		t.Run(says, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.makes("tank")
				v := w.cloned("web-1", "linked")
				edit(v, w.Site.Objects[goldenAddr].Spec.(*guest.Template))
				_, found := w.Site.Want("father")
				require.NotZero(t, found.Errors())
				require.Contains(t, fmt.Sprint(found), says)
			})
		})
	}
}

// TestTemplateBelongsToTheHost: nodes of this host find the template, those of another host do not.
func TestTemplateBelongsToTheHost(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.makes("tank")
		w.cloned("web-1", "full")
		w.Apply()
		want, _ := w.Site.Want("father")
		for owner, host := range map[string]string{"cli:me": "father", "mother": "mother"} {
			h := *w.Site.Hosts["father"]
			h.Name, h.Node = host, "father"
			d, err := proxmox.Open(proxmox.Config{Keys: keysOfTests, Host: &h, Site: "home", Owner: owner, Token: w.Host.Token(), Transport: w.Host})
			require.NoError(t, err)
			have, err := d.Observe(t.Context(), want)
			require.NoError(t, err)
			require.Equal(t, host == "father", have.State[goldenAddr] != nil)
		}
	})
}

// cloneStory makes one guest from a template while one request is faulted, until
// nothing is left to do. counted gets every request but those that make the template.
func cloneStory(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.Template(9000, "golden")
	r.quiet.Store(false)
	w.Node("web-1", func(v *guest.VM) {
		v.Template = "golden"
		v.Disks = []guest.Disk{{Name: "data", Size: 3}}
	})
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	g := w.Guest(10000)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Contains(t, g.Config["scsi0"], "size=10G")
	require.Contains(t, g.Config["scsi1"], "size=3G")
	require.Contains(t, g.Config["ide2"], "cloudinit", "without it the guest has neither user nor address")
	require.Contains(t, g.Config["net0"], "bridge=vmbr0")
	require.Empty(t, g.Config["net1"])
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Equal(t, "uuid="+m.UUID, g.Config["smbios1"])
	require.Equal(t, map[string]string{"disk.root": "scsi0", "disk.data": "scsi1", "nic.lan": "net0"}, m.Slots)
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 3, volumes)
}

func TestEveryRequestOfACloneMayFail(t *testing.T) {
	runWithFaults(t, "clone", []int{596, 500, -1}, cloneStory)
}

func TestTemplateOnAnotherNode(t *testing.T) {
	shared := pve.Storage{Name: "nas", Type: "nfs", Content: []string{"images"}, Shared: true}
	c := pve.Config{Nodes: []string{"mother"}, Storages: append(pve.DefaultStorages(), shared)}
	inTime(t, c, func(t *testing.T, w *world) {
		h := w.Site.Hosts["father"]
		h.Nodes, h.Storage = []string{"father", "mother"}, &model.Storage{Disks: "nas"}
		w.Reopen()
		w.TemplateOn("mother", "nas", 9000, "golden")
		w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		w.Apply()
		require.Equal(t, "father", w.Guest(10000).Node)
		w.Converged()
	})
}

// TestCloneTwice: the same step, given once more after it was done, changes nothing;
// a clone that another guest took the place of is left alone.
func TestCloneTwice(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		p := w.Apply()
		step := p.Steps[len(p.Steps)-1]
		before := w.Guest(10000).Config
		require.NoError(t, w.Driver.Apply(t.Context(), step))
		require.Equal(t, before, w.Guest(10000).Config)
		w.Converged()

		notes, m, _ := owner.ParseDescription(before["description"])
		m.UUID, m.VMID, m.Slots = "", 10000, nil // as it was before it got its identity
		begun := w.signed(10000, owner.Identity{}.Begin(m))
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", notes+begun) })
		p = w.Plan()
		require.Len(t, p.Steps, 1)
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "description", "a note")
			e.Set(10000, "name", "theirs")
		})
		theirs := w.Guest(10000).Config
		require.ErrorContains(t, w.Run(p)[step.Address], "not changed")
		require.Equal(t, theirs, w.Guest(10000).Config)
	})
}

// TestRequestsPerClone counts what fifty clones cost, polls included: 50 VMs, ten
// at once, tasks of 2.2 s, 20 ms a request.
func TestRequestsPerClone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2200 * time.Millisecond, Latency: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		for i := range 50 {
			w.Node(fmt.Sprintf("web-%d", i+1), func(v *guest.VM) { v.Template = "golden" })
		}
		before := total(w)
		p := w.Plan()
		began := time.Now()
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{Width: 10}, w.Driver.Apply) {
			require.NoError(t, r.Err)
		}
		took := time.Since(began)
		n := total(w) - before
		t.Logf("%d requests, %.1f a VM, %s; %v", n, float64(n)/50, took, w.Host.Snapshot().Requests)
		require.LessOrEqual(t, n, 10*50)
		w.Converged()
	})
}

func total(w *world) int {
	n := 0
	for _, c := range w.Host.Snapshot().Requests {
		n += c
	}
	return n
}

// TestRequestsPerImport counts the same for guests whose disk is imported from an image.
func TestRequestsPerImport(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2200 * time.Millisecond, Latency: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		for i := range 50 {
			w.Node(fmt.Sprintf("web-%d", i+1), nil)
		}
		p := w.Plan()
		before := total(w)
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{Width: 10}, w.Driver.Apply) {
			require.NoError(t, r.Err)
		}
		n := total(w) - before
		t.Logf("%d requests, %.1f a VM; %v", n, float64(n)/50, w.Host.Snapshot().Requests)
		require.LessOrEqual(t, n, 8*50)
		w.Converged()
	})
}

// newArchive declares the container template of the tests again, with other content.
func (w *world) newArchive() {
	w.declare("debian-ct", &guest.Template{URL: "https://images.test/debian-12.tar.zst", Checksum: "sha256:" + strings.Repeat("cd", 32)})
}

// origins are two guests and a clone whose image and templates have other content since they were created.
func origins(w *world) (vm *guest.VM, ct *guest.CT) {
	w.makes("tank")
	w.Node("web", nil)
	w.cloned("copy", "")
	ct = w.ct("db", nil)
	w.Apply()
	w.Converged()
	w.newImage()
	w.newArchive()
	w.Apply()
	return w.VM("web"), ct
}

func recreation(p *plan.Plan, addr string) *plan.Step {
	for i, s := range p.Steps {
		if s.Address.String() == addr {
			return &p.Steps[i]
		}
	}
	return nil
}

// TestN14TheNextImage: a guest that was made from an earlier content of its image is reported and stays; recreate replaces
// it, and then everything is in sync.
func TestN14TheNextImage(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		vm, ct := origins(w)
		p := w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Len(t, p.Findings, 3)
		var text strings.Builder
		p.Findings.Write(&text)
		for _, line := range []string{
			"ct.db was made from an earlier template.debian-ct (homestak.home.debian-ct.000000000000.tar.zst)",
			"vm.copy was made from an earlier template.golden (homestak.home.debian-12.000000000000.qcow2)",
			"vm.web was made from an earlier image.debian-12 (homestak.home.debian-12.000000000000.qcow2)",
			`recreate = "…" on its node replaces it`,
		} {
			require.Contains(t, text.String(), line)
		}
		doc, err := json.Marshal(p)
		require.NoError(t, err)
		require.Contains(t, string(doc), `"summary":"vm.web was made from an earlier image.debian-12 (`)

		vm.Recreate, ct.Recreate = "2026-11", "2026-11"
		w.VM("copy").Memory = 4096
		old := w.Guest(10002)
		p = w.Apply()
		for _, addr := range []string{"vm.web", "ct.db"} {
			s := recreation(p, addr)
			require.NotNil(t, s, "%s %v", proxmoxtest.Describe(p), p.Findings)
			require.Equal(t, []any{plan.Replace, model.ClassDataLoss, []string{"recreate"}}, []any{s.Action, s.Class, proxmoxtest.Paths(*s)})
		}
		require.Len(t, p.Findings, 1, "what is replaced is not reported")
		p = w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.copy", p.Findings[0].Address, "another change keeps what the tag says")
		require.NotEqual(t, old.Config["smbios1"], w.Guest(10002).Config["smbios1"])
		m := w.tagOf(10002)
		require.Equal(t, []string{"homestak.home.debian-12.cdcdcdcdcdcd.qcow2", "2026-11"}, []string{m.Content, m.Recreate})

		vm.Recreate, ct.Recreate = "", ""
		w.Converged()
		vm.Recreate, ct.Recreate = "2026-11", "2026-11"
		w.Converged()
	})
}

// TestN14TheFactStays: a new key, a changed guest and the signature of an unsigned tag keep what a guest was created with.
func TestN14TheFactStays(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web", func(v *guest.VM) { v.Recreate = "a" })
		w.ct("db", func(c *guest.CT) { c.Recreate = "a" })
		w.Apply()
		w.hasKey()
		fact := func() []string {
			var out []string
			for _, vmid := range []int{ourCT, ourVM} {
				m := w.tagOf(vmid)
				out = append(out, fmt.Sprint(m.V), m.Content, m.Recreate)
			}
			return out
		}
		was := fact()
		require.Equal(t, []string{"1", "homestak.home.debian-ct.000000000000.tar.zst", "a", "1", "homestak.home.debian-12.000000000000.qcow2", "a"}, was)
		was[0], was[3] = "2", "2"
		w.Apply()
		require.Equal(t, was, fact())
		w.reopenWith(func(string) [][]byte { return [][]byte{[]byte("the new key"), keysOfTests("father")[0]} }, false)
		w.VM("web").Memory = 4096
		w.Apply()
		w.Converged()
		require.Equal(t, was, fact())
	})
}

// TestN14TagsWithoutTheField: of a guest whose tag does not have the fields nothing is claimed, and it is replaced only when
// the files ask for that.
func TestN14TagsWithoutTheField(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		vm, ct := origins(w)
		for _, vmid := range []int{10000, 10001, 10002} {
			g := w.Guest(vmid)
			m := w.tagOf(vmid)
			m.Content, m.Recreate = "", ""
			id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
			line := id.Sign(m, api.GuestRef{Node: "father", VMID: vmid, LXC: g.Kind == "lxc"}, configOf(g)).Line()
			w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", line) })
		}
		p := w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Empty(t, p.Findings)
		vm.Recreate, ct.Recreate = "x", "x"
		w.Apply()
		w.Converged()
	})
}

// TestN14AnEditedFact: who edits the fields in a tag breaks its signature. Nothing is replaced for it, and the plan says so.
func TestN14AnEditedFact(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.Node("web", func(v *guest.VM) { v.Recreate = "2026-11" })
		w.ct("db", func(c *guest.CT) { c.Recreate = "2026-11" })
		w.Apply()
		edit := func(recreate string) {
			for _, vmid := range []int{ourCT, ourVM} {
				m := w.tagOf(vmid)
				m.Recreate, m.Content = recreate, "other.qcow2"
				w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", m.Line()) })
			}
		}
		edit("2026-10")
		guests := func() []pve.Guest { return []pve.Guest{w.Guest(ourCT), w.Guest(ourVM)} }
		before := guests()
		p := w.Apply()
		require.Empty(t, p.Steps)
		text := fmt.Sprint(p.Findings)
		require.Contains(t, text, "vm.web is not replaced: nothing proves that VM 10001 is this guest")
		require.Contains(t, text, "ct.db is not replaced: nothing proves that CT 10000 is this guest")
		require.NotContains(t, text, "earlier")
		require.Equal(t, before, guests())

		edit("2026-11")
		p = w.Plan()
		require.Empty(t, p.Findings, "an unproven tag shows nothing")
		for _, s := range p.Steps {
			require.Equal(t, []string{"mark"}, proxmoxtest.Paths(s))
		}
	})
}

// TestN14ALostTag: the tag of an adopted guest does not say what it was made from, and does not have it replaced.
func TestN14ALostTag(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.hasKey()
		w.Node("web", func(v *guest.VM) { v.Recreate = "2026-11" })
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", "") })
		w.adoptAsProposed("web", w.Plan().Findings[0].Detail)
		w.Apply()
		w.Converged()
		m := w.tagOf(10000)
		require.Equal(t, []string{"", "2026-11"}, []string{m.Content, m.Recreate})
	})
}

// TestN14AHalfMadeClone: a clone that was interrupted keeps what the tag says of its template and of recreate: it is
// completed first, and then replaced.
func TestN14AHalfMadeClone(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.makes("tank")
		vm := w.cloned("web", "")
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		ct := w.ct("db", func(c *guest.CT) { c.Template = "golden-ct" })
		w.Apply()
		id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
		for _, vmid := range []int{ourCT, ourVM} {
			g, m := w.Guest(vmid), w.tagOf(vmid)
			m.UUID, m.MAC, m.VMID, m.Content, m.Recreate = "", "", vmid, "earlier.qcow2", "a"
			line := id.Sign(id.Begin(m), api.GuestRef{Node: "father", VMID: vmid, LXC: g.Kind == "lxc"}, configOf(g)).Line()
			w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", line) })
		}
		vm.Recreate, ct.Recreate = "b", "b"
		for i, action := range []plan.Action{plan.Update, plan.Replace} {
			p := w.Apply()
			require.Len(t, p.Steps, 2, "%s %v", proxmoxtest.Describe(p), p.Findings)
			for j, vmid := range []int{ourCT, ourVM} {
				require.Equal(t, action, p.Steps[j].Action)
				require.Equal(t, []string{"a", "b"}[i], w.tagOf(vmid).Recreate)
				require.Equal(t, i == 0, w.tagOf(vmid).Content == "earlier.qcow2")
			}
		}
		w.Converged()
	})
}

// TestN14AProtectedGuestStays: recreate replaces no guest whose protection is set.
func TestN14AProtectedGuestStays(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", func(v *guest.VM) { v.Protection = true })
		ct := w.ct("db", func(c *guest.CT) { c.Protection = true })
		w.Apply()
		w.VM("web").Recreate, ct.Recreate = "a", "a"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Findings, 2)
		for _, f := range p.Findings {
			require.Contains(t, f.Summary, "is not replaced: it is protected")
		}
	})
}

// replacementLife recreates a VM and a container.
func replacementLife(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.Node("web", nil)
	ct := w.ct("db", nil)
	settle(w)
	was := map[string]string{ // identities by node
		"web": w.tagOf(ourVM).UUID,
		"db":  w.tagOf(ourCT).MAC,
	}
	r.quiet.Store(false)
	w.VM("web").Recreate, ct.Recreate = "a", "a"
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	for _, g := range s.Guests {
		m := w.tagOf(g.VMID)
		require.NotEmpty(t, was[m.Node])
		require.NotEqual(t, was[m.Node], m.UUID+m.MAC, "%s was not replaced", m.Node)
		delete(was, m.Node)
		require.Equal(t, "a", m.Recreate)
		require.True(t, g.Running)
		require.Empty(t, g.Lock)
	}
	require.Len(t, s.Volumes["local-lvm"], 3, "root and cloud-init, and that of the container")
}

func TestN14EveryRequestOfAReplacementMayFail(t *testing.T) {
	runWithFaults(t, "replacement", []int{596, 500, -1}, replacementLife)
}
