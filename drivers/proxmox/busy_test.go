package proxmox_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestLockedGuestIsTemporary(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		p := w.Plan()
		w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "backup") })
		err := w.Driver.Apply(t.Context(), p.Steps[0])
		require.ErrorContains(t, err, "locked (backup)")
		var busy interface{ Temporary() bool }
		require.True(t, errors.As(err, &busy) && busy.Temporary())

		unlock := time.AfterFunc(2*time.Second, func() { w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") }) })
		defer unlock.Stop()
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{}, apply.Retry(w.Driver.Apply, apply.Backoff{})) {
			require.NoError(t, r.Err)
		}
		w.Converged()
	})
}

// TestALockedGuestIsLeftOut: what would fail for a lock that is there already is no step.
// The step that another one of this token works on waits for that.
func TestALockedGuestIsLeftOut(t *testing.T) {
	for lock, steps := range map[string]int{"backup": 0, "migrate": 0, "suspended": 1, "": 1} {
		inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
			w.Node("web-1", nil)
			w.Apply()
			w.VM("web-1").Tags = []string{"new"}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, lock) })
			p := w.Plan()
			require.Len(t, p.Steps, steps, lock)
			if steps == 0 {
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Error, p.Findings[0].Severity)
				require.Contains(t, p.Findings[0].Summary, "vm.web-1 is not changed: VM 10000 is locked ("+lock+"), and no visible task works on it: if its task died, `qm unlock 10000` on node father clears it")
				w.Drop("web-1")
				require.Empty(t, w.Plan().Steps)
			}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") })
			w.Apply()
			w.Converged()
		})
	}
}

// TestALockOfOurOwnTaskIsWaitedFor as before: it ends by itself.
func TestALockOfOurOwnTaskIsWaitedFor(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		_, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": 10000, "storage": "local"})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, "backup", w.Guest(10000).Lock)
		p := w.Plan()
		require.Len(t, p.Steps, 1)
		require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]), "it reads the guest again and goes on by itself")
		w.Converged()
	})
}

func TestHostThatVanishesDuringATaskIsSaid(t *testing.T) {
	var gone atomic.Bool
	fault := func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "/qemu") && r.Method == http.MethodPost {
			gone.Store(true)
			return 0, false
		}
		if gone.Load() {
			return -1, false
		}
		return 0, false
	}
	inTime(t, pve.Config{TaskTime: 10 * time.Minute, Fault: fault}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		began := time.Now()
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "the host has not answered for")
		require.Less(t, time.Since(began), 20*time.Minute)
	})
}

// TestGuestThatIsMadeMeanwhile: the task that makes it ends between the look at the guest
// and that at the tasks. It is no half-made one, and not made a second time.
func TestGuestThatIsMadeMeanwhile(t *testing.T) {
	for why, lost := range map[string]bool{"was being created until a moment ago": false, "cannot be read any more": true} {
		t.Run(why, func(t *testing.T) {
			var looks, asked atomic.Bool
			fault := func(r *http.Request) (int, bool) {
				switch {
				case !looks.Load():
				case strings.HasSuffix(r.URL.Path, "/nodes/father/tasks"):
					asked.Store(true)
					time.Sleep(10 * time.Second)
				case lost && asked.Load():
					return http.StatusInternalServerError, false
				}
				return 0, false
			}
			inTime(t, pve.Config{TaskTime: 10 * time.Second, Fault: fault}, func(t *testing.T, w *world) {
				w.ct("cache", nil)
				p := w.Plan()
				require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]), "its template")
				short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				require.Error(t, w.Driver.Apply(short, p.Steps[1]), "whoever ordered it is gone")
				looks.Store(true)
				p = w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.NotEmpty(t, p.Unknown)
				require.Contains(t, p.Unknown[0].Why, why)
				looks.Store(false)
				w.Apply()
				require.Len(t, w.Host.Snapshot().Guests, 1)
				w.Converged()
			})
		})
	}
}

// TestALockThatGoesDuringALookHoldsNothing: the list of guests comes first. What worked
// on this one is done, so neither is it left out nor is it said that its making died.
func TestALockThatGoesDuringALookHoldsNothing(t *testing.T) {
	for lock, before := range map[string]string{"create": "/qemu/10000/pending", "backup": "/nodes/father/tasks"} {
		var w *world
		looks := false
		fault := func(r *http.Request) (int, bool) {
			if looks && strings.HasSuffix(r.URL.Path, before) {
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") })
			}
			return 0, false
		}
		inTime(t, pve.Config{Fault: fault}, func(t *testing.T, fresh *world) {
			w = fresh
			w.Node("web-1", nil)
			w.Apply()
			w.VM("web-1").Tags = []string{"new"}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, lock) })
			looks = true
			p := w.Plan()
			require.Len(t, p.Steps, 1, lock)
			require.Empty(t, p.Findings, lock)
			require.Empty(t, w.Run(p))
			w.Converged()
		})
	}
}

// TestAHibernatedGuestIsResumedFirst: only then PVE changes it.
func TestAHibernatedGuestIsResumedFirst(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) {
			e.Stop(10000)
			e.Lock(10000, "suspended")
		})
		w.VM("web-1").Tags = []string{"new"}
		w.Apply()
		require.Empty(t, w.Guest(10000).Lock)
		require.True(t, w.Guest(10000).Running)
		w.Converged()
	})
}

// TestAHibernatedGuestThatShallNotRunIsLeftAlone: PVE would refuse each change in each
// pass. The plan says what it is and what the ways on are, one of which costs data.
func TestAHibernatedGuestThatShallNotRunIsLeftAlone(t *testing.T) {
	for name, edit := range map[string]func(*world){
		"edited":   func(w *world) { w.VM("web-1").Tags = []string{"new"} },
		"replaced": func(w *world) { w.VM("web-1").Image, w.VM("web-1").Template = "", "golden" },
		"removed":  func(w *world) { w.Drop("web-1") },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				w.Node("web-1", func(v *guest.VM) { v.Power = "stopped" })
				w.Apply()
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "suspended") })
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Warning, p.Findings[0].Severity, "as wanted: nothing is refused")
				edit(w)
				p = w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Error, p.Findings[0].Severity)
				require.Contains(t, p.Findings[0].Summary, "VM 10000 is hibernated (lock suspended): PVE refuses changes and removal until it has run again")
				require.Contains(t, p.Findings[0].Summary, "`qm unlock 10000` on node father, which loses what it had in memory")
				if name == "edited" { // the way on
					w.VM("web-1").Power = "running"
					w.Apply()
					w.VM("web-1").Power = "stopped"
					w.Apply()
					w.Converged()
				}
			})
		})
	}
}

// TestGrowthOfAnEarlierRunIsAwaited and not ordered again; the same run does what is left
// of its step by itself.
func TestGrowthOfAnEarlierRunIsAwaited(t *testing.T) {
	c := pve.Config{TaskTime: time.Second, TaskTimes: map[string]time.Duration{"resize": 28 * time.Second}}
	inTime(t, c, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Disks = srv(5) })
		w.Apply()
		ct.Disks[0].Size = 9
		dying, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.Error(t, w.Driver.Apply(dying, w.Plan().Steps[0]))
		w.Reopen()
		ct.Swap = 64
		p := w.Plan()
		require.Equal(t, []string{"swap", "disk.data.size"}, proxmoxtest.Paths(p.Steps[0]))
		require.Empty(t, w.Run(p))
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=9G")
		require.Equal(t, "64", w.Guest(10000).Config["swap"])
		grown := 0
		for _, task := range w.Host.Snapshot().Tasks {
			if task.Type == "resize" {
				grown++
			}
		}
		require.Equal(t, 1, grown)
		w.Converged()
	})
}

// TestWhatSomebodyChangedMeanwhileIsNotPartOfTheStep: only what the plan showed is done
// without another plan.
func TestWhatSomebodyChangedMeanwhileIsNotPartOfTheStep(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		p := w.Plan()
		_, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": 10000, "storage": "local"})
		require.NoError(t, err)
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "cores", "7") })
		require.ErrorContains(t, w.Driver.Apply(t.Context(), p.Steps[0]), "plan again")
		require.NotContains(t, w.Guest(10000).Config["tags"], "new")
	})
}
