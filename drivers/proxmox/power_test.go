package proxmox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// restartable makes vm.db, which may be restarted, and lets it come up.
func restartable(w *world) {
	w.T.Helper()
	w.Node("db", func(v *guest.VM) { v.Restart = "allowed" })
	w.Apply()
	time.Sleep(time.Minute)
}

const opsToken = "ops@pve!agent=secret"

// lessAudit takes from the driver's token the right to see other people's tasks.
func lessAudit(w *world) {
	w.T.Helper()
	privs := "VM.Audit,VM.PowerMgmt,VM.Allocate,VM.Config.CPU,VM.Config.Disk,VM.Config.Memory,VM.Config.Options,VM.Config.HWType,VM.Config.Network,VM.Config.Cloudinit,VM.Config.CDROM"
	w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {"Less"}, "privs": {privs + ",Datastore.AllocateSpace,Datastore.Audit,SDN.Use"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Less"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Administrator"}, "delete": {"1"}})
}

// process is the id of a VM's process; 0 while it does not run.
func (w *world) process(vmid int) int {
	w.T.Helper()
	r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("https://pve/api2/json/nodes/father/qemu/%d/status/current", vmid), http.NoBody)
	require.NoError(w.T, err)
	r.Header.Set("Authorization", "PVEAPIToken="+w.Host.Token())
	res, err := w.Host.RoundTrip(r)
	require.NoError(w.T, err)
	defer func() { require.NoError(w.T, res.Body.Close()) }()
	var doc struct{ Data struct{ PID int } }
	require.NoError(w.T, json.NewDecoder(res.Body).Decode(&doc))
	return doc.Data.PID
}

// TestRestartIsDoneWhenItRunsAgain: the step ends when the VM runs with a newer start, not
// when it has stopped; so a plan right after it finds nothing to do.
func TestRestartIsDoneWhenItRunsAgain(t *testing.T) {
	for _, version := range pve.Versions() {
		for name, arrange := range map[string]func(*world){
			"plain":    func(*world) {},
			"no audit": lessAudit,
			"under HA": func(w *world) {
				w.Root(http.MethodPost, "/cluster/ha/resources", url.Values{"sid": {"vm:10000"}})
				time.Sleep(time.Minute)
			},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				inTime(t, pve.Config{TaskTime: time.Second, Version: version, Token: opsToken}, func(t *testing.T, w *world) {
					restartable(w)
					arrange(w)
					before := w.process(10000)
					w.VM("db").Cores = 4
					p := w.Plan()
					requests, began := total(w), time.Now()
					require.Empty(t, w.Run(p))
					t.Logf("%d requests, %s", total(w)-requests, time.Since(began))
					require.LessOrEqual(t, total(w)-requests, 30)
					require.True(t, w.Guest(10000).Running)
					require.NotEqual(t, before, w.process(10000))
					require.Equal(t, "4", w.Guest(10000).Config["cores"])
					w.Converged()
				})
			})
		}
	}
}

// TestRestartThatFails: the VM stops and does not come up. The step fails with the text of
// the later task; to a token that cannot see it the error says which privilege shows it. The
// next pass starts the VM itself.
func TestRestartThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*world)
		says    []string
		atMost  time.Duration
	}{
		"seen": {func(*world) {}, []string{"restarting VM 10000: task qmstart ended with: total memory for NUMA nodes must be equal to vm static memory"}, 30 * time.Second},
		"unseen": {lessAudit, []string{
			"restarting VM 10000: it has been down for 2m0s", "the token lacks Sys.Audit on /nodes/father", "pvenode task list --vmid 10000", "plan again",
		}, 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second, Token: opsToken}, func(t *testing.T, w *world) {
				restartable(w)
				c.arrange(w)
				w.VM("db").Options = map[string]string{"numa": "1", "numa0": "cpus=0,memory=5"}
				p := w.Plan()
				began := time.Now()
				failed := w.Run(p)
				require.Less(t, time.Since(began), c.atMost)
				require.Len(t, failed, 1)
				for _, err := range failed {
					for _, part := range c.says {
						require.ErrorContains(t, err, part)
					}
				}
				p = w.Plan()
				require.Equal(t, []string{"power"}, proxmoxtest.Paths(p.Steps[0]))
				for _, err := range w.Run(p) {
					require.ErrorContains(t, err, "starting VM 10000: task qmstart ended with: total memory for NUMA nodes")
				}
				w.VM("db").Options = nil
				settle(w)
				require.True(t, w.Guest(10000).Running)
			})
		})
	}
}

// TestRestartWhoseAnswerIsLost is carried on with: the VM was seen before, and tells by its
// process that it was started anew.
func TestRestartWhoseAnswerIsLost(t *testing.T) {
	for name, lose := range map[string]bool{"done": true, "not done": false} {
		t.Run(name, func(t *testing.T) {
			hit := false
			inTime(t, pve.Config{TaskTime: time.Second, Fault: func(r *http.Request) (int, bool) {
				if !strings.HasSuffix(r.URL.Path, "/status/reboot") || hit {
					return 0, false
				}
				hit = true
				return 596, lose
			}}, func(t *testing.T, w *world) {
				restartable(w)
				before := w.process(10000)
				w.VM("db").Cores = 4
				failed := w.Run(w.Plan())
				require.True(t, hit)
				if lose {
					require.Empty(t, failed)
				} else {
					require.Len(t, failed, 1)
					w.Apply()
				}
				require.NotEqual(t, before, w.process(10000))
				w.Converged()
			})
		})
	}
}

// TestLockFileOfTheCleanup: a VM that was started right after its stop is held by the node
// for half a minute on 9.2. What we order of it waits for that.
func TestLockFileOfTheCleanup(t *testing.T) {
	for verb, change := range map[string]func(*world){
		"reboot":   func(w *world) { w.VM("db").Cores = 4 },
		"shutdown": func(w *world) { w.VM("db").Power = "stopped" },
	} {
		t.Run(verb, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.hasNoKey()
				restartable(w)
				if verb == "reboot" { // what it writes itself would wait as well, so it is there already
					_, err := w.Driver.Put(t.Context(), "/nodes/father/qemu/10000/config", map[string]any{"cores": 4})
					require.NoError(t, err)
				}
				change(w)
				p := w.Plan()
				for _, verb := range []string{"stop", "start"} {
					upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/"+verb, nil)
					require.NoError(t, err)
					require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
				}
				time.Sleep(6 * time.Second)
				require.Empty(t, w.Run(p))
				require.Contains(t, fmt.Sprint(w.Host.Snapshot().Tasks), "can't lock file")
				w.Converged()
			})
		})
	}
}

// TestLockFileIsAwaitedOnce: where a task that began after ours was planned holds the lock
// file of a VM for long, the wait for it is not begun anew by what tries steps again.
func TestLockFileIsAwaitedOnce(t *testing.T) {
	var w *world
	inUse := false
	c := pve.Config{TaskTime: time.Second, TaskTimes: map[string]time.Duration{"resize": time.Hour}, Fault: func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "/status/shutdown") && !inUse {
			inUse = true
			_, err := w.Driver.Put(r.Context(), "/nodes/father/qemu/10000/resize", map[string]any{"disk": "scsi0", "size": "90G"})
			require.NoError(w.T, err)
		}
		return 0, false
	}}
	inTime(t, c, func(t *testing.T, fresh *world) {
		w = fresh
		w.windows(func(v *guest.VM) { v.Options = nil }) // its disk is made in its size
		w.Apply()
		w.VM("win").Power = "stopped"
		p := w.Plan()
		require.Len(t, p.Steps, 1)
		began := time.Now()
		tries := 0
		err := apply.Retry(func(ctx context.Context, s plan.Step) error {
			tries++
			return w.Driver.Apply(ctx, s)
		}, apply.Backoff{})(t.Context(), p.Steps[0])
		require.ErrorContains(t, err, "can't lock file")
		require.Equal(t, 1, tries)
		require.Less(t, time.Since(began), 90*time.Second)
	})
}

// TestPausedIsDrift: a machine that somebody paused runs for PVE. The list of the cluster
// shows it, the plan does, and apply resumes it.
func TestPausedIsDrift(t *testing.T) {
	for _, version := range pve.Versions() {
		t.Run(version, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second, Version: version, Token: opsToken}, func(t *testing.T, w *world) {
				restartable(w)
				requests := total(w)
				w.Converged()
				steady := total(w) - requests
				process := w.process(10000)
				_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/suspend", nil)
				require.NoError(t, err)
				time.Sleep(12 * time.Second)
				requests = total(w)
				p := w.Plan()
				require.Equal(t, steady+1, total(w)-requests, "one request for the one that is paused")
				require.Equal(t, "update vm.db (none, power differs from the site): power paused → running;\n", proxmoxtest.Describe(p))
				require.Empty(t, w.Run(p))
				require.Equal(t, process, w.process(10000), "resumed, not restarted")
				w.Converged()
				time.Sleep(12 * time.Second)
				requests = total(w)
				w.Converged()
				require.Equal(t, steady, total(w)-requests)
			})
		})
	}
}

// TestPausedIsChanged: what takes a restart is made of a machine that is paused, too, and
// one that shall be stopped is.
func TestPausedIsChanged(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		restartable(w)
		pause := func() {
			w.Host.Edit(func(e *pve.Edit) { e.QMP(10000, "paused") })
			time.Sleep(12 * time.Second)
		}
		pause()
		w.VM("db").Cores = 4
		require.ElementsMatch(t, []string{"cores", "power"}, proxmoxtest.Paths(w.Apply().Steps[0]))
		require.Equal(t, "4", w.Guest(10000).Config["cores"])
		time.Sleep(12 * time.Second)
		w.Converged()
		pause()
		w.VM("db").Power = "stopped"
		w.Apply()
		require.False(t, w.Guest(10000).Running)
		w.Converged()
		w.VM("db").Power = "running"
		p := w.Plan()
		w.Host.Edit(func(e *pve.Edit) { e.Start(10000); e.QMP(10000, "paused") })
		require.Empty(t, w.Run(p), "started and paused since the plan was made")
		time.Sleep(12 * time.Second)
		w.Converged()
	})
}

// TestHaltedIsReported: what stopped by itself is not resumed, a guest that sleeps is not
// woken, and what a task has in its hands is left to it.
func TestHaltedIsReported(t *testing.T) {
	for state, says := range map[string]string{
		"io-error":       "vm.db does not run: QEMU stopped it at an error of one of its disks (io-error)\nit is not resumed automatically",
		"internal-error": "`qm reset 10000`",
		"guest-panicked": "its system has crashed",
		"suspended":      "its own system put it to sleep (suspended)",
		"inmigrate":      "QEMU says inmigrate",
	} {
		t.Run(state, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				restartable(w)
				w.Host.Edit(func(e *pve.Edit) { e.QMP(10000, state) })
				time.Sleep(12 * time.Second)
				require.Contains(t, saidQuietly(w), says)
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "migrate") })
				require.NotContains(t, saidQuietly(w), "vm.db does not run")
			})
		})
	}
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "backup"); e.Start(10000); e.QMP(10000, "prelaunch") })
		time.Sleep(12 * time.Second)
		p := w.Plan()
		require.Empty(t, p.Steps, "a backup of a stopped machine gives it a process: %s", proxmoxtest.Describe(p))
	})
}
