package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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
// makes the template anew from a new image, and takes all away.
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
	tellWithFaults(t, "template", []int{596, 500, -1}, templateLife)
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
		"linked, ours":    {"linked", false, "template.golden is not changed: its disk is in use by linked clones: vm.web-1 (VM 10000)", "template.golden is not deleted: vm.web-1 still needs it"},
		"linked, foreign": {"", true, "template.golden is not changed: its disk is in use by linked clones: VM 777 hers", "template.golden is not deleted: its disk is in use by linked clones: VM 777 hers"},
		"full, ours":      {"full", false, "", "template.golden is not deleted: vm.web-1 still needs it"},
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

// TestTemplateThatIsNotOurs: one of that name or VMID is left alone, and none is made
// beside it.
func TestTemplateThatIsNotOurs(t *testing.T) {
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

// TestCopyOfATemplateIsNotOurs: a clone takes the description along, and with it the ownership tag.
func TestCopyOfATemplateIsNotOurs(t *testing.T) {
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

// TestLinkedCloneOfANamedTemplate lies where that lies, whatever the host's storage is.
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

// TestTemplateBelongsToTheHost: whoever works on that has it, another host does not.
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
