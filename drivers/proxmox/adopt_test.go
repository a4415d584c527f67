package proxmox_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const (
	handVM, handCT = 104, 105
	handUUID       = "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"
	handMAC        = "BC:24:11:00:00:99"
)

// addByHand adds a VM and a container that were made by hand, and nodes that adopt them.
func (w *world) addByHand() {
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: handVM, Kind: "qemu", Config: map[string]string{
			"name": "Web.example", "cores": "2", "memory": "2048", "scsihw": "lsi", "boot": "order=scsi1", "scsi1": "local-lvm:vm-104-disk-0,size=10G", "scsi3": "local-lvm:vm-104-disk-1,size=516M",
			"virtio0": "local-lvm:vm-104-disk-2,size=4G", "net2": "e1000=BC:24:11:00:00:55,bridge=vmbr0", "smbios1": "uuid=" + handUUID, "description": "made by hand\nkeep", "tags": "old", "onboot": "1",
		}})
		e.Add(pve.Guest{VMID: handCT, Kind: "lxc", Config: map[string]string{
			"hostname": "cache", "arch": "amd64", "ostype": "debian", "memory": "512", "rootfs": "local-lvm:vm-105-disk-0,size=2G", "mp3": "local-lvm:vm-105-disk-1,mp=/srv/,size=1G",
			"net0": "name=wan,bridge=vmbr0,hwaddr=" + handMAC + ",type=veth", "features": "fuse=1,nesting=1",
		}})
	})
	w.adopting("web", "vm", handVM, handUUID, &guest.VM{
		Name: "Web.example", Cores: 2, Memory: 2048, Power: "stopped", Description: "made by hand\nkeep", Tags: []string{"old"}, OnBoot: true, Sockets: 1, Restart: "never",
		Disks: []guest.Disk{{Name: "root", Size: 10, Storage: "local-lvm"}, {Name: "scsi3", Storage: "local-lvm"}}, NICs: []guest.NIC{{Name: "net2", Model: "e1000"}}, Options: map[string]string{"scsihw": "lsi"},
	})
	w.adopting("cache", "ct", handCT, handMAC, &guest.CT{
		Memory: 512, Swap: 512, Power: "stopped", Restart: "never", Features: []string{"fuse", "nesting"},
		Disks: []guest.CTDisk{{Name: "root", Size: 2}, {Name: "mp3", Size: 1, Path: "/srv"}}, NICs: []guest.CTNIC{{Name: "net0"}},
	})
}

// adopting declares a node that adopts.
func (w *world) adopting(name, kind string, vmid int, identity string, spec any) *model.Node {
	m := w.Site.Manifests["web"]
	r := &model.Resource{Addr: model.Address{Kind: kind, Name: name}, Spec: spec, Manifest: "web", Node: name, Guest: &model.Guest{VMID: vmid}}
	n := &model.Node{Name: name, Block: name, Type: kind, Resource: r, Manifest: m, Mode: "push", VMID: vmid, Adopt: identity}
	m.Nodes = append(m.Nodes, n)
	return n
}

// node is a declared node.
func (w *world) node(name string) *model.Node {
	for _, n := range w.Site.Manifests["web"].Nodes {
		if n.Name == name {
			return n
		}
	}
	w.T.Fatalf("no node %s", name)
	return nil
}

// Adoption writes description and tags, and giving up takes both away again.
func TestAdoptAndGiveUp(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
				w.addByHand()
				before := map[int]pve.Guest{handVM: w.Guest(handVM), handCT: w.Guest(handCT)}
				p := w.Plan()
				require.Empty(t, p.Findings, "%v", p.Findings)
				require.Equal(t, plan.Summary{Adopt: 2}, p.Summary)
				writes := []string{}
				w.Sees = func(r *http.Request) {
					if r.Method != http.MethodGet {
						writes = append(writes, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api2/json"))
					}
				}
				require.Empty(t, w.Run(p))
				require.ElementsMatch(t, []string{"PUT /nodes/father/qemu/104/config", "PUT /nodes/father/lxc/105/config"}, writes)
				for id, was := range before {
					is := w.Guest(id)
					require.Contains(t, is.Config["description"], was.Config["description"])
					require.Contains(t, is.Config["tags"], "homestak")
					is.Config["description"], is.Config["tags"] = was.Config["description"], was.Config["tags"]
					require.Equal(t, nonEmpty(was.Config), nonEmpty(is.Config))
				}
				w.Converged()

				w.Site.Manifests["web"].Nodes = nil
				w.Site.Removed = model.Removals{{Kind: "vm", Name: "web"}: {}, {Kind: "ct", Name: "cache"}: {}}
				p = w.Apply()
				require.Equal(t, plan.Summary{Forget: 2}, p.Summary)
				for id, was := range before {
					require.Equal(t, was.Config, w.Guest(id).Config)
				}
				w.Converged()
			})
		})
	}
}

// A site without an ownership key can give up what it adopted, although it can destroy nothing.
func TestAdoptAndGiveUpWithoutAKey(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.hasNoKey()
		w.addByHand()
		before := map[int]pve.Guest{handVM: w.Guest(handVM), handCT: w.Guest(handCT)}
		require.Equal(t, plan.Summary{Adopt: 2}, w.Apply().Summary)
		w.Site.Manifests["web"].Nodes = nil
		w.Site.Removed = model.Removals{{Kind: "vm", Name: "web"}: {}, {Kind: "ct", Name: "cache"}: {}}
		require.Equal(t, plan.Summary{Forget: 2}, w.Apply().Summary)
		for id, was := range before {
			require.Equal(t, was.Config, w.Guest(id).Config)
		}
	})
}

// An older ownership tag above that of a guest does not count once it is given up.
func TestGiveUpWithAnOlderTag(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.addByHand()
		w.Apply()
		tagged := w.Guest(handVM).Config["description"]
		older := `homestak-gitops: {"v":1,"site":"home","type":"vm","node":"web","owner":"father","uuid":"` + handUUID + `"}`
		w.Host.Edit(func(e *pve.Edit) { e.Set(handVM, "description", older+"\n"+tagged) })
		w.Site.Manifests["web"].Nodes = nil
		w.Site.Removed = model.Removals{{Kind: "vm", Name: "web"}: {}, {Kind: "ct", Name: "cache"}: {}}
		require.Equal(t, plan.Summary{Forget: 2}, w.Apply().Summary)
		require.NotContains(t, w.Guest(handVM).Config["description"], "homestak-gitops:")
		require.Contains(t, w.Guest(handVM).Config["description"], "made by hand\nkeep")
	})
}

// nonEmpty is a configuration without empty values.
func nonEmpty(c map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range c {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

func TestAdoptRefuses(t *testing.T) {
	set := func(vmid int, key, value string) func(*world) {
		return func(w *world) { w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, key, value) }) }
	}
	for name, c := range map[string]struct {
		change func(*world)
		says   []string
	}{
		"another UUID":        {set(handVM, "smbios1", "uuid=11111111-2222-3333-4444-555555555555"), []string{"vm.web is not adopted: the UUID of VM 104 is 11111111-2222-3333-4444-555555555555, and adopt says " + handUUID}},
		"no UUID":             {set(handVM, "smbios1", "serial=x"), []string{"vm.web is not adopted: VM 104 has no UUID"}},
		"another MAC address": {set(handCT, "net0", "name=wan,bridge=vmbr0,hwaddr=BC:24:11:00:00:98,type=veth"), []string{"ct.cache is not adopted: the MAC address of its first nic of CT 105 is BC:24:11:00:00:98, and adopt says " + handMAC}},
		"another kind": {func(w *world) {
			w.node("cache").VMID, w.node("cache").Resource.Guest.VMID = handVM, handVM
			w.Drop("web")
		}, []string{"ct.cache is not adopted: VMID 104 is a VM"}},
		"a lock":                   {set(handVM, "lock", "backup"), []string{"vm.web is not adopted: "}},
		"a template":               {set(handVM, "template", "1"), []string{"vm.web is not adopted: VM 104 is a template"}},
		"a tag of another site":    {set(handVM, "description", `homestak-gitops: {"v":1,"site":"office","type":"vm","node":"web","owner":"father","uuid":"`+handUUID+`"}`), []string{"vm.web is not adopted: VM 104 belongs to site office"}},
		"a tag of another owner":   {set(handVM, "description", `homestak-gitops: {"v":1,"site":"home","type":"vm","node":"web","owner":"mother","uuid":"`+handUUID+`"}`), []string{"vm.web is not adopted: VM 104 belongs to mother"}},
		"another size":             {set(handVM, "cores", "4"), []string{"vm.web is not adopted: cores is 4, and the files say 2"}},
		"a nic that is undeclared": {set(handVM, "net0", "virtio=BC:24:11:00:00:56,bridge=vmbr0"), []string{"vm.web is not adopted: it has nic.net0 (bridge vmbr0, mac BC:24:11:00:00:56, model virtio), which no file declares"}},
		"no guest": {func(w *world) {
			w.node("web").VMID, w.node("web").Resource.Guest.VMID, w.VM("web").Name = 199, 199, "other"
		}, []string{"vm.web is not adopted: there is no guest with VMID 199 on this host"}},
		"long notes": {func(w *world) {
			w.Host.Edit(func(e *pve.Edit) { e.Set(handVM, "description", strings.Repeat("n", 8190)) })
		}, []string{"vm.web is not adopted: with the ownership tag its description has"}},
		"a restored copy": {func(w *world) {
			w.Host.Edit(func(e *pve.Edit) {
				e.Add(pve.Guest{VMID: 150, Kind: "qemu", Config: map[string]string{"name": "copy", "memory": "512", "smbios1": "uuid=" + handUUID}})
			})
		}, []string{"vm.web is not adopted: VM 104 and VM 150 have the identity " + handUUID}},
		"pending": {func(w *world) {
			w.Host.Edit(func(e *pve.Edit) { e.Start(handVM) })
			w.Root(http.MethodPut, fmt.Sprintf("/nodes/father/qemu/%d/config", handVM), url.Values{"cores": {"3"}})
			w.node("web").Resource.Spec.(*guest.VM).Power = "running"
		}, []string{"vm.web is not adopted: pending until its next restart: cores 2 → 3", "vm.web is not adopted: cores is 3, and the files say 2"}},
	} {
		for _, version := range versions {
			t.Run(name+" "+version, func(t *testing.T) {
				inTime(t, pve.Config{Version: version}, func(t *testing.T, w *world) {
					w.addByHand()
					c.change(w)
					before := w.Host.Snapshot()
					p := w.Plan()
					var errs []string
					for _, f := range p.Findings {
						if strings.Contains(f.Summary, "not adopted") {
							errs = append(errs, f.Summary)
							require.True(t, f.Detail != "" || strings.Contains(f.Summary, "`"), "what to do: %s", f.Summary)
						}
					}
					require.Len(t, errs, len(c.says), "%v", p.Findings)
					for _, says := range c.says {
						require.Contains(t, strings.Join(errs, "\n"), says)
					}
					for _, s := range p.Steps {
						require.Equal(t, plan.Adopt, s.Action, "%s", proxmoxtest.Describe(p))
						require.NotContains(t, errs[0], s.Address.String())
					}
					require.Equal(t, before.Guests, w.Host.Snapshot().Guests)
				})
			})
		}
	}
}

// A data centre may keep tags from a token: the error says so.
func TestAdoptWithoutTheRightToTheTag(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.addByHand()
		w.Drop("cache")
		w.Root(http.MethodPut, "/cluster/options", url.Values{"user-tag-access": {"user-allow=none"}})
		token := w.tokenOf("ops@pve", map[string]string{"/vms": guestPrivs})
		p, before := w.Plan(), w.Guest(handVM).Config
		require.Len(t, p.Steps, 1)
		d, err := proxmox.Open(proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: token, Transport: w.Host, Keys: w.Keys})
		require.NoError(t, err)
		require.ErrorContains(t, d.Apply(t.Context(), p.Steps[0]), "user-tag-access or registered-tags of the data centre keep the token from the tag homestak")
		require.Equal(t, before, w.Guest(handVM).Config)
	})
}

// A change by hand between plan and write is not overwritten, and a change by PVE is no reason to fail.
func TestAdoptRacesWithAnEdit(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*pve.Edit)
		says string
	}{
		"another note": {func(e *pve.Edit) { e.Set(handVM, "description", "someone was here") }, "description: it was changed since the plan was made"},
		"another size": {func(e *pve.Edit) { e.Set(handVM, "cores", "8") }, "cores: it was changed"},
		"another tag":  {func(e *pve.Edit) { e.Set(handVM, "tags", "old;x") }, "tags: it was changed"},
		"a lock":       {func(e *pve.Edit) { e.Set(handVM, "lock", "backup") }, "it is locked by now: backup"},
		"a conversion": {func(e *pve.Edit) { e.Set(handVM, "template", "1") }, "it is a template by now"},
		"another key":  {func(e *pve.Edit) { e.Set(handVM, "balloon", "0") }, ""},
	} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, before the read %v", name, early), func(t *testing.T) {
				inTime(t, pve.Config{}, func(t *testing.T, w *world) {
					w.addByHand()
					w.Drop("cache")
					p := w.Plan()
					require.Len(t, p.Steps, 1)
					if early {
						w.Host.Edit(c.edit)
					}
					done := early
					w.Sees = func(r *http.Request) {
						if r.Method == http.MethodPut && !done {
							done = true
							w.Host.Edit(c.edit)
						}
					}
					failed := w.Run(p)
					if c.says == "" {
						require.Empty(t, failed)
						w.Converged()
						return
					}
					require.ErrorContains(t, failed[p.Steps[0].Address], c.says)
					require.NotContains(t, w.Guest(handVM).Config["description"], "homestak-gitops")
				})
			})
		}
	}
}

// moves lets the guest of a former node be that of another one, as a moved block does.
func (w *world) moves(kind, from, to string) {
	if w.Site.Moved == nil {
		w.Site.Moved = map[model.Address]model.Address{}
	}
	of := func(name string) model.Address { return model.Address{Kind: kind, Name: name} }
	for old, now := range w.Site.Moved {
		if now == of(from) {
			w.Site.Moved[old] = of(to)
		}
	}
	w.Site.Moved[of(from)] = of(to)
	w.Reopen()
}

// rename gives a node another name.
func (w *world) rename(from, to string) {
	n := w.node(from)
	n.Name, n.Block = to, to
	n.Resource.Addr.Name, n.Resource.Node = to, to
}

// A moved guest keeps all but its name.
func TestMoved(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 3}} })
		w.ct("cache", nil)
		w.Apply()
		was := []pve.Guest{w.Guest(10000), w.Guest(10001)}
		w.rename("web", "front")
		w.rename("cache", "store")
		p := w.Plan()
		require.Equal(t, 2, p.Summary.Delete, "%s", proxmoxtest.Describe(p))
		require.Equal(t, 2, p.Summary.Create)
		require.Contains(t, fmt.Sprint(p.Findings), "look like one guest")

		w.moves("vm", "web", "front")
		w.moves("ct", "cache", "store")
		p = w.Plan()
		require.Equal(t, plan.Summary{Update: 2, Unchanged: 2}, p.Summary, "%s", proxmoxtest.Describe(p))
		for _, s := range p.Steps {
			require.Subset(t, []string{"name", "hostname", "mark"}, proxmoxtest.Paths(s))
		}
		require.Empty(t, w.Run(p))
		w.Converged()
		w.Site.Moved = nil
		w.Reopen()
		w.Converged()
		for _, g := range was {
			is := w.Guest(g.VMID)
			for _, key := range []string{"name", "hostname", "description"} {
				require.False(t, is.Config[key] != "" && is.Config[key] == g.Config[key], key)
				is.Config[key] = g.Config[key]
			}
			require.Equal(t, nonEmpty(g.Config), nonEmpty(is.Config))
			require.Equal(t, g.Running, is.Running)
		}
	})
}

// An adopted guest whose node leaves the files is kept, also after its tag was written again, until a block orders its removal.
func TestAdoptedGuestIsKept(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.addByHand()
		w.Apply()
		w.node("web").Decomm = &model.Decomm{Policy: "allow_immediate_destroy"}
		w.node("cache").Decomm = &model.Decomm{Policy: "allow_immediate_destroy"}
		require.Equal(t, 2, w.Apply().Summary.Update)
		w.node("cache").Drift = "report"
		w.Site.Manifests["web"].Nodes = nil
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Contains(t, fmt.Sprint(p.Findings), "vm.web is not deleted: it was adopted, and no node declares it")
		require.Contains(t, fmt.Sprint(p.Findings), "ct.cache is not deleted: it was adopted, and no node declares it")
		w.Site.Removed = model.Removals{{Kind: "vm", Name: "web"}: {Destroy: true}, {Kind: "ct", Name: "cache"}: {Destroy: true}}
		require.Equal(t, plan.Summary{Delete: 2}, w.Apply().Summary)
	})
}

// An adopted container that gets a template to be created from is not replaced.
func TestAdoptedContainerGetsATemplate(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.ct("other", nil)
		w.addByHand()
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(handCT, "unprivileged", "1")
			e.Set(handCT, "features", "nesting=1")
			e.Set(handCT, "cores", "1")
		})
		cache := w.node("cache").Resource.Spec.(*guest.CT)
		cache.Features, cache.Cores, cache.Unprivileged = []string{"nesting"}, 1, true
		p := w.Apply()
		require.Equal(t, 2, p.Summary.Adopt, "%v", p.Findings)
		other := w.node("other").Resource.Spec.(*guest.CT)
		cache.Template = other.Template
		p = w.Plan()
		require.Equal(t, plan.Summary{Update: 1, Unchanged: 3}, p.Summary, "%s", proxmoxtest.Describe(p))
	})
}

// The node of a guest that is only watched can be renamed.
func TestMovedWhileWatched(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.addByHand()
		w.node("web").Drift, w.node("cache").Drift = "report", "report"
		w.node("cache").Resource.Spec.(*guest.CT).Hostname = "cache"
		w.Apply()
		w.rename("web", "front")
		w.rename("cache", "store")
		w.moves("vm", "web", "front")
		w.moves("ct", "cache", "store")
		require.Equal(t, plan.Summary{Update: 2}, w.Apply().Summary)
		w.Site.Moved = nil
		w.Reopen()
		w.Converged()
	})
}

// A site gives a guest to a node that has one: neither is changed.
func TestMovedToANodeWithAGuest(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("a", nil)
		w.Node("b", nil)
		w.Apply()
		w.Drop("a")
		w.moves("vm", "a", "b")
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "2 guests carry the identity of vm.b: neither is changed")
	})
}

// Commits in any order adopt guests, give them up, move and rename their nodes. No request but one for description, tags
// and name ever reaches a guest, and in the end all are as they were.
func TestAdoptMoveAndGiveUpInAnyOrder(t *testing.T) {
	done := map[plan.Action]int{}
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTime(t, pve.Config{Version: versions[seed%2]}, func(t *testing.T, w *world) {
				rnd := rand.New(rand.NewPCG(seed, 7))
				w.addByHand()
				w.node("cache").Resource.Spec.(*guest.CT).Hostname = "cache"
				nodes := slices.Clone(w.Site.Manifests["web"].Nodes)
				before := w.Host.Snapshot().Guests
				w.Site.Manifests["web"].Nodes = nil
				var requests []string
				w.Sees = func(r *http.Request) {
					if r.Method != http.MethodGet {
						requests = append(requests, r.Method+" "+path.Base(r.URL.Path))
					}
				}
				declared := func(n *model.Node) bool { return slices.Contains(w.Site.Manifests["web"].Nodes, n) }
				names := 0
				for range 20 {
					n := nodes[rnd.IntN(len(nodes))]
					old := n.Name
					fresh := func() string { names++; return fmt.Sprintf("n%d", names) }
					undo := func() {}
					switch rnd.IntN(7) {
					case 0: // declared, under its name or another one
						if !declared(n) {
							delete(w.Site.Removed, n.Resource.Addr)
							w.Site.Manifests["web"].Nodes = append(w.Site.Manifests["web"].Nodes, n)
						}
					case 1: // given up
						if declared(n) {
							w.Drop(n.Name)
							w.Site.Removed = model.Removals{n.Resource.Addr: {}}
						}
					case 2: // moved
						if declared(n) {
							w.rename(n.Name, fresh())
							w.moves(n.Type, old, n.Name)
						}
					case 3: // renamed without a block: nothing happens, and the next commit takes it back
						if declared(n) {
							w.rename(n.Name, fresh())
							undo = func() { w.rename(n.Name, old) }
						}
					case 4: // it leaves the files without a block: nothing happens, and the next commit takes it back
						if declared(n) {
							w.Drop(n.Name)
							undo = func() { w.Site.Manifests["web"].Nodes = append(w.Site.Manifests["web"].Nodes, n) }
						}
					case 5: // only watched, or not any more
						n.Drift = map[string]string{"": "report"}[n.Drift]
					case 6: // the blocks are cleared away
						w.Site.Moved, w.Site.Removed = nil, nil
						w.Reopen()
					}
					p := w.Plan()
					for _, s := range p.Steps {
						require.Contains(t, []plan.Action{plan.Adopt, plan.Forget, plan.Update}, s.Action, "%s", proxmoxtest.Describe(p))
						done[s.Action]++
					}
					require.Empty(t, w.Run(p), "%s", proxmoxtest.Describe(p))
					undo()
				}
				w.Site.Removed = model.Removals{}
				for _, n := range nodes {
					w.Site.Removed[n.Resource.Addr] = model.Removed{}
				}
				w.Site.Manifests["web"].Nodes = nil
				w.Apply()
				for _, r := range requests {
					require.Equal(t, "PUT config", r)
				}
				require.Equal(t, before, w.Host.Snapshot().Guests)
			})
		})
	}
	for _, a := range []plan.Action{plan.Adopt, plan.Forget, plan.Update} {
		require.Greater(t, done[a], 20, "the commits reach all of it: %v", done)
	}
}

// An answer that is lost does not say whether PVE wrote the tag: the guest does.
func TestAdoptWithoutAnAnswer(t *testing.T) {
	for _, carriedOut := range []bool{true, false} {
		lost := 0
		inTime(t, pve.Config{Fault: func(r *http.Request) (int, bool) {
			if r.Method != http.MethodPut || lost > 0 {
				return 0, false
			}
			lost++
			return 596, carriedOut
		}}, func(t *testing.T, w *world) {
			w.addByHand()
			p := w.Apply()
			require.Equal(t, plan.Summary{Adopt: 2}, p.Summary)
			require.Equal(t, 1, lost)
			w.Converged()
		})
	}
}
