package proxmox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
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

// TestARestartEndsWhenTheGuestRuns: the step ends when the VM runs with a newer start, not
// when it has stopped; so a plan right after it finds nothing to do.
func TestARestartEndsWhenTheGuestRuns(t *testing.T) {
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
// file of a VM for long, a retried step does not begin the wait for it again.
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
		err := apply.Backoff{}.Retry(func(ctx context.Context, s plan.Step) error {
			tries++
			return w.Driver.Apply(ctx, s)
		})(t.Context(), p.Steps[0])
		require.ErrorContains(t, err, "can't lock file")
		require.Equal(t, 1, tries)
		require.Less(t, time.Since(began), 90*time.Second)
	})
}

// TestPausedIsDrift: PVE says that a paused machine runs. The list of the cluster and the plan show the pause, and apply resumes
// the machine.
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

// TestHaltedIsReported: a machine that QEMU stopped is not resumed, a guest that sleeps is not woken, and a guest in a task is
// left to the task.
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

// TestGuestsThatIgnoreRebootsAreNotRestartedForEver: the files allow restarts, the guest
// does not shut down. It is asked once, then left alone for an hour while what waits
// stays listed, and restarted when it obeys again.
func TestGuestsThatIgnoreRebootsAreNotRestartedForEver(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Restart = "allowed" })
		w.Apply()
		time.Sleep(time.Minute)
		w.Host.Edit(func(e *pve.Edit) { e.Hang(10000) })
		w.VM("db").Cores = 4

		var temporary interface{ Temporary() bool }
		failed := w.Run(w.Plan())
		require.Len(t, failed, 1)
		for _, err := range failed {
			require.ErrorContains(t, err, "restarting VM 10000: it did not shut down within 60 s")
			require.ErrorContains(t, err, "startup { down }")
			require.ErrorAs(t, err, &temporary)
			require.False(t, temporary.Temporary(), "an immediate retry cannot succeed")
		}
		for range 10 {
			require.Contains(t, saidQuietly(w), "vm.db is not restarted again for its pending changes: the last restart ended with: VM quit/powerdown failed - got timeout")
			p := w.Plan()
			require.Len(t, p.Pending, 1)
			require.Equal(t, "cores", p.Pending[0].Path)
			time.Sleep(time.Minute)
		}
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000); e.Start(10000) })
		time.Sleep(time.Hour)
		p := w.Apply()
		require.Equal(t, []string{"pending"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, "4", w.Guest(10000).Config["cores"])
		w.Converged()
		require.Empty(t, w.Plan().Pending)
	})
}

// TestRestartsThatChangeNothingEnd: something waits again after each restart, as a
// value does which PVE cannot bring into force.
func TestRestartsThatChangeNothingEnd(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Restart = "allowed" })
		w.Apply()
		restarts := 0
		for range 8 {
			time.Sleep(time.Minute)
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "keyboard", "de") })
			_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/config", map[string]any{"delete": "keyboard"})
			require.NoError(t, err)
			time.Sleep(time.Minute)
			p := w.Plan()
			require.Empty(t, w.Run(p))
			restarts += len(p.Steps)
		}
		require.Equal(t, 3, restarts)
		require.Contains(t, saidQuietly(w), "3 restarts within an hour have not brought it into force")
	})
}

// TestContainerIsLeftToTheHAManager as VMs are: one that it is about to start is not
// started beside it.
func TestContainerIsLeftToTheHAManager(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		_, err := w.Driver.Post(t.Context(), "/cluster/ha/resources", map[string]any{"sid": "ct:10000", "state": "started"})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		w.Converged()
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		require.Contains(t, saidQuietly(w), "ct.cache does not run: that is left to the HA manager, which has it (state started)")
		time.Sleep(time.Minute)
		require.True(t, w.Guest(10000).Running)
		w.Converged()
	})
}

// TestPendingChangesAreNotEdits: the digest moves between plan and step for a reason
// that is none of ours, while the guest waits for a restart. The step goes on.
func TestPendingChangesAreNotEdits(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Apply()
		time.Sleep(time.Minute)
		w.Site.Secrets = nil // the keys leave: written for cloud-init, read at the next start
		w.Apply()
		require.NotEmpty(t, w.Plan().Pending)
		w.VM("db").Tags = []string{"new"}
		p := w.Plan()
		require.Equal(t, []string{"tags"}, proxmoxtest.Paths(p.Steps[0]))
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "vmgenid", "11111111-1111-4111-8111-111111111111") })
		require.Empty(t, w.Run(p))
		require.Equal(t, "homestak;new", w.Guest(10000).Config["tags"])
	})
}

// TestTasksThatCannotBeSeenHideNothingElse: a locked guest and one that is being made
// are asked for by the tasks of their node; when those do not come, the rest goes on.
func TestTasksThatCannotBeSeenHideNothingElse(t *testing.T) {
	broken := false
	c := pve.Config{TaskTime: time.Second, Fault: func(r *http.Request) (int, bool) {
		if broken && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/tasks") {
			return 596, false
		}
		return 0, false
	}}
	inTime(t, c, func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Apply()
		w.Node("web", nil)
		w.Host.Edit(func(e *pve.Edit) {
			e.Lock(10000, "backup")
			e.Add(pve.Guest{VMID: 10050, Node: "father", Kind: "qemu", Config: map[string]string{"lock": "create"}})
		})
		broken = true
		p := w.Plan()
		require.Empty(t, p.Steps, "the one that is being made may be vm.web")
		require.Len(t, p.Unknown, 2, "%v", p.Unknown)
		require.Contains(t, p.Unknown[0].Why, "may be in creation, but the tasks of node father cannot be read")
		require.Contains(t, p.Unknown[1].Why, "may be this guest")
		broken = false
		require.NotEmpty(t, w.Plan().Unmanaged)
	})
}

// TestStoppedBeforeItsRestart: who is stopped between plan and step is started, which
// brings into force what waits. PVE calls a container a VM there (LXC/Status.pm, vm_reboot).
func TestStoppedBeforeItsRestart(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Restart = "allowed" })
		ct := w.ct("cache", func(c *guest.CT) { c.Restart = "allowed" })
		w.Apply()
		time.Sleep(time.Minute)
		w.VM("db").Cores = 4
		ct.Options = map[string]string{"tty": "3"}
		p := w.Plan()
		for vmid := range 2 {
			w.Host.Edit(func(e *pve.Edit) { e.Stop(10000 + vmid) })
		}
		require.Empty(t, w.Run(p))
		for vmid := range 2 {
			require.True(t, w.Guest(10000+vmid).Running)
		}
		w.Converged()
	})
}

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

// managed makes vm.db and puts it under the HA manager, as an administrator does.
func managed(w *world, edit func(*guest.VM)) {
	w.T.Helper()
	w.Node("db", edit)
	w.Apply()
	_, err := w.Driver.Post(w.T.Context(), "/cluster/ha/resources", map[string]any{"sid": "vm:10000", "state": "started"})
	require.NoError(w.T, err)
	time.Sleep(time.Minute)
	w.Converged()
}

// quietly is a plan without steps; what it says is returned.
func saidQuietly(w *world) string {
	w.T.Helper()
	p := w.Plan()
	require.Empty(w.T, p.Steps, "%s", proxmoxtest.Describe(p))
	var b strings.Builder
	for _, f := range p.Findings {
		b.WriteString(f.Summary + "\n" + f.Detail + "\n")
	}
	return b.String()
}

// TestManagedGuestIsStartedAndStopped through the HA manager: the tasks of the
// requests end at once, the steps only when the guest is as it shall be.
func TestManagedGuestIsStartedAndStopped(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		began := time.Now()
		w.Apply()
		require.False(t, w.Guest(10000).Running)
		require.Equal(t, "stopped", w.Guest(10000).HA, "or the manager would start it again")
		require.Greater(t, time.Since(began), 5*time.Second)
		require.Contains(t, tasksOf(w, 10000), "hastop")
		time.Sleep(5 * time.Minute)
		require.False(t, w.Guest(10000).Running)
		w.Converged()

		w.VM("db").Power = "running"
		w.Apply()
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, "started", w.Guest(10000).HA)
		time.Sleep(time.Minute)
		w.Converged()
	})
}

// TestManagedGuestIsRemoved: stopped by its manager, and taken out of it with the guest.
func TestManagedGuestIsRemoved(t *testing.T) {
	for _, policy := range []string{"", "requires_final_backup"} {
		t.Run(policy, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				managed(w, nil)
				w.Drop("db")
				w.Node("db", nil).Decomm = &model.Decomm{Policy: policy}
				w.Apply()
				w.Drop("db")
				w.Apply()
				require.Empty(t, w.Host.Snapshot().Guests)
				var list []any
				require.NoError(t, w.Driver.Get(t.Context(), "/cluster/ha/resources", &list))
				require.Empty(t, list)
				if policy != "" {
					require.Len(t, backups(w), 1)
				}
			})
		})
	}
}

// TestWorkOfTheHAManagerIsLeftToIt: a guest that was killed is started again by
// the manager; a step of ours beside that would be a fight.
func TestWorkOfTheHAManagerIsLeftToIt(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		before := w.Host.Snapshot().Requests
		w.Converged()
		after := w.Host.Snapshot().Requests
		require.Equal(t, before["GET /nodes/{node}/qemu/{vmid}/status/current"], after["GET /nodes/{node}/qemu/{vmid}/status/current"], "a look at a managed guest asks nothing more")

		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		said := saidQuietly(w)
		require.Contains(t, said, "vm.db does not run: that is left to the HA manager, which has it (state started)")
		time.Sleep(time.Minute)
		require.True(t, w.Guest(10000).Running)
		w.Converged()

		// Stopped by hand through the API it stays stopped: that is drift, and is reverted.
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/stop", nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.False(t, w.Guest(10000).Running)
		p := w.Apply()
		require.Equal(t, []string{"power"}, proxmoxtest.Paths(p.Steps[0]))
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, "started", w.Guest(10000).HA)
	})
}

// TestStateOfTheHAManagerMayBeOld: right after a stop it still says started, which is
// no reason to stop the guest again; and a guest that it is stopping by hand is not
// started before it has stopped.
func TestStateOfTheHAManagerMayBeOld(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		require.Empty(t, saidQuietly(w))
		time.Sleep(time.Minute) // the HA manager started it again, since its state was not changed
		require.True(t, w.Guest(10000).Running)
		require.Equal(t, []string{"power"}, proxmoxtest.Paths(w.Apply().Steps[0]))
		require.Empty(t, saidQuietly(w))

		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/start", nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/shutdown", nil)
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		time.Sleep(10500 * time.Millisecond)
		require.True(t, w.Guest(10000).Running)
		require.Contains(t, saidQuietly(w), "vm.db still runs: that is left to the HA manager")
	})
}

// TestHAManagerThatGaveUp is reported with the way back, and no start is tried.
func TestHAManagerThatGaveUp(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		volume, _, _ := strings.Cut(w.Guest(10000).Config["scsi0"], ",")
		w.Host.Edit(func(e *pve.Edit) { e.RemoveVolume(volume); e.Stop(10000) })
		time.Sleep(5 * time.Minute)
		said := saidQuietly(w)
		require.Contains(t, said, "vm.db does not run")
		require.Contains(t, said, "`ha-manager set vm:10000 --state disabled`")
	})
}

// stuckHA takes requests for the HA manager and lets nothing follow from them, until
// the guest is taken out of it, which may be denied.
func stuckHA(w *world, denied bool) {
	const upid = "UPID:father:000003F0:000595FB:386D43BC:hastop:10000:root@pam!sim:"
	released := false
	d, err := proxmox.Open(proxmox.Config{
		Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
		Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			switch path := r.URL.Path; {
			case strings.Contains(path, "/ha/resources/") && denied:
				return canned(r, http.StatusForbidden, `{"data":null,"message":"Permission check failed (/, Sys.Console)\n"}`), nil
			case strings.Contains(path, "/ha/resources/"):
				released = true
			case strings.HasSuffix(path, "/status/shutdown") && !released:
				return canned(r, http.StatusOK, `{"data":"`+upid+`"}`), nil
			case strings.Contains(path, "/tasks/UPID") && strings.Contains(path, ":hastop:"):
				return canned(r, http.StatusOK, `{"data":{"status":"stopped","exitstatus":"OK"}}`), nil
			}
			return w.Host.RoundTrip(r)
		}),
	})
	require.NoError(w.T, err)
	w.Driver = d
}

// canned is an answer that no host gave.
func canned(r *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// TestStuckHAManagerIsTakenOutOfTheWay of a guest that shall go, where we may; else
// the error says what that takes. A guest that stays is never taken out.
func TestStuckHAManagerIsTakenOutOfTheWay(t *testing.T) {
	for _, denied := range []bool{false, true} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			managed(w, nil)
			stuckHA(w, denied)
			w.VM("db").Power = "stopped"
			require.ErrorContains(t, w.Run(w.Plan())[dbAddr], "the HA manager has not stopped VM 10000 within 4m0s (its state there: started): `ha-manager status`")
			require.Equal(t, "started", w.Guest(10000).HA)

			w.Drop("db")
			err := w.Run(w.Plan())[dbAddr]
			if denied {
				require.ErrorContains(t, err, "needs Sys.Console on /: grant it, or `ha-manager remove vm:10000`")
				require.True(t, w.Guest(10000).Running)
				return
			}
			require.NoError(t, err)
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	}
}

// TestWaitForTheHAManagerEnds with the context, at once.
func TestWaitForTheHAManagerEnds(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		managed(w, nil)
		w.VM("db").Power = "stopped"
		p := w.Plan()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, w.Driver.Apply(ctx, p.Steps[0]), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}
