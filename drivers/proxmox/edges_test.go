package proxmox_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// card is all that a plan says, as text.
func card(p *plan.Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "step %s %s %s\n", s.Action, s.Address, strings.Join(proxmoxtest.Paths(s), " "))
	}
	for _, f := range p.Unmanaged {
		fmt.Fprintf(&b, "foreign %s %d %s: %s; %s\n", f.Kind, f.VMID, f.Name, f.Why, f.Fix)
	}
	for _, u := range p.Unknown {
		fmt.Fprintf(&b, "unknown %s: %s\n", u.Scope, u.Why)
	}
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "%s: %s\n%s\n", f.Severity, f.Summary, f.Detail)
	}
	return b.String()
}

// steps are the steps of a plan but for creations, which list every attribute.
func steps(p *plan.Plan) []string {
	out := []string{}
	for _, s := range p.Steps {
		line := fmt.Sprintf("%s %s", s.Action, s.Address)
		if s.Action == plan.Update {
			line += ": " + strings.Join(proxmoxtest.Paths(s), " ")
		}
		out = append(out, line)
	}
	return out
}

// TestOwnershipAtItsEdges: what people do by hand to a guest of ours, or beside it.
// Each case says which steps follow, what the plan says, and that after all of it,
// and after the guest left the site, what is not proved ours stands as before.
func TestOwnershipAtItsEdges(t *testing.T) {
	stranger := func(vmid int, name string) pve.Guest {
		return pve.Guest{VMID: vmid, Running: true, Config: map[string]string{"name": name, "smbios1": "uuid=f0e1d2c3-0000-4000-8000-000000000001"}}
	}
	with := func(c map[string]string, key, val string) map[string]string {
		c = maps.Clone(c)
		c[key] = val
		return c
	}
	remark := func(c map[string]string, old, text string) map[string]string {
		return with(c, "description", strings.Replace(c["description"], old, text, 1))
	}
	for name, c := range map[string]struct {
		hand   func(e *pve.Edit, ours map[string]string)
		steps  []string
		says   []string
		stays  []int // VMIDs that nothing ever touches
		number int   // how many guests there are once all was applied
		noKey  bool  // the site has none, so that the identity alone decides
	}{
		"its VMID was recycled": {
			hand:  func(e *pve.Edit, _ map[string]string) { e.Delete(10000); e.Add(stranger(10000, "theirs")) },
			steps: []string{"create vm.web-1"}, says: []string{"foreign vm 10000 theirs: no ownership tag"}, stays: []int{10000}, number: 2,
		},
		"its VMID and name were recycled": {
			hand: func(e *pve.Edit, _ map[string]string) { e.Delete(10000); e.Add(stranger(10000, "web-1")) },
			says: []string{"vm.web-1 is not created: vm 10000 \"web-1\" exists already and is unmanaged (no ownership tag, but the name of vm.web-1)", "rename one of the two"}, stays: []int{10000}, number: 1,
		},
		"a clone has its mark": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Add(pve.Guest{VMID: 10777, Config: with(ours, "smbios1", "uuid=5ec0dcb1-0000-4000-8000-000000000001")})
			},
			says: []string{"carries the ownership tag of vm.web-1, but is another machine (its uuid is not the one in the tag): a copy"}, stays: []int{10777}, number: 2,
		},
		"only a clone of it is left": {
			noKey: true,
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Delete(10000)
				e.Add(pve.Guest{VMID: 10777, Config: with(ours, "smbios1", "uuid=5ec0dcb1-0000-4000-8000-000000000001")})
			},
			says: []string{"vm.web-1 is not created: vm 10777", "remove the ownership tag from the description of the copy, or the copy itself"}, stays: []int{10777}, number: 1,
		},
		"a backup was restored beside it": {
			noKey: true,
			hand:  func(e *pve.Edit, ours map[string]string) { e.Add(pve.Guest{VMID: 10900, Config: ours}) },
			says:  []string{"error: 2 guests carry the identity of vm.web-1: neither is changed", "remove the one that is not wanted"}, stays: []int{10000, 10900}, number: 2,
		},
		"it was restored over itself": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Delete(10000)
				e.Add(pve.Guest{VMID: 10000, Running: true, Config: ours})
			},
			steps: []string{}, number: 1,
		},
		"it was restored under another VMID": { // it is ours there, and stays there: the VMID was chosen, not declared
			noKey: true,
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Delete(10000)
				e.Add(pve.Guest{VMID: 10900, Running: true, Config: ours})
			},
			steps: []string{}, number: 1,
		},
		"it was renamed": {
			hand:  func(e *pve.Edit, _ map[string]string) { e.Set(10000, "name", "mine") },
			steps: []string{"update vm.web-1: name"}, number: 1,
		},
		"it lost its tag": {
			hand:  func(e *pve.Edit, _ map[string]string) { e.Set(10000, "tags", "") },
			steps: []string{"update vm.web-1: tags"}, number: 1,
		},
		"it was renamed and lost its tag": {
			hand: func(e *pve.Edit, _ map[string]string) {
				e.Set(10000, "tags", "")
				e.Set(10000, "name", "mine")
			},
			steps: []string{"update vm.web-1: tags name"}, number: 1,
		},
		"its description was stripped": {
			hand: func(e *pve.Edit, _ map[string]string) { e.Set(10000, "description", "") },
			says: []string{"exists already and is unmanaged (no ownership tag, but the name of vm.web-1)", "if it is vm.web-1 and only lost its ownership tag, put that back", "rename one of the two"}, stays: []int{10000}, number: 1,
		},
		"it became a template": {
			hand: func(e *pve.Edit, _ map[string]string) { e.Stop(10000); e.Set(10000, "template", "1") },
			says: []string{"vm.web-1 is not created", "was vm.web-1 until it was converted to a template by hand", "its linked clones first"}, stays: []int{10000}, number: 1,
		},
		"another host of the site owns it": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Set(10000, "description", remark(ours, `"owner":"father"`, `"owner":"uncle"`)["description"])
			},
			says: []string{"vm.web-1 is not created", "belongs to uncle"}, stays: []int{10000}, number: 1,
		},
		"somebody kept it for a look": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Set(10000, "description", remark(ours, `"owner":"father"`, `"owner":"cli:ann@desk"`)["description"])
			},
			says: []string{"vm.web-1 is not created", "belongs to cli:ann@desk"}, stays: []int{10000}, number: 1,
		},
		"another site has one of this name": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Add(pve.Guest{VMID: 10901, Config: with(remark(ours, `"site":"home"`, `"site":"away"`), "name", "theirs")})
			},
			steps: []string{}, says: []string{"belongs to site away"}, stays: []int{10901}, number: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				if c.noKey {
					w.hasNoKey()
				}
				w.Node("web-1", nil)
				w.Apply()
				ours := w.Guest(10000).Config
				w.Host.Edit(func(e *pve.Edit) { c.hand(e, ours) })
				time.Sleep(time.Minute)
				before := map[int]pve.Guest{}
				for _, id := range c.stays {
					before[id] = w.Guest(id)
				}
				unharmed := func() {
					t.Helper()
					for id, g := range before {
						now := w.Guest(id)
						require.Equal(t, g, now)
					}
				}
				p := w.Plan()
				require.Equal(t, append([]string{}, c.steps...), steps(p), card(p))
				for _, text := range c.says {
					require.Contains(t, card(p), text)
				}
				require.Empty(t, w.Run(p))
				require.Len(t, w.Host.Snapshot().Guests, c.number)
				unharmed()
				if len(c.stays) == 0 {
					w.Converged()
				}
				again := w.Plan()
				require.Empty(t, again.Steps, "%s", proxmoxtest.Describe(again))
				w.Drop("web-1")
				require.Empty(t, w.Run(w.Plan()))
				unharmed()
			})
		})
	}
}

// TestRestoredUnderAnotherVMIDThanDeclared: it is ours there, PVE cannot renumber, and it
// may be all that is left. It is not thrown away for its number; who wants to keep it
// declares that. An edit of the files means what it says.
func TestRestoredUnderAnotherVMIDThanDeclared(t *testing.T) {
	for name, old := range map[string]string{"restored": "", "made by a program that wrote no VMID": `"born":10050,`} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				n := w.Node("web-1", nil)
				n.Resource.Guest = &model.Guest{VMID: 10050}
				w.Apply()
				ours := w.Guest(10050).Config
				require.Contains(t, ours["description"], `"born":10050,`)
				ours["description"] = strings.Replace(ours["description"], old, "", 1)
				w.Host.Edit(func(e *pve.Edit) {
					e.Delete(10050)
					e.Add(pve.Guest{VMID: 10900, Running: true, Config: ours})
				})
				time.Sleep(time.Minute)
				p := w.Plan()
				require.Empty(t, p.Steps, card(p))
				require.Contains(t, card(p), "vm.web-1 is not replaced: VM 10900 carries its identity")
				require.Contains(t, card(p), "set vmid = 10900, or remove vmid, to keep it as it is")

				n.Resource.Guest.VMID = 10900
				w.Apply() // now its tag is signed for this VMID
				w.Converged()
				w.VM("web-1").Tags = []string{"new"}
				w.Apply()
				n.Resource.Guest.VMID = 10050
				p = w.Plan()
				require.Equal(t, []string{"replace vm.web-1"}, steps(p), card(p))
				require.Equal(t, model.ClassDataLoss, p.Steps[0].Class)
				require.Equal(t, []plan.Change{{Path: "vmid", Before: int64(10900), After: int64(10050), Class: model.ClassDataLoss}}, p.Steps[0].Changes)
			})
		})
	}
}

// TestRecycledBetweenPlanAndRemoval: what stands there when the step comes is proved anew.
func TestRecycledBetweenPlanAndRemoval(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		step := leaving(w, "")
		w.Host.Edit(func(e *pve.Edit) {
			e.Delete(10000)
			e.Add(pve.Guest{VMID: 10000, Running: true, Config: map[string]string{"name": "theirs"}})
		})
		require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "VM 10000 can no longer be proved to be vm.db (no ownership tag): not changed")
		require.True(t, w.Guest(10000).Running)
	})
}

// TestRecycledDuringTheShutdown: the second proof, right before the order, is what
// saves whoever got the VMID while ours was shutting down.
func TestRecycledDuringTheShutdown(t *testing.T) {
	inTime(t, pve.Config{TaskTimes: map[string]time.Duration{"vzdump": time.Minute}}, func(t *testing.T, w *world) {
		step := leaving(w, "requires_final_backup")
		swap := time.AfterFunc(59*time.Second, func() {
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, ""); e.Set(10000, "description", "mine now") })
		})
		defer swap.Stop()
		require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "no ownership tag")
		require.Equal(t, "mine now", w.Guest(10000).Config["description"])
	})
}

// TestMovedWithinItsCluster is no drift on a node that the host names, and said on another.
func TestMovedWithinItsCluster(t *testing.T) {
	for _, c := range []struct {
		nodes []string
		says  string
	}{
		{[]string{"father", "mother"}, ""},
		{nil, "vm.web-1 is on node mother, which host father does not list (father): it stays managed there"},
	} {
		inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.Site.Hosts["father"].Nodes = c.nodes
			w.Reopen()
			w.Node("web-1", nil)
			w.Apply()
			g := w.Guest(10000)
			g.Node = "mother"
			w.Host.Edit(func(e *pve.Edit) { e.Delete(10000); e.Add(g) })
			time.Sleep(time.Minute)
			p := w.Plan()
			require.Empty(t, p.Steps, card(p))
			if c.says == "" {
				require.Empty(t, p.Findings)
			} else {
				require.Contains(t, card(p), c.says)
			}
			w.VM("web-1").Tags = []string{"new"}
			w.Apply()
			require.Equal(t, "mother", w.Guest(10000).Node)
			require.Contains(t, w.Guest(10000).Config["tags"], "new")
			w.Drop("web-1")
			w.Apply()
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	}
}

// TestTemplateRestoredUnderAnotherVMID is not replaced either. It cannot do without a vmid.
func TestTemplateRestoredUnderAnotherVMID(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.makes("local-lvm")
		w.cloned("web-1", "full")
		w.Apply()
		ours := w.Guest(9000).Config
		w.Host.Edit(func(e *pve.Edit) {
			e.Delete(9000)
			e.Add(pve.Guest{VMID: 9900, Config: ours})
		})
		time.Sleep(time.Minute)
		p := w.Plan()
		require.Empty(t, p.Steps, card(p))
		require.Contains(t, card(p), "template.golden is not replaced: VM 9900 carries its identity, but was created as VMID 9000")
		require.Contains(t, card(p), "set vmid = 9900 to keep it as it is; to have it")
	})
}
