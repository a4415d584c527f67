package proxmox_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestADamagedTagCreatesNoSecondGuest: an ownership tag that cannot be read, or that a newer
// program wrote, is no reason to make the guest again.
func TestADamagedTagCreatesNoSecondGuest(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"broken":        func(s string) string { return s[:len(s)-5] },
		"newer":         func(s string) string { return strings.Replace(s, `"v":2`, `"v":3`, 1) },
		"site stripped": func(s string) string { return strings.Replace(s, `"site":"home",`, "", 1) },
		"another type":  func(s string) string { return strings.Replace(s, `"type":"vm"`, `"type":"pool"`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("web-1", nil)
				w.Apply()
				was := w.Guest(10000).Config["description"]
				require.NotEqual(t, was, damage(was))
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", damage(was)) })
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.True(t, p.Findings.HasErrors())
				require.Contains(t, p.Findings[0].Summary+p.Findings[0].Detail, "10000")
			})
		})
	}
}

// TestDiskDetachedByHandComesBack: the ownership tag knows its volume, so that very one is attached.
func TestDiskDetachedByHandComesBack(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) {
					v.Power, v.Disks = power, []guest.Disk{{Name: "data", Size: 5}, {Name: "logs", Size: 2, Bus: "virtio"}}
				})
				w.Apply()
				all, root, data, logs := volumesOf(w, 10000), file(w.Guest(10000).Config["scsi0"]), file(w.Guest(10000).Config["scsi1"]), file(w.Guest(10000).Config["virtio0"])
				w.detach(10000, "scsi1", "unused0")
				w.detach(10000, "virtio0", "unused1")
				p := w.Plan()
				require.Len(t, p.Steps, 1, foundIn(p))
				require.Contains(t, p.Steps[0].Reason, "disk data was detached by hand, and is attached again with its data ("+data+")")
				require.Empty(t, w.Run(p))
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000))
				require.Equal(t, []string{data, logs}, []string{file(w.Guest(10000).Config["scsi1"]), file(w.Guest(10000).Config["virtio0"])})

				w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
				w.detach(10000, "scsi0", "unused0") // and the disk it boots from, which PVE takes out of the order
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "boot", "order=net0") })
				w.Apply()
				w.Converged()
				require.Equal(t, root, file(w.Guest(10000).Config["scsi0"]))
				require.Equal(t, "order=scsi0;net0", w.Guest(10000).Config["boot"])
				require.Equal(t, all, volumesOf(w, 10000))
			})
		})
	}
}

// detach takes a volume out of a slot as PVE does it at rest.
func (w *world) detach(vmid int, slot, unused string) {
	w.T.Helper()
	volume := file(w.Guest(vmid).Config[slot])
	require.NotEmpty(w.T, volume)
	w.Host.Edit(func(e *pve.Edit) {
		e.Set(vmid, slot, "")
		e.Set(vmid, unused, volume)
	})
}

// TestUnverifiedDisksAreNotAttached: neither beside volumes that the ownership tag does
// not know, nor where it does not say which one it was.
func TestUnverifiedDisksAreNotAttached(t *testing.T) {
	for name, hand := range map[string]func(*world){
		"another volume beside it": func(w *world) {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "unused7", "local-lvm:vm-10000-disk-9") })
		},
		"only another volume": func(w *world) {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "unused0", "local-lvm:vm-10000-disk-9") })
		},
		"a mark of old": func(w *world) {
			notes, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
			require.Empty(w.T, notes)
			m.Volumes = nil
			line := w.signed(10000, m)
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", line) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5}} })
				w.Apply()
				w.detach(10000, "scsi1", "unused0")
				hand(w)
				writes := w.Host.Snapshot().Writes
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.True(t, p.Findings.HasErrors())
				require.Contains(t, foundIn(p), "disk data was detached by hand")
				require.Contains(t, foundIn(p), "unused")
				require.Contains(t, foundIn(p), "`qm set 10000 --scsi1 VOLUME` on node father")
				require.Equal(t, writes, w.Host.Snapshot().Writes)
			})
		})
	}
}

// TestStepsWithoutADigestVerifyTheGuest: between plan and step the guest was removed, and an unmanaged one got its VMID.
func TestStepsWithoutADigestVerifyTheGuest(t *testing.T) {
	for name, edit := range map[string]func(*guest.VM){
		"stop": func(v *guest.VM) { v.Power = "stopped" },
		"move": func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "root", Storage: "local-zfs"}} },
	} {
		t.Run(name, func(t *testing.T) {
			host := twoStorages()
			host.TaskTime = time.Second
			inTime(t, host, func(t *testing.T, w *world) {
				w.hasNoKey()
				w.Node("web-1", nil)
				w.Apply()
				edit(w.VM("web-1"))
				p := w.Plan()
				require.Len(t, p.Steps, 1)
				w.Host.Edit(func(e *pve.Edit) {
					e.Delete(10000)
					e.Add(pve.Guest{VMID: 10000, Kind: "qemu", Running: true, Config: map[string]string{"name": "stranger", "scsi0": "local-lvm:vm-10000-disk-0,size=4G"}})
				})
				writes := w.Host.Snapshot().Writes
				failed := w.Run(p)
				require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "no longer be verified")
				require.True(t, w.Guest(10000).Running)
				require.Equal(t, writes, w.Host.Snapshot().Writes)
			})
		})
	}
}

// TestProtectionSetMeanwhileStopsNothing: a guest that cannot be removed is not shut down first.
func TestProtectionSetMeanwhileStopsNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Drop("web-1")
		p := w.Plan()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "protection", "1") })
		failed := w.Run(p)
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "protect")
		require.True(t, w.Guest(10000).Running)
	})
}

func TestDisksOfAProtectedGuestStay(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Protection, v.Disks = true, []guest.Disk{{Name: "data", Size: 5}} })
		w.Apply()
		w.VM("db").Disks, w.VM("db").Protection = nil, false // PVE judges by what stands there, not by what is asked along
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Summary, "protected")
	})
}

// TestHiddenIsNotGone: a guest that was taken out of the token's pool looks removed,
// and is not.
func TestHiddenIsNotGone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Drop("web-1")
		p := w.Plan()
		answer := func(r *http.Request, status int, body string) (*http.Response, error) {
			return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
		d, err := proxmox.Open(proxmox.Config{
			Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
			Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				switch path := r.URL.Path; {
				case strings.HasSuffix(path, "/access/permissions"):
					return answer(r, http.StatusOK, `{"data":{"/pool/prod":{"VM.Audit":1}}}`)
				case strings.HasSuffix(path, "/cluster/resources"):
					return answer(r, http.StatusOK, `{"data":[{"type":"node","node":"father","status":"online"}]}`)
				case strings.Contains(path, "/qemu/10000"):
					return answer(r, http.StatusForbidden, `{"data":null,"message":"Permission check failed (/vms/10000, VM.Audit)\n"}`)
				default:
					return w.Host.RoundTrip(r)
				}
			}),
		})
		require.NoError(t, err)
		require.ErrorContains(t, d.Apply(t.Context(), p.Steps[0]), "may not see it any more")
		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		require.NoError(t, d.Apply(t.Context(), p.Steps[0]), "now it is gone")
	})
}

// TestPoolThatChangedHands is not written to.
func TestPoolThatChangedHands(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		addr := model.Address{Kind: "pool", Name: "prod"}
		spec := &objects.Pool{Host: "father", Comment: "what pays\n"}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: spec}
		w.Apply()
		w.Converged() // blanks at the end are no difference
		spec.Comment = "what earns"
		p := w.Plan()
		for _, write := range []func() (string, error){
			func() (string, error) { return w.Driver.Remove(t.Context(), "/pools/prod") },
			func() (string, error) {
				return w.Driver.Post(t.Context(), "/pools", map[string]any{"poolid": "prod", "comment": "theirs"})
			},
		} {
			_, err := write()
			require.NoError(t, err)
		}
		require.ErrorContains(t, w.Run(p)[addr], "not managed any more")
		require.Equal(t, "theirs", w.Host.Snapshot().Pools[0].Comment)
	})
}

// TestCloneThatDiedIsNamed: the ownership tag is there already, but so is the lock that no
// token can lift. It is neither changed nor made a second time.
func TestCloneThatDiedIsNamed(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "clone") })
		w.VM("web-1").Cores = 8
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Unmanaged, 1)
		require.True(t, p.Unmanaged[0].Unfinished)
		require.Contains(t, p.Unmanaged[0].Fix, "qm unlock 10000")
	})
}

// TestAddressesStayWhereACardChanges: addresses have a key of their own, whose text stays as it was written by hand while it
// means what the files say.
func TestAddressesStayWhereACardChanges(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP6: "fd00::5/64"}} })
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "ipconfig0", "ip6=FD00:0:0::5/64,ip=dhcp") })
		w.Converged()
		w.VM("web-1").NICs[0].VLAN = 7
		w.Apply()
		require.Equal(t, "ip6=FD00:0:0::5/64,ip=dhcp", w.Guest(10000).Config["ipconfig0"])
		require.Contains(t, w.Guest(10000).Config["net0"], "tag=7")
		w.Converged()
	})
}

func TestNotesBelowTheTagAreDriftAndNoLoss(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web-1", nil)
		w.Apply()
		before := w.Guest(10000).Config["description"]
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", before+"\nask Ann before a restart") })
		p := w.Apply()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		require.Equal(t, []string{"description"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, before, w.Guest(10000).Config["description"])
		w.Converged()
	})
}

func TestSlotTakenSinceThePlanIsNotOverwritten(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Disks = []guest.Disk{{Name: "data", Size: 5}}
		p := w.Plan()
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/config", map[string]any{"scsi1": "local-lvm:7"})
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		byHand := w.Guest(10000).Config["scsi1"]
		require.Contains(t, byHand, "size=7G")

		failed := w.Run(p)
		require.ErrorContains(t, failed[p.Steps[0].Address], "plan again")
		require.Equal(t, byHand, w.Guest(10000).Config["scsi1"])
		w.Apply()
		require.Equal(t, byHand, w.Guest(10000).Config["scsi1"], "the next pass takes a free slot")
		w.Converged()
	})
}

// TestNoTwoCardsInOneSlot: the first card was removed by hand, and the files insert another one before it. Each gets its own
// slot, and the first one its old slot.
func TestNoTwoCardsInOneSlot(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan"}} })
		ct := w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan"}, {Name: "dmz"}} })
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "net0", "")
			e.Set(10000, "net1", "")
			e.Set(10001, "net0", "")
			e.Set(10001, "net1", "")
		})
		for _, g := range w.Host.Snapshot().Guests { // of the container the card that proves it stays
			if g.Kind == "lxc" {
				w.Host.Edit(func(e *pve.Edit) {
					e.Set(g.VMID, "net0", "name=eth0,bridge=vmbr0,hwaddr="+macOf(g.Config["description"])+",ip=dhcp,type=veth")
				})
			}
		}
		w.VM("web-1").NICs = []guest.NIC{{Name: "wan", VLAN: 7}, {Name: "lan"}}
		ct.NICs = []guest.CTNIC{{Name: "lan"}, {Name: "wan", VLAN: 7}, {Name: "dmz", VLAN: 9}}
		w.Apply()
		w.Converged()
		for _, g := range w.Host.Snapshot().Guests {
			require.NotEmpty(t, g.Config["net0"], g.Name())
			require.Contains(t, g.Config["net1"]+g.Config["net2"], "tag=7", g.Name())
			require.NotContains(t, g.Config["net0"], "tag=7", g.Name())
			if g.Kind == "lxc" {
				require.Contains(t, g.Config["net1"], "tag=9", "dmz keeps its slot")
			}
		}
	})
}

// macOf is the address in a container's mark.
func macOf(description string) string {
	_, rest, _ := strings.Cut(description, `"mac":"`)
	mac, _, _ := strings.Cut(rest, `"`)
	return mac
}

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
	unmanaged := func(vmid int, name string) pve.Guest {
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
			hand:  func(e *pve.Edit, _ map[string]string) { e.Delete(10000); e.Add(unmanaged(10000, "theirs")) },
			steps: []string{"create vm.web-1"}, says: []string{"foreign vm 10000 theirs: no ownership tag"}, stays: []int{10000}, number: 2,
		},
		"its VMID and name were recycled": {
			hand: func(e *pve.Edit, _ map[string]string) { e.Delete(10000); e.Add(unmanaged(10000, "web-1")) },
			says: []string{"vm.web-1 is not created: vm 10000 \"web-1\" exists already and is unmanaged (no ownership tag, but the name of vm.web-1)", "rename one of the two"}, stays: []int{10000}, number: 1,
		},
		"a clone has its mark": {
			hand: func(e *pve.Edit, ours map[string]string) {
				e.Add(pve.Guest{VMID: 10777, Config: with(ours, "smbios1", "uuid=5ec0dcb1-0000-4000-8000-000000000001")})
			},
			says: []string{"has the ownership tag of vm.web-1, but is another machine (its uuid is not the one in the tag): a copy"}, stays: []int{10777}, number: 2,
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
			steps: []string{"update vm.web-1: name tags"}, number: 1,
		},
		"its description was stripped": {
			hand: func(e *pve.Edit, _ map[string]string) { e.Set(10000, "description", "") },
			says: []string{"exists already and is unmanaged (no ownership tag, but the name of vm.web-1)", "if it is vm.web-1 and only lost its ownership tag, these lines in its node adopt it as it is:", "rename one of the two"}, stays: []int{10000}, number: 1,
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
		"kept by an administrator": {
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
				require.Contains(t, card(p), "vm.web-1 is not replaced: VM 10900 has its identity")
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

// TestVMIDRecycledAfterThePlan: the guest at the VMID is verified again when the step runs.
func TestVMIDRecycledAfterThePlan(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		step := leaving(w, "")
		w.Host.Edit(func(e *pve.Edit) {
			e.Delete(10000)
			e.Add(pve.Guest{VMID: 10000, Running: true, Config: map[string]string{"name": "theirs"}})
		})
		require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "VM 10000 can no longer be verified as vm.db (no ownership tag): not changed")
		require.True(t, w.Guest(10000).Running)
	})
}

// TestRecycledDuringTheShutdown: a guest that got the VMID while ours was shutting down is saved by the second verification,
// right before the request to destroy.
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
		{nil, "drift: vm.web-1 is on node mother, not on nodes of host father (father): it stays managed there"},
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
		require.Contains(t, card(p), "template.golden is not replaced: VM 9900 has its identity, but was created as VMID 9000")
		require.Contains(t, card(p), "set vmid = 9900 to keep it as it is; to have it")
	})
}

// TestRenamedUnreadableGuestsAreNotCreated: while the configuration of a guest cannot be read, a new name that it was given by
// hand does not show whether it is managed.
func TestRenamedUnreadableGuestsAreNotCreated(t *testing.T) {
	var dark atomic.Bool // the agent's requests run side by side
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/qemu/10000/")}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "name", "renamed") })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Unknown)
		dark.Store(false)
		w.Apply()
		require.Equal(t, "web-1", w.Guest(10000).Config["name"])
		require.Len(t, w.Host.Snapshot().Guests, 1)
	})
}

// TestCopyBesideAnUnreadOriginalIsNotStarted: a restored backup has the same tag and identity as its original. While the
// original cannot be read, the program cannot see that there are two.
func TestCopyBesideAnUnreadOriginalIsNotStarted(t *testing.T) {
	var dark atomic.Bool // as above
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/qemu/10000/")}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 10001, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Unknown)
		w.Drop("web-1")
		require.Empty(t, w.Plan().Steps, "nor is it removed")
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "name", "renamed")
			e.Set(10001, "name", "renamed")
		})
		time.Sleep(20 * time.Second)
		require.Empty(t, w.Plan().Steps, "whatever both are called")
	})
}

// TestCopiesAreCalledWhatTheyAre: of containers PVE's tools have other names.
func TestCopiesAreCalledWhatTheyAre(t *testing.T) {
	var dark atomic.Bool // as above
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/lxc/10000/")}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 10001, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		require.Contains(t, card(w.Plan()), "CT 10001 has its identity, and so may CT 10000 of the same name, which cannot be read")
	})
}

// TestCopyKnownOnlyByItsName: a restored backup without our tag, outside of the
// site's ranges, of a guest that left the files. Only its name says that it is to be read.
func TestCopyKnownOnlyByItsName(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "tags", "") })
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 30000, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		w.Drop("web-1")
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Unmanaged, 2)
		require.Contains(t, p.Unmanaged[0].Why, "one of 2 guests with the identity of vm.web-1")
	})
}

func unreadable(dark *atomic.Bool, path string) func(*http.Request) (int, bool) {
	return func(r *http.Request) (int, bool) {
		if dark.Load() && strings.Contains(r.URL.Path, path) {
			return 595, false
		}
		return 0, false
	}
}

// TestAnotherVMIDIsARemoval: what keeps a guest from being removed keeps it from being
// recreated under another VMID.
func TestAnotherVMIDIsARemoval(t *testing.T) {
	for word, edit := range map[string]func(*model.Node, *guest.VM){
		"decommission": func(n *model.Node, _ *guest.VM) { n.Decomm = &model.Decomm{Policy: "requires_migration_first"} },
		"protected":    func(_ *model.Node, v *guest.VM) { v.Protection = true },
	} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			n := w.Node("web-1", nil)
			edit(n, w.VM("web-1"))
			w.Apply()
			n.Resource.Guest.VMID = 10050
			p := w.Plan()
			require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
			require.Contains(t, p.Findings[0].Summary, word)
		})
	}
}

// after are the steps that one waits for.
func after(t *testing.T, p *plan.Plan, a model.Address) []model.Address {
	t.Helper()
	i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Address == a })
	require.GreaterOrEqual(t, i, 0, a)
	return p.Steps[i].After
}

// TestARenameTakesItsAddressOver: the new guest comes when the old one, which runs with
// the same static address or MAC, is gone; and not at all while that one stays.
func TestARenameTakesItsAddressOver(t *testing.T) {
	for name, makes := range map[string]func(w *world, name string){
		"vm, address": func(w *world, name string) {
			w.Node(name, func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.7/24"}} })
		},
		"vm, MAC": func(w *world, name string) {
			w.Node(name, func(v *guest.VM) {
				v.NICs = []guest.NIC{{Name: "lan", IP: "dhcp", MAC: "bc:24:11:00:00:07"}}
			})
		},
		"ct, address": func(w *world, name string) {
			w.ct(name, func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", IP: "10.0.0.7/24"}} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				makes(w, "homeassistant")
				w.Apply()
				w.Converged()
				kind := name[:2]
				w.Drop("homeassistant")
				makes(w, "hass")
				p := w.Plan()
				require.Len(t, p.Findings, 1)
				require.Equal(t, kind+".homeassistant is destroyed and "+kind+".hass created, and they look like one guest", p.Findings[0].Summary)
				require.Contains(t, after(t, p, model.Address{Kind: kind, Name: "hass"}), model.Address{Kind: kind, Name: "homeassistant"})

				w.Site.Suspended = []string{"web"} // of which it is left now
				m := w.Site.Manifests["web"]
				other := *m
				other.Name = "db"
				delete(w.Site.Manifests, "web")
				w.Site.Manifests["db"] = &other
				for _, n := range other.Nodes {
					n.Manifest, n.Resource.Manifest = &other, "db"
				}
				p = w.Plan()
				require.Contains(t, foundIn(p), "error "+kind+".hass is not created: the ")
				require.Contains(t, foundIn(p), " of nic.lan is that of "+kind+".homeassistant (VMID 10000), which stays and runs | two guests")
				require.NotContains(t, kindsOf(p), "hass")
			})
		})
	}
}

func kindsOf(p *plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.Address.Name)
	}
	return out
}

// tokenOf makes a user with some rights, and a token of that user.
func (w *world) tokenOf(user string, acl map[string]string) string {
	w.T.Helper()
	w.Root(http.MethodPost, "/access/users", url.Values{"userid": {user}})
	for path, privs := range acl {
		role := strings.Split(user, "@")[0] + strings.ReplaceAll(path, "/", "-")
		w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {role}, "privs": {privs}})
		w.Root(http.MethodPut, "/access/acl", url.Values{"path": {path}, "users": {user}, "roles": {role}})
	}
	var doc struct{ Data struct{ Value string } }
	require.NoError(w.T, json.Unmarshal([]byte(w.As(w.Host.Token(), http.MethodPost, "/access/users/"+user+"/token/gitops", url.Values{"privsep": {"0"}})), &doc))
	return user + "!gitops=" + doc.Data.Value
}

// guestPrivs are the rights of the documented role on guests, and those to clone a template.
const guestPrivs = "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.PowerMgmt"

// least is a token with the documented rights, and without those on a node unless audits.
func (w *world) least(audits bool) string {
	node := "Sys.AccessNetwork"
	if audits {
		node += ",Sys.Audit"
	}
	return w.tokenOf("homestak@pve", map[string]string{
		"/vms": guestPrivs, "/storage/local-lvm": "Datastore.AllocateSpace", "/storage/tank": "Datastore.AllocateSpace",
		"/storage/local": "Datastore.Allocate,Datastore.AllocateTemplate,Datastore.Audit", "/sdn/zones/localnetwork": "SDN.Use", "/nodes/father": node,
	})
}

// reopenAs makes a new driver with another token.
func (w *world) reopenAs(token string) {
	d, err := proxmox.Open(proxmox.Config{Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: token, Transport: w.Host})
	require.NoError(w.T, err)
	w.Driver = d
}

// unowned is a stopped, unmanaged VM with a disk.
func (w *world) unowned(vmid int) {
	w.Root(http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {strconv.Itoa(vmid)}, "name": {"hers"}, "scsi0": {"tank:2"}})
	time.Sleep(2 * time.Second)
}

// TestTasksOfOtherUsersBlockNoStep: a task of another user runs for an hour. The pass makes all of its changes
// meanwhile. A guest without a VMID waits only if the task makes a guest in the site's range, since that may be the same guest.
func TestTasksOfOtherUsersBlockNoStep(t *testing.T) {
	all := []string{"create vm.comes", "create vm.elsewhere", "delete vm.leaves", "update vm.stays: onboot"}
	waits := []string{"create vm.elsewhere", "delete vm.leaves", "update vm.stays: onboot"}
	begins := map[string]func(w *world, token, vmid string){
		"clone": func(w *world, token, vmid string) {
			w.As(token, http.MethodPost, "/nodes/father/qemu/60000/clone", url.Values{"newid": {vmid}, "full": {"1"}, "name": {"copy"}})
		},
		"create": func(w *world, token, vmid string) {
			w.As(token, http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {vmid}, "name": {"new"}, "scsi0": {"tank:2"}})
		},
		"restore": func(w *world, token, vmid string) {
			w.As(token, http.MethodPost, "/nodes/father/qemu", url.Values{"vmid": {vmid}, "archive": {backups(w)[0].ID}, "storage": {"tank"}})
		},
		"migration": func(w *world, token, _ string) {
			w.As(token, http.MethodPost, "/nodes/father/qemu/60000/migrate", url.Values{"target": {"mother"}, "with-local-disks": {"1"}})
		},
	}
	for name, c := range map[string]struct {
		work, vmid string
		audits     bool
		steps      []string
		seen       string // what the plan says of the guest
	}{
		"clone":                        {"clone", "69997", true, all, "is being created by task qmclone of root@pam"},
		"clone, tasks unseen":          {"clone", "69997", false, all, "no task of this token works on it"},
		"clone in range":               {"clone", "10050", true, all, "is being created by task qmclone of root@pam"}, // no node is a clone of that guest
		"clone in range, unseen":       {"clone", "10050", false, all, "no task of this token works on it"},
		"create":                       {"create", "69997", true, all, "is being created by task qmcreate of root@pam"},
		"create, tasks unseen":         {"create", "69997", false, all, "no task of this token works on it"},
		"create in range":              {"create", "10050", true, waits, "vm 10050 is being created by task qmcreate of root@pam!other, and may be this guest"},
		"restore":                      {"restore", "69997", true, all, "is being created by task qmrestore of root@pam"},
		"restore, tasks unseen":        {"restore", "69997", false, all, "no task of this token works on it"},
		"restore in range":             {"restore", "10050", true, waits, "vm 10050 is being created by task qmrestore of root@pam!other, and may be this guest"},
		"restore in range of a kind":   {"restore", "20050", true, all, "is being created by task qmrestore of root@pam"}, // where only containers live
		"migration":                    {"migration", "", true, all, ""},
		"migration, tasks unseen":      {"migration", "", false, all, ""},
		"restore under a declared one": {"restore", "30000", true, []string{"create vm.comes", "delete vm.leaves", "update vm.stays: onboot"}, "vm 30000 is being created"},
	} {
		t.Run(name, func(t *testing.T) {
			tank := pve.Storage{Name: "tank", Type: "zfspool", Content: []string{"images", "rootdir"}}
			times := map[string]time.Duration{}
			inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second, TaskTimes: times, Storages: append(pve.DefaultStorages(), tank)}, func(t *testing.T, w *world) {
				var doc struct{ Data struct{ Value string } }
				require.NoError(t, json.Unmarshal([]byte(w.As(w.Host.Token(), http.MethodPost, "/access/users/root@pam/token/other", url.Values{"privsep": {"0"}})), &doc))
				colleague := "root@pam!other=" + doc.Data.Value
				w.unowned(60000)
				w.Root(http.MethodPost, "/nodes/father/vzdump", url.Values{"vmid": {"60000"}, "storage": {"local"}})
				time.Sleep(time.Minute)
				w.reopenAs(w.least(c.audits))
				w.ct("cache", nil)
				w.Site.Manifests["web"].Nodes[0].Resource.Guest.Choose = []model.VMIDRange{{Name: "cts", From: 20000, To: 20099}}
				w.Node("leaves", nil)
				w.Node("stays", nil)
				w.Apply()
				time.Sleep(time.Minute)

				for _, kind := range []string{"qmclone", "qmcreate", "qmrestore", "qmigrate"} {
					times[kind] = time.Hour
				}
				begins[c.work](w, colleague, c.vmid)
				time.Sleep(2 * time.Minute)
				w.Host.Snapshot() // the task is at work by now
				clear(times)
				w.Drop("leaves")
				w.VM("stays").OnBoot = true
				w.Node("comes", nil)
				w.Node("elsewhere", nil).Resource.Guest.VMID = 30000
				p := w.Plan()
				require.ElementsMatch(t, c.steps, steps(p), card(p))
				require.Contains(t, card(p), c.seen)
				if len(c.steps) == len(all) {
					require.Empty(t, p.Unknown, card(p))
					require.False(t, p.Findings.HasErrors(), card(p))
				} else {
					require.Len(t, p.Unknown, 2, card(p))
					for _, u := range p.Unknown {
						if u.VMID != 0 {
							require.Len(t, u.Withheld, 1)
							require.Equal(t, p.Unknown[1-indexOf(p.Unknown, u.Scope)].Scope, u.Withheld[0].String())
						}
					}
				}
				began := time.Now()
				require.Empty(t, w.Run(p))
				require.Less(t, time.Since(began), 10*time.Minute)
				if c.vmid != "" {
					id, err := strconv.Atoi(c.vmid)
					require.NoError(t, err)
					require.NotEmpty(t, w.Guest(id).Lock, "the colleague's task is still at work")
				} else {
					require.Equal(t, "migrate", w.Guest(60000).Lock)
				}
				time.Sleep(2 * time.Hour)
				if c.vmid == "30000" {
					require.Contains(t, card(w.Plan()), `vm 30000 "hers" exists already and is unmanaged`)
					return
				}
				w.Apply()
				w.Converged()
			})
		})
	}
}

func indexOf(list []model.Unknown, scope string) int {
	for i, u := range list {
		if u.Scope == scope {
			return i
		}
	}
	return -1
}
