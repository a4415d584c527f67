package proxmox_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestDamagedMarkMakesNoSecondGuest: an ownership tag that cannot be read, or that a newer
// program wrote, is no reason to make the guest again.
func TestDamagedMarkMakesNoSecondGuest(t *testing.T) {
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

// TestWhatIsNotProvedToBeTheDiskIsNotAttached: neither beside volumes that the ownership tag does
// not know, nor where it does not say which one it was.
func TestWhatIsNotProvedToBeTheDiskIsNotAttached(t *testing.T) {
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

// TestStepsWithoutADigestProveAnew: between plan and step the guest went and somebody
// else's got its VMID.
func TestStepsWithoutADigestProveAnew(t *testing.T) {
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
				require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "no longer be proved")
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
			Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
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

// TestAddressesStayWhereACardChanges: they are a key of their own, whose text is left as
// somebody wrote it while it means what the files say.
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

func TestNotesBelowTheMarkAreDriftAndNoLoss(t *testing.T) {
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

// TestNoTwoCardsInOneSlot: somebody takes the first card out, and the files name a
// further one before it: each has a slot of its own, the first the one it had.
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
