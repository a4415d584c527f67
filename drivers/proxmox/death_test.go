package proxmox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// dying is a host on which the nth task of a type dies, with a last word or without any.
func dying(kind string, nth int, silent bool) pve.Config {
	zfs := pve.Storage{Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}}
	return pve.Config{
		TaskTime: 4 * time.Second, Deaths: []pve.Death{{Type: kind, Nth: nth, Silent: silent}}, Storages: append(pve.DefaultStorages(), zfs),
	}
}

// TestACreateThatDies leaves a guest with nothing in it but its lock, be it that the
// task says how it ended or that nobody knows it any more. That is no success: the step
// fails and names what clears it, and so does every plan until somebody does. It keeps
// its VMID meanwhile, and what is wanted is made, once, under another one.
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

// TestATaskThatDies in the middle of a change is no change that was made: the step
// fails, and what follows brings the guest to what is wanted, once whoever runs the
// host took away a lock that stayed. Nothing is doubled.
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

// TestWarningsAreNoFailure: PVE ends a task that did its work with the number of what
// it would have liked otherwise, here a firmware without a disk of its own.
func TestWarningsAreNoFailure(t *testing.T) {
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
