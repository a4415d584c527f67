package proxmox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// interrupted is a change of web-1 that an agent does not live to see the end of.
type interrupted struct {
	before func(*world)
	change func(*world)
	once   []string // types of tasks of which exactly one is started
	holds  func(*testing.T, *world)
}

// atAnyMoment lets the agent die every second of the change, and another one go on.
func (c interrupted) atAnyMoment(t *testing.T) {
	zfs := pve.Storage{Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}}
	for at := 500 * time.Millisecond; at < 14*time.Second; at += time.Second {
		inTime(t, pve.Config{TaskTime: 4 * time.Second, Storages: append(pve.DefaultStorages(), zfs)}, func(t *testing.T, w *world) {
			if c.before != nil {
				c.before(w)
				w.Apply()
				time.Sleep(time.Minute)
			}
			c.change(w)
			done := len(w.Host.Snapshot().Tasks)
			dying, cancel := context.WithTimeout(t.Context(), at)
			defer cancel()
			for _, s := range w.Plan().Steps {
				if w.Driver.Apply(dying, s) != nil {
					break
				}
			}
			w.Reopen()
			settle(w)
			var started []string
			for _, task := range w.Host.Snapshot().Tasks[done:] {
				started = append(started, task.Type)
				require.Equal(t, "OK", task.Status, "%s: %s", at, task.Type)
			}
			for _, kind := range c.once {
				n := 0
				for _, s := range started {
					if s == kind {
						n++
					}
				}
				require.Equal(t, 1, n, "%s at %s: %v", kind, at, started)
			}
			if c.holds != nil {
				c.holds(t, w)
			}
			for _, g := range w.Host.Snapshot().Guests {
				require.Empty(t, g.Lock)
				require.Empty(t, g.Config["unused0"])
			}
			require.LessOrEqual(t, len(slices.DeleteFunc(w.Host.Snapshot().Guests, func(g pve.Guest) bool { return g.Name() != "web-1" })), 1)
		})
	}
}

// TestRestartedInTheMiddleOfATask: the agent dies at any moment of a step while PVE
// goes on with it. The next one knows nothing; it finds the task by the guest, waits
// for it or says that it is under way, and orders nothing twice.
func TestRestartedInTheMiddleOfATask(t *testing.T) {
	for name, c := range map[string]interrupted{
		"create": {
			change: func(w *world) { w.Node("web-1", nil) },
			once:   []string{"qmcreate"},
		},
		"clone": {
			before: func(w *world) { w.Template(9000, "golden") },
			change: func(w *world) { w.Node("web-1", func(v *guest.VM) { v.Template = "golden" }) },
			once:   []string{"qmclone"},
		},
		"resize": {
			before: func(w *world) { w.Node("web-1", nil) },
			change: func(w *world) { w.VM("web-1").Disk = 20 },
			once:   []string{"resize"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["scsi0"], "size=20G")
			},
		},
		"move": {
			before: func(w *world) { w.Node("web-1", nil) },
			change: func(w *world) { w.VM("web-1").Disks = []guest.Disk{{Name: "root", Storage: "local-zfs"}} },
			once:   []string{"qmmove"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["scsi0"], "local-zfs:")
				for _, v := range w.Host.Snapshot().Volumes["local-lvm"] {
					require.NotContains(t, v.ID, "disk-0", "the old one went, once")
				}
			},
		},
		"restart": {
			before: func(w *world) { w.Node("web-1", func(v *guest.VM) { v.Restart = "allowed" }) },
			change: func(w *world) { w.VM("web-1").Cores = 4 },
			once:   []string{"qmreboot"},
			holds: func(t *testing.T, w *world) {
				require.Empty(t, w.Guest(10000).Pending)
			},
		},
		"stop": {
			before: func(w *world) { w.Node("web-1", nil) },
			change: func(w *world) { w.VM("web-1").Power = "stopped" },
			once:   []string{"qmshutdown"},
		},
		"start": {
			before: func(w *world) { w.Node("web-1", func(v *guest.VM) { v.Power = "stopped" }) },
			change: func(w *world) { w.VM("web-1").Power = "running" },
			once:   []string{"qmstart"},
		},
		"destroy": {
			before: func(w *world) { w.Node("web-1", nil) },
			change: func(w *world) { w.Drop("web-1") },
			once:   []string{"qmdestroy"},
		},
		"replace": {
			before: func(w *world) { w.Template(9000, "golden"); w.Node("web-1", nil) },
			change: func(w *world) {
				n := w.Site.Manifests["web"].Nodes[0]
				n.Decomm, n.Resource.Needs = &model.Decomm{}, nil
				w.VM("web-1").Image, w.VM("web-1").Template = "", "golden"
			},
			once: []string{"qmdestroy", "qmclone"},
		},
	} {
		t.Run(name, c.atAnyMoment)
	}
}

// TestStoppedInTheMiddleOfARestart: the agent dies while a VM restarts, and the files want
// the VM stopped, or gone, when the next one looks. The start that PVE still owes the VM
// does not undo that.
func TestStoppedInTheMiddleOfARestart(t *testing.T) {
	for name, change := range map[string]func(*world){
		"stopped": func(w *world) { w.VM("web-1").Power = "stopped" },
		"removed": func(w *world) { w.Drop("web-1") },
	} {
		t.Run(name, func(t *testing.T) {
			for at := 500 * time.Millisecond; at < 14*time.Second; at += time.Second {
				inTime(t, pve.Config{TaskTime: 2 * time.Second}, func(t *testing.T, w *world) {
					w.Node("web-1", func(v *guest.VM) { v.Restart = "allowed" })
					w.Apply()
					time.Sleep(time.Minute)
					w.VM("web-1").Cores = 4
					dying, cancel := context.WithTimeout(t.Context(), at)
					defer cancel()
					_ = w.Driver.Apply(dying, w.Plan().Steps[0]) // at some moments it is done
					w.Reopen()
					change(w)
					p := w.Plan()
					if len(p.Steps) == 0 { // it looked while the VM was down, as wanted; the next pass sees it run
						time.Sleep(time.Minute)
						p = w.Plan()
					}
					require.Len(t, p.Steps, 1, "%s", at)
					require.Empty(t, w.Run(p), "%s", at)
					time.Sleep(time.Minute)
					for _, g := range w.Host.Snapshot().Guests {
						require.False(t, g.Running, "%s", at)
					}
					w.Converged()
				})
			}
		})
	}
}
