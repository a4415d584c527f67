package proxmox_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// keyless is a site without a key, with one guest, vm.web or ct.web, that has a disk whose data go when it leaves the files.
type keyless struct {
	*world
	ct   bool
	vm   *guest.VM // the declared guest, one of both
	lxc  *guest.CT
	node *model.Node
}

func inKeylessSite(t *testing.T, ct bool, story func(*testing.T, *keyless)) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.hasNoKey()
		k := &keyless{world: w, ct: ct}
		if ct {
			k.lxc = w.ct("web", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 4, Path: "/srv", Remove: true}} })
		} else {
			w.Node("web", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 4, Remove: true}} })
			k.vm = w.VM("web")
		}
		k.node = w.Site.Manifests["web"].Nodes[0]
		w.Apply()
		time.Sleep(time.Minute)
		w.Converged()
		story(t, k)
	})
}

func (k *keyless) addr() model.Address { return k.node.Resource.Addr }

// nameKey is the key of the configuration that has the name.
func (k *keyless) nameKey() string {
	if k.ct {
		return "hostname"
	}
	return "name"
}

// renamed names the guest on its host.
func (k *keyless) renamed(name string) {
	k.Host.Edit(func(e *pve.Edit) { e.Set(10000, k.nameKey(), name) })
}

// destroys plans what "destroy -M web" does.
func (k *keyless) destroys() *plan.Plan {
	want, found := k.Site.Want("father")
	require.Zero(k.T, found.Errors(), "%v", found)
	have, err := k.Driver.Observe(k.T.Context(), want)
	require.NoError(k.T, err)
	return plan.Make(plan.Input{Site: "home", Host: "father", Kinds: k.Site.Kinds, Want: want, Have: have, Destroy: true, Manifest: "web"})
}

func (k *keyless) setMemory(mib int) {
	if k.ct {
		k.lxc.Memory = mib
	} else {
		k.vm.Memory = mib
	}
}

func (k *keyless) dropDisk() {
	if k.ct {
		k.lxc.Disks = nil
	} else {
		k.vm.Disks = nil
	}
}

// TestS1WithoutAKeyNothingIsRemoved: where the site has no ownership key, the tag of a guest proves nothing. No guest is removed,
// replaced or renamed, and no data of a disk; the plan says which guest it is, and the two ways on.
func TestS1WithoutAKeyNothingIsRemoved(t *testing.T) {
	for name, change := range map[string]func(*keyless) *plan.Plan{
		"it leaves the manifest": func(k *keyless) *plan.Plan { k.Drop("web"); return k.Plan() },
		"its manifest leaves": func(k *keyless) *plan.Plan {
			delete(k.Site.Manifests, "web")
			return k.Plan()
		},
		"destroy":              func(k *keyless) *plan.Plan { return k.destroys() },
		"it was renamed there": func(k *keyless) *plan.Plan { k.renamed("mine"); return k.Plan() },
		"replacement":          func(k *keyless) *plan.Plan { k.node.Resource.Guest.VMID = 10050; return k.Plan() },
		"the data of a disk":   func(k *keyless) *plan.Plan { k.dropDisk(); return k.Plan() },
		"of a stranger who claims to be ours": func(k *keyless) *plan.Plan {
			m := k.tagOf(10000)
			m.Node = "gone"
			k.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", m.Line()) })
			k.Drop("web")
			return k.Plan()
		},
	} {
		for _, ct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, container %t", name, ct), func(t *testing.T) {
				inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
					p := change(k)
					before := k.Host.Snapshot()
					require.Empty(t, p.Steps, proxmoxtest.Describe(p))
					require.True(t, p.Findings.HasErrors())
					tool := map[bool]string{false: "qm", true: "pct"}[ct]
					for _, text := range []string{"10000 is this guest: the site has no ownership key", "`openssl rand -hex 32`", "auth.ownership_key", fmt.Sprintf("`%s destroy 10000` on node father", tool)} {
						require.Contains(t, card(p), text)
					}
					require.Empty(t, k.Run(p))
					require.Equal(t, before.Writes, k.Host.Snapshot().Writes)
					require.Equal(t, before.Guests, k.Host.Snapshot().Guests)
				})
			})
		}
	}
}

// TestS1WithoutAKeyItConverges: guests are created, changed and started as declared where the site has no key. Once it
// has one, the next pass signs their tags, and they are removed.
func TestS1WithoutAKeyItConverges(t *testing.T) {
	for _, ct := range []bool{false, true} {
		inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
			k.setMemory(1024)
			k.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
			k.Node("second", nil)
			p := k.Apply()
			require.Contains(t, proxmoxtest.Describe(p), "create vm.second")
			require.True(t, slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Address == k.addr() && s.Action == plan.Update }), proxmoxtest.Describe(p))
			require.True(t, k.Guest(10000).Running)
			require.Empty(t, k.tagOf(10000).Sig)

			k.hasKey()
			k.Apply()
			k.Converged()
			require.NotEmpty(t, k.tagOf(10000).Sig)
			k.Drop("web")
			k.Apply()
			k.Converged()
			require.NotContains(t, vmids(k.world), 10000)
		})
	}
}

// TestS1WithoutAKeyNoStepRemoves: a removal that was planned where the key is known is not done where the site has none.
func TestS1WithoutAKeyNoStepRemoves(t *testing.T) {
	for _, ct := range []bool{false, true} {
		inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
			k.hasKey()
			k.Apply()
			k.Drop("web")
			p := k.Plan()
			require.Equal(t, plan.Delete, p.Steps[0].Action)
			k.hasNoKey()
			before := maps.Clone(k.Guest(10000).Config)
			require.ErrorContains(t, k.Run(p)[k.addr()], "does not prove that it is ours to remove")
			require.Equal(t, before, k.Guest(10000).Config)
			require.True(t, k.Guest(10000).Running)
		})
	}
}

// TestS1ANewerTagIsLeftAlone: a program that meets a tag of a newer version neither verifies nor changes it: its guest is not created
// again, not changed and, once its node left the files, not removed. Versions before signatures treat a signed tag in this way,
// which has the version 2.
func TestS1ANewerTagIsLeftAlone(t *testing.T) {
	for _, key := range []bool{false, true} {
		for _, ct := range []bool{false, true} {
			inKeylessSite(t, ct, func(t *testing.T, k *keyless) {
				if key {
					k.hasKey()
					k.Apply()
				}
				m := k.tagOf(10000)
				m.V = 3
				k.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", m.Line()) })
				before := k.Host.Snapshot()
				same := func() {
					p := k.Plan()
					require.Empty(t, p.Steps, proxmoxtest.Describe(p))
					require.Contains(t, card(p), "its ownership tag cannot be read")
					require.Equal(t, before.Writes, k.Host.Snapshot().Writes)
					require.Equal(t, before.Guests, k.Host.Snapshot().Guests)
				}
				same()
				k.setMemory(1024)
				same()
				require.Contains(t, card(k.Plan()), "if a newer version of this program wrote it, use that one")
				k.Drop("web")
				same()
			})
		}
	}
}
