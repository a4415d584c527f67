package proxmox_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
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
		time.Sleep(time.Minute) // what was started has booted, and obeys
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
			require.False(t, strings.HasPrefix(key, "unused"), "%d has a disk that nobody wants: %s", g.VMID, value)
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

// thinned are the places of the faults of one way of several that the driver cannot
// tell from each other: every third, so that together they take all, unless
// HOMESTAK_FAULTS=all wants each of them everywhere.
func thinned(way int) (first, step int) {
	if everyFault() {
		return 1, stride
	}
	return 1 + way%3, 3 * stride
}

// everyFault reports whether each way to fail is wanted at each request, as make faults
// wants it, and not a sample.
func everyFault() bool { return os.Getenv("HOMESTAK_FAULTS") == "all" }

// sweepChapters tells a story once for each way in which each of its requests may go
// wrong: refused, unanswered by PVE's proxy, cut off, or the last of an agent that
// dies; without its work done, and with it if it has any. Of the ways that the driver
// cannot tell from another one, each takes every third place, unless
// HOMESTAK_FAULTS=all wants them all.
func sweepChapters(t *testing.T, c chapters) {
	t.Helper()
	t.Parallel()
	var whole storyRun
	synctest.Test(t, func(t *testing.T) { live(t, &whole, c) })
	require.Greater(t, len(whole.ordered), 5, "there is too little to break")
	t.Logf("%d requests, %d of them write", len(whole.asked), len(whole.ordered))
	for i, how := range []way{{status: 500}, {status: 595}, {status: -1}, {status: 596}, {status: -1, crash: true}} {
		first, step := 1, stride
		if i < 3 {
			first, step = thinned(i)
		}
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
