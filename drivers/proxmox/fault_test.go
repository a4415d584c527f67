package proxmox_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// tale is a story whose requests may fail: it makes its world by the run that it is given,
// and settles each of its chapters.
type tale func(*testing.T, *storyRun)

// tally counts requests, which come from many goroutines.
type tally struct{ all, writes atomic.Int64 }

// counts are those of a tally at one moment.
type counts struct{ all, writes int64 }

// of is how many requests can go wrong that way.
func (c counts) of(effect bool) int64 {
	if effect {
		return c.writes
	}
	return c.all
}

// is counts a request, and reports whether it is the one at that place: of all, or
// with effect of those that write, since a read has none.
func (c *tally) is(r *http.Request, at int64, effect bool) bool {
	n, write := c.all.Add(1), int64(0)
	if r.Method != http.MethodGet {
		write = c.writes.Add(1)
	}
	if effect {
		return write == at && write > 0
	}
	return n == at
}

func (c *tally) add(n counts) {
	c.all.Add(n.all)
	c.writes.Add(n.writes)
}

func (c *tally) now() counts { return counts{c.all.Load(), c.writes.Load()} }

// runWithFaults runs a story once for each request that fails with each status, once
// without and once with effect. Each takes samples: see thinned.
func runWithFaults(t *testing.T, name string, statuses []int, story tale) {
	t.Helper()
	var whole storyRun
	synctest.Test(t, func(t *testing.T) { story(t, &whole) })
	require.Greater(t, len(whole.asked), 12, "there is too little to break")
	require.Greater(t, len(whole.ordered), 3, "there is too little to break")
	t.Logf("%s: %d requests, %d of them write", name, len(whole.asked), len(whole.ordered))
	for i, status := range statuses {
		first, step := thinned(i, len(statuses))
		for _, effect := range []bool{false, true} {
			for _, at := range whole.places(effect, first, step) {
				t.Run(fmt.Sprintf("%s %d effect=%v request %d", name, status, effect, at), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						story(t, &storyRun{way: way{status: status, effect: effect}, at: at, healthy: whole.passes})
					})
				})
			}
		}
	}
}

// TestEveryRequestMayFail faults each request of a story in turn, once without
// and once with effect, and then lets passes go on: they must end converged, with
// nothing doubled and nothing foreign touched.
func TestEveryRequestMayFail(t *testing.T) {
	runWithFaults(t, "life", []int{596, 595, 500, -1}, lifeStory)
}

// lifeStory creates two guests, changes one, removes the other; after each chapter
// passes run until nothing is left to do. Passes may fail, the end state may not.
func lifeStory(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second, Guests: 2})
	others := w.Host.Snapshot().Guests
	w.Node("web-1", nil)
	w.Node("web-2", nil)
	settle(w)
	v := w.VM("web-1")
	v.Memory, v.Restart, v.Disk = 4096, "allowed", 12
	v.Disks = []guest.Disk{{Name: "data", Size: 3}}
	w.Drop("web-2")
	settle(w)

	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others)+1)
	names := map[string]int{}
	for _, g := range s.Guests {
		names[g.Name()]++
		require.Empty(t, g.Lock)
	}
	require.Equal(t, 1, names["web-1"])
	for _, f := range others {
		require.Equal(t, f.Config, w.Guest(f.VMID).Config)
	}
	for _, g := range s.Guests {
		if g.Name() != "web-1" {
			continue
		}
		require.Equal(t, "4096", g.Config["memory"])
		require.Contains(t, g.Config["scsi0"], "size=12G")
		volumes := 0
		for _, v := range s.Volumes["local-lvm"] {
			if v.VMID == g.VMID {
				volumes++
			}
		}
		require.Equal(t, 3, volumes, "root, data, cloud-init: an order repeated would have made another")
	}
}

// chapters are what is done to a site one after the other. What stands before the
// first chapter is made without a fault; between two of them passes run until nothing
// is left to do.
type chapters struct {
	before func(*world)
	then   []func(*world)
	names  []string // of the guests that are there in the end
	holds  func(*testing.T, *world)
	// backups is how many final backups there are in the end.
	backups int
}

// live runs the chapters and holds what must be true after them, whatever went wrong:
// nothing doubled, nothing left over, nothing of others touched, nothing left to do.
func live(t *testing.T, r *storyRun, c chapters) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second, Storages: twoStorages().Storages})
	if c.before != nil {
		c.before(w)
		settle(w)
		time.Sleep(time.Minute) // started guests have booted, and react to a shutdown
	}
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 400, Running: true, Config: map[string]string{"name": "theirs", "memory": "512"}})
		e.Add(pve.Guest{VMID: 401, Kind: "lxc", Running: true, Config: map[string]string{"hostname": "theirs-too", "memory": "512"}})
	})
	others := []pve.Guest{w.Guest(400), w.Guest(401)}
	r.quiet.Store(false)
	for _, chapter := range c.then {
		chapter(w)
		settle(w)
	}
	r.quiet.Store(true)
	w.Converged()

	for _, f := range others {
		is := w.Guest(f.VMID)
		require.Equal(t, []any{f.Config, f.Digest, f.Running}, []any{is.Config, is.Digest, is.Running})
	}
	var names []string
	inUse := map[string]bool{} // all that the configurations name
	for _, g := range w.Host.Snapshot().Guests {
		if g.VMID < 9000 {
			continue
		}
		require.Empty(t, g.Lock, g.VMID)
		for key, value := range g.Config {
			require.False(t, strings.HasPrefix(key, "unused"), "%d has a disk that no file declares: %s", g.VMID, value)
			volume, _, _ := strings.Cut(value, ",")
			inUse[volume] = true
		}
		if g.VMID >= 10000 {
			names = append(names, g.Name())
			require.Empty(t, g.Pending, g.VMID)
		}
	}
	require.ElementsMatch(t, c.names, names)
	for storage, list := range w.Host.Snapshot().Volumes {
		for _, v := range list {
			if v.VMID >= 10000 && v.Content != "backup" {
				require.True(t, inUse[v.ID], "volume %s on %s belongs to no configuration", v.ID, storage)
			}
		}
	}
	require.Len(t, backups(w), c.backups)
	if c.holds != nil {
		c.holds(t, w)
	}
}

// thinned selects the requests that fail in one of several ways: every third, or with two ways every second, and of
// each way others, so that together they cover all requests. HOMESTAK_FAULTS=all uses each way at every request.
func thinned(way, ways int) (first, step int) {
	if everyFault() {
		return 1, stride()
	}
	apart := min(ways, 3)
	return 1 + way%apart, apart * stride()
}

// stride is the distance of the requests that fail. HOMESTAK_FAULTS=few, which make race sets, takes a few of them:
// the race detector makes the sweep ten times as slow, and needs little of it.
func stride() int {
	if os.Getenv("HOMESTAK_FAULTS") == "few" {
		return 97
	}
	return 1
}

// everyFault reports whether each way to fail is wanted at each request, as make faults
// wants it, and not a sample.
func everyFault() bool { return os.Getenv("HOMESTAK_FAULTS") == "all" }

// sweepChapters runs a story once for each way in which each of its requests may fail: refused, unanswered by PVE's
// proxy, cut off, or the last of an agent that dies; without and with its effect. Each way takes every third request,
// unless HOMESTAK_FAULTS=all is set.
func sweepChapters(t *testing.T, c chapters) {
	t.Helper()
	t.Parallel()
	var whole storyRun
	synctest.Test(t, func(t *testing.T) { live(t, &whole, c) })
	require.Greater(t, len(whole.ordered), 5, "there is too little to break")
	t.Logf("%d requests, %d of them write", len(whole.asked), len(whole.ordered))
	for i, how := range []way{{status: 500}, {status: 595}, {status: -1}, {status: 596}, {status: -1, crash: true}} {
		first, step := thinned(i, 5)
		for _, effect := range []bool{false, true} {
			for _, at := range whole.places(effect, first, step) {
				one := way{status: how.status, crash: how.crash, effect: effect}
				name := fmt.Sprintf("status %d, crash %v, effect %v, request %d", one.status, one.crash, effect, at)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						live(t, &storyRun{way: one, at: at, healthy: whole.passes}, c)
					})
				})
			}
		}
	}
}

// TestEveryRequestOfAChangeMayFail: all that can be changed of a guest in place.
func TestEveryRequestOfAChangeMayFail(t *testing.T) {
	sweepChapters(t, chapters{
		before: func(w *world) { w.Node("db", nil) },
		then: []func(*world){
			func(w *world) {
				v := w.VM("db")
				v.Memory, v.Cores, v.Restart, v.Tags = 4096, 4, "allowed", []string{"new"}
				v.Disks = []guest.Disk{{Name: "root", Size: 12, Storage: "local-zfs"}, {Name: "data", Size: 3}}
				v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", VLAN: 7}}
			},
			func(w *world) { w.VM("db").Power = "stopped" },
			func(w *world) {
				w.VM("db").Power, w.VM("db").NICs = "running", nil
			},
		},
		names: []string{"db"},
		holds: func(t *testing.T, w *world) {
			g := w.Guest(10000)
			require.True(t, g.Running)
			require.Equal(t, []string{"4096", "4", "homestak;new", ""}, []string{g.Config["memory"], g.Config["cores"], g.Config["tags"], g.Config["net1"]})
			require.Contains(t, g.Config["scsi0"], "local-zfs:")
			require.Contains(t, g.Config["scsi0"], "size=12G")
			require.Len(t, volumesOf(w, 10000), 3, "root, data, cloud-init")
		},
	})
}

// TestEveryRequestOfAReplacementMayFail: backed up, destroyed, and recreated.
func TestEveryRequestOfAReplacementMayFail(t *testing.T) {
	sweepChapters(t, chapters{
		before: func(w *world) {
			w.Template(9000, "golden")
			w.Node("db", nil).Decomm = &model.Decomm{Policy: "requires_final_backup"}
		},
		then: []func(*world){func(w *world) {
			n := w.Site.Manifests["web"].Nodes[0]
			n.Decomm, n.Resource.Needs = nil, nil
			w.VM("db").Image, w.VM("db").Template = "", "golden"
		}},
		names:   []string{"db"},
		backups: 1,
		holds: func(t *testing.T, w *world) {
			require.True(t, w.Guest(10000).Running)
			_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
			require.Equal(t, "template.golden", m.From)
		},
	})
}

// TestEveryRequestOfALeaveMayFail: a VM and a container go after their final backups.
func TestEveryRequestOfALeaveMayFail(t *testing.T) {
	sweepChapters(t, chapters{
		before: func(w *world) {
			w.Node("db", nil).Decomm = &model.Decomm{Policy: "requires_final_backup"}
			w.ct("cache", nil)
			w.Site.Manifests["web"].Nodes[1].Decomm = &model.Decomm{Policy: "requires_final_backup"}
		},
		then:    []func(*world){func(w *world) { w.Drop("db"); w.Drop("cache") }},
		backups: 2,
	})
}

// TestEveryRequestOfObjectsMayFail: a pool, an image, a template and a Proxmox VE of
// its own come, change, and go.
func TestEveryRequestOfObjectsMayFail(t *testing.T) {
	pool := model.Address{Kind: "pool", Name: "prod"}
	sweepChapters(t, chapters{
		then: []func(*world){
			func(w *world) {
				w.Site.Objects[pool] = &model.Resource{Addr: pool, Spec: &objects.Pool{Host: "father", Comment: "what pays"}}
				w.Site.Hosts["father"].Pool = "prod"
				n := w.Node("inner", nil)
				n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
				w.ct("cache", nil)
			},
			func(w *world) {
				w.Site.Objects[pool].Spec.(*objects.Pool).Comment = "what earns"
				w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image).Checksum = "sha256:" + strings.Repeat("ab", 32)
				w.declare("debian-ct", &guest.Template{URL: "https://images.test/debian-12-standard.tar.zst", Checksum: "sha256:" + strings.Repeat("cd", 32)})
			},
			func(w *world) {
				require.Contains(w.T, w.Host.Snapshot().Pools[0].Comment, "what earns")
				require.ElementsMatch(w.T, []string{"local:import/homestak.home.debian-12.abababababab.qcow2", "local:vztmpl/homestak.home.debian-ct.cdcdcdcdcdcd.tar.zst"}, volumeIDs(w, "local"))
				w.Drop("inner")
				w.Orphans = []string{"inner"}
				w.Drop("cache")
				maps.DeleteFunc(w.Site.Objects, func(a model.Address, _ *model.Resource) bool { return a.Name != "golden" })
				w.Site.Hosts["father"].Pool = ""
			},
		},
		holds: func(t *testing.T, w *world) {
			require.Empty(t, w.Host.Snapshot().Pools)
			require.Empty(t, volumeIDs(w, "local"))
		},
	})
}

// dying is a host on which the nth task of a type dies, with a last word or without any.
func dying(kind string, nth int, silent bool) pve.Config {
	zfs := pve.Storage{Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}}
	return pve.Config{
		TaskTime: 4 * time.Second, Deaths: []pve.Death{{Type: kind, Nth: nth, Silent: silent}}, Storages: append(pve.DefaultStorages(), zfs),
	}
}

// A creation that dies leaves a guest with nothing but its lock, whether the result of the task is known or not. The
// step fails and names the command that removes the guest, and so does every plan until then. The guest keeps its
// VMID, and the declared one is created once, with another VMID.
func TestACreateThatDies(t *testing.T) {
	for kind, declare := range map[string]func(*world){
		"qmcreate": func(w *world) { w.Node("web-1", nil) },
		"qmclone": func(w *world) {
			w.Template(9000, "golden")
			w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		},
		"vzcreate": func(w *world) { w.ct("web-1", nil) },
	} {
		for _, silent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s silent=%v", kind, silent), func(t *testing.T) {
				inTime(t, dying(kind, 1, silent), func(t *testing.T, w *world) {
					declare(w)
					tool := map[bool]string{true: "pct", false: "qm"}[kind == "vzcreate"]
					clears := fmt.Sprintf("`%s unlock 10000 && %s destroy 10000`", tool, tool)
					var said []string
					for _, err := range w.Run(w.Plan()) {
						said = append(said, err.Error())
					}
					require.Len(t, said, 1)
					require.Contains(t, said[0], clears)
					left := w.Guest(10000)
					require.NotEmpty(t, left.Lock)
					require.False(t, left.Running)

					time.Sleep(time.Minute)
					w.Reopen()
					p := w.Apply()
					require.Equal(t, 10001, p.Steps[len(p.Steps)-1].VMID)
					require.Contains(t, card(p), clears)
					made := w.Guest(10001)
					require.True(t, made.Running)
					require.Equal(t, left, w.Guest(10000))
					p = w.Plan()
					require.Empty(t, p.Steps, card(p))
					require.Contains(t, card(p), clears)

					w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
					w.Converged()
					require.Equal(t, made, w.Guest(10001))
				})
			})
		}
	}
}

// TestATaskThatDies: if a task dies in the middle of a change, the step fails. Once the administrator has removed a lock that
// stayed, later passes complete the change, and nothing exists twice.
func TestATaskThatDies(t *testing.T) {
	for kind, c := range map[string]struct {
		change func(*world)
		holds  func(*testing.T, *world)
	}{
		"qmstart": {
			func(w *world) { w.VM("db").Power = "running" },
			func(t *testing.T, w *world) { require.True(t, w.Guest(10000).Running) },
		},
		"resize": {
			func(w *world) { w.VM("db").Disk = 20 },
			func(t *testing.T, w *world) { require.Contains(t, w.Guest(10000).Config["scsi0"], "size=20G") },
		},
		"qmmove": {
			func(w *world) { w.VM("db").Disks = []guest.Disk{{Name: "root", Storage: "local-zfs"}} },
			func(t *testing.T, w *world) { require.Contains(t, w.Guest(10000).Config["scsi0"], "local-zfs:") },
		},
		"vzdump": {
			func(w *world) { w.Drop("db") },
			func(t *testing.T, w *world) {
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Len(t, backups(w), 1)
				require.True(t, backups(w)[0].Protected)
			},
		},
		"qmdestroy": {
			func(w *world) { w.Drop("db") },
			func(t *testing.T, w *world) {
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Len(t, backups(w), 1)
			},
		},
	} {
		for _, silent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s silent=%v", kind, silent), func(t *testing.T) {
				nth := map[bool]int{true: 2, false: 1}[kind == "resize"] // the first is of the making: an image is smaller than its disk
				inTime(t, dying(kind, nth, silent), func(t *testing.T, w *world) {
					w.Node("db", func(v *guest.VM) { v.Power = "stopped" }).Decomm = &model.Decomm{Policy: "requires_final_backup"}
					w.Apply()
					c.change(w)
					failed := w.Run(w.Plan())
					require.Len(t, failed, 1)
					require.Contains(t, failed[dbAddr].Error(), kind)
					if kind == "vzdump" {
						require.NotContains(t, tasksOf(w, 10000), "qmdestroy")
					}
					for _, g := range w.Host.Snapshot().Guests {
						if g.Lock == "" {
							continue
						}
						time.Sleep(time.Minute)
						p := w.Plan()
						require.Empty(t, p.Steps, card(p))
						require.Contains(t, card(p), "`qm unlock 10000` on node father clears it")
						w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") })
					}
					settle(w)
					c.holds(t, w)
					for _, g := range w.Host.Snapshot().Guests {
						require.False(t, slices.ContainsFunc(volumesOf(w, 10000), func(id string) bool {
							return !strings.Contains(fmt.Sprint(g.Config), id)
						}), "%v of %v", volumesOf(w, 10000), g.Config)
					}
				})
			})
		}
	}
}

// TestWarningsAreNotFailures: PVE ends a task that did its work with the number of what
// it would have liked otherwise, here a firmware without a disk of its own.
func TestWarningsAreNotFailures(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{"bios": "ovmf"} })
		w.Apply()
		tasks := w.Host.Snapshot().Tasks
		last := tasks[len(tasks)-1]
		require.Equal(t, []string{"qmstart", "WARNINGS: 1"}, []string{last.Type, last.Status})
		require.True(t, w.Guest(10000).Running)
		w.Converged()
	})
}

// PVE deals with the keys of one change in the order of a hash, and writes each before it
// looks at the next (qemu-server, PVE/API2/Qemu.pm, $update_vm_api). A disk that cannot
// be made leaves any of the others behind, made or not made. So these stories are run
// of many machines: of each the order is another one.

const machines = 12

// withFull is a host with a storage on which there is no room.
func withFull() pve.Config {
	full := pve.Storage{Name: "full", Type: "lvmthin", Content: []string{"images", "rootdir"}, Size: 1}
	return pve.Config{TaskTime: time.Second, Storages: append(pve.DefaultStorages(), full)}
}

// someDisks are three, the middle one of which cannot be made.
func someDisks() []guest.Disk {
	return []guest.Disk{{Name: "a", Size: 3}, {Name: "b", Size: 4, Storage: "full"}, {Name: "c", Size: 5}}
}

// corrected puts the disk that could not be created where there is room.
func corrected(v *guest.VM) {
	for i := range v.Disks {
		if v.Disks[i].Name == "b" {
			v.Disks[i].Storage = "local-lvm"
		}
	}
}

// TestDisksOfAHalfMadeChangeAreNotMadeTwice: of three disks that are added at once one
// finds no room. However often that is tried, those that were made are known by it.
func TestDisksOfAHalfMadeChangeAreNotMadeTwice(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				for i := range machines {
					w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) { v.Power = power })
				}
				w.Apply()
				w.Converged()
				before := len(w.volumesOf("local-lvm", 10000))
				for i := range machines {
					w.VM(fmt.Sprintf("db-%d", i)).Disks = someDisks()
				}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), machines)
				}
				for i := range machines {
					corrected(w.VM(fmt.Sprintf("db-%d", i)))
				}
				w.Apply()
				w.Converged()
				for i := range machines {
					require.Len(t, w.volumesOf("local-lvm", 10000+i), before+3, "%v", w.Guest(10000+i).Config)
				}
			})
		})
	}
}

// TestHalfMadeClones: what a copy of a template lacks is made by one request, and some of
// it fails. It stays known as ours, nothing is made twice, and in the end it is complete.
func TestHalfMadeClones(t *testing.T) {
	for _, sort := range []string{"plain", "seeded"} {
		t.Run(sort, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				for i := range machines {
					w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) {
						v.Template, v.Disks = "golden", someDisks()
						if sort == "seeded" {
							v.UserData = "#cloud-config\n{}\n"
						}
					})
				}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), machines)
				}
				require.Len(t, w.Host.Snapshot().Guests, machines+1)
				for i := range machines {
					corrected(w.VM(fmt.Sprintf("db-%d", i)))
				}
				w.Apply()
				if sort == "seeded" {
					time.Sleep(15 * time.Minute) // of made-up time: their first boots are over
					w.Apply()
				}
				w.Converged()
				for i := range machines {
					g := w.Guest(10000 + i)
					require.Len(t, w.volumesOf("local-lvm", 10000+i), map[string]int{"plain": 5, "seeded": 4}[sort], "%v", g.Config)
					require.Contains(t, g.Config["ide2"], map[string]string{"plain": "-cloudinit,media=cdrom", "seeded": "none,media=cdrom"}[sort])
					require.True(t, g.Running)
				}
			})
		})
	}
}

// TestMountPointThatFindsNoRoom: of a change of a container nothing is written where a part of
// it failed, and what was made for the others stays on the storage (pve-container,
// PVE/API2/LXC/Config.pm, update_vm). However often it is tried, nothing is left behind.
func TestMountPointThatFindsNoRoom(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Power = power })
				w.Apply()
				w.Converged()
				before := len(w.volumesOf("local-lvm", 10000))
				ct.Disks = []guest.CTDisk{{Name: "a", Size: 3, Path: "/a"}, {Name: "b", Size: 4, Path: "/b", Storage: "full"}, {Name: "c", Size: 5, Path: "/c"}}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), 1, "%v %v", w.Guest(10000).Config, w.Guest(10000).Pending)
				}
				ct.Disks[1].Storage = "local-lvm"
				if p := w.Plan(); len(w.Run(p)) > 0 {
					w.Apply()
				}
				w.Converged()
				require.Len(t, w.volumesOf("local-lvm", 10000), before+3, "%v", w.Guest(10000).Config)
			})
		})
	}
}

// TestCopyOfAContainerThatFindsNoRoom: the same while a copy of a template gets its mount
// points. It stays bare until it has all of them, and none of them is made twice.
func TestCopyOfAContainerThatFindsNoRoom(t *testing.T) {
	inTime(t, withFull(), func(t *testing.T, w *world) {
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		ct := w.ct("cache", func(c *guest.CT) {
			c.Template = "golden-ct"
			c.Disks = []guest.CTDisk{{Name: "a", Size: 3, Path: "/a"}, {Name: "b", Size: 4, Path: "/b"}, {Name: "c", Size: 5, Path: "/c", Storage: "full"}}
		})
		for range 3 {
			require.Len(t, w.Run(w.Plan()), 1)
		}
		ct.Disks[2].Storage = "local-lvm"
		w.Apply()
		w.Converged()
		require.Len(t, w.volumesOf("local-lvm", 10000), 4, "%v", w.Guest(10000).Config)
	})
}

// TestDiskThatLeavesBesideWhatIsRefused: PVE notes what is detached before it looks at the
// other keys, and does it with the next change, whatever became of this one. So the ownership tag
// tells by then which volume it was: the disk comes back with it, or its data go.
func TestDiskThatLeavesBesideWhatIsRefused(t *testing.T) {
	for _, data := range []string{"kept", "removed"} {
		for _, power := range []string{"running", "stopped"} {
			t.Run(data+" "+power, func(t *testing.T) {
				inTime(t, withFull(), func(t *testing.T, w *world) {
					for i := range machines {
						w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) {
							v.Power, v.Disks = power, []guest.Disk{{Name: "a", Size: 3, Remove: data == "removed"}}
						})
					}
					w.Apply()
					w.Converged()
					volume := map[int]string{}
					for i := range machines {
						volume[i] = w.Guest(10000 + i).Config["scsi1"]
						v := w.VM(fmt.Sprintf("db-%d", i))
						v.Disks, v.Cores, v.OnBoot = nil, 3, true
						v.Options = map[string]string{"boot": "order=scsi0;net5"} // a card that is not there
					}
					require.Len(t, w.Run(w.Plan()), machines)
					for i := range machines {
						v := w.VM(fmt.Sprintf("db-%d", i))
						v.Options = nil
						if data == "kept" {
							v.Disks = []guest.Disk{{Name: "a", Size: 3}}
						}
					}
					w.Apply()
					w.Converged()
					for i := range machines {
						left := w.volumesOf("local-lvm", 10000+i)
						require.Len(t, left, map[string]int{"kept": 3, "removed": 2}[data], "%v", w.Guest(10000+i).Config)
						if data == "kept" {
							require.Equal(t, volume[i], w.Guest(10000 + i).Config["scsi1"])
						}
					}
				})
			})
		}
	}
}
