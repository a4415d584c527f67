package proxmox_test

import (
	"context"
	"errors"
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
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

var dbAddr = model.Address{Kind: "vm", Name: "db"}

// leaving brings a host to where vm.db, with a decommission policy, is to go.
func leaving(w *world, policy string) plan.Step {
	w.T.Helper()
	w.Node("db", nil).Decomm = &model.Decomm{Policy: policy}
	w.Apply()
	time.Sleep(time.Minute) // it has booted, and obeys
	w.Drop("db")
	p := w.Plan()
	require.Len(w.T, p.Steps, 1, "%s %v", proxmoxtest.Describe(p), p.Findings)
	return p.Steps[0]
}

func backups(w *world) []pve.Volume {
	return slices.DeleteFunc(w.Host.Snapshot().Volumes["local"], func(v pve.Volume) bool { return v.Content != "backup" })
}

// tasksOf are the types of the tasks on a guest, in order.
func tasksOf(w *world, vmid int) []string {
	var out []string
	for _, t := range w.Host.Snapshot().Tasks {
		if t.ID == fmt.Sprint(vmid) {
			out = append(out, t.Type)
		}
	}
	return out
}

func TestFinalBackup(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		step := leaving(w, "requires_final_backup")
		require.Equal(t, "left the site; after a final backup to local", step.Reason)
		before := len(tasksOf(w, 10000))
		var noted model.Tasks
		require.NoError(t, w.Driver.Apply(noted.With(t.Context()), step))

		require.Empty(t, w.Host.Snapshot().Guests)
		kept := backups(w)
		require.Len(t, kept, 1)
		require.Equal(t, 10000, kept[0].VMID)
		require.Contains(t, noted.IDs(), kept[0].ID, "the receipt tells where it is")
		require.Equal(t, []string{"qmshutdown", "vzdump", "qmdestroy"}, tasksOf(w, 10000)[before:])

		// The next guest with this VMID prunes its backups, and not this one.
		w.Node("other", nil)
		w.Apply()
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": "10000", "storage": "local", "prune-backups": "keep-last=1"})
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		require.Contains(t, backups(w), kept[0])
	})
}

// TestFinalBackupWithLostAnswers: whichever answer is lost on the way, with effect or
// without, one backup is there in the end and the guest is not.
func TestFinalBackupWithLostAnswers(t *testing.T) {
	for _, pattern := range []string{"POST /nodes/*/vzdump", "DELETE /nodes/*/qemu/*", "POST /nodes/*/qemu/*/status/shutdown", "GET /nodes/*/storage/*/content", "GET /nodes/*/tasks"} {
		for _, fault := range []string{"596 apply", "596", "-1 apply", "-1"} {
			t.Run(pattern+" "+fault, func(t *testing.T) {
				rule, err := pve.ParseFault(pattern + " nth=1 status=" + fault)
				require.NoError(t, err)
				faults := pve.Faults(rule)
				armed := false
				inTime(t, pve.Config{TaskTime: 2 * time.Second, Fault: func(r *http.Request) (int, bool) {
					if !armed {
						return 0, false
					}
					return faults(r)
				}}, func(t *testing.T, w *world) {
					leaving(w, "requires_final_backup")
					armed = true
					settle(w)
					require.Empty(t, w.Host.Snapshot().Guests)
					require.Len(t, backups(w), 1)
				})
			})
		}
	}
}

// TestRestartedWhileAGuestLeaves: the agent dies at any moment of a removal; the next
// one, which knows nothing of it, waits for what runs and does the rest, once.
func TestRestartedWhileAGuestLeaves(t *testing.T) {
	const tick = 500 * time.Millisecond
	for at := tick; at < 12*time.Second; at += tick {
		t.Run(at.String(), func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: 3 * time.Second}, func(t *testing.T, w *world) {
				step := leaving(w, "requires_final_backup")
				dying, cancel := context.WithTimeout(t.Context(), at)
				defer cancel()
				if err := w.Driver.Apply(dying, step); err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				w.Reopen()
				w.Apply()
				s := w.Host.Snapshot()
				require.Empty(t, s.Guests)
				require.Len(t, backups(w), 1)
				for _, kind := range []string{"vzdump", "qmdestroy"} {
					require.Len(t, slices.DeleteFunc(tasksOf(w, 10000), func(k string) bool { return k != kind }), 1, kind)
				}
				w.Converged()
			})
		})
	}
}

// TestABackupOfAnEarlierLifeDoesNotCount: the removal was given up after its backup,
// and the guest went on to work.
func TestABackupOfAnEarlierLifeDoesNotCount(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		step := leaving(w, "requires_final_backup")
		unprotect := time.AfterFunc(1500*time.Millisecond, func() { w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "protection", "1") }) })
		defer unprotect.Stop()
		require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "protected")
		require.Len(t, backups(w), 1)

		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "protection", "") })
		w.Node("db", nil).Decomm = &model.Decomm{Policy: "requires_final_backup"}
		w.Apply() // started again
		require.True(t, w.Guest(10000).Running)
		time.Sleep(time.Minute)
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Drop("db")
		w.Apply()
		require.Len(t, backups(w), 2)
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

// TestS7ClockABackupFromTheFutureDoesNotCount: the clock of the agent is a year behind that of the host, so the age of the backup
// is unknown, as are the tasks that the host has forgotten since.
func TestS7ClockABackupFromTheFutureDoesNotCount(t *testing.T) {
	for by, want := range map[time.Duration]int{0: 1, 365 * 24 * time.Hour: 2, -365 * 24 * time.Hour: 2} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			step := leaving(w, "requires_final_backup")
			protect := time.AfterFunc(1500*time.Millisecond, func() { w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "protection", "1") }) })
			defer protect.Stop()
			require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "protected")
			require.Len(t, backups(w), 1)
			first := backups(w)[0].ID
			w.Host.Edit(func(e *pve.Edit) {
				e.Set(10000, "protection", "")
				e.Date(first, time.Now().Add(by))
			})
			w.Apply()
			require.Len(t, backups(w), want, "%s", by)
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	}
}

// TestAnOrdinaryBackupIsNotAFinalOne: one that the next prune may take, however new it is
// and however little happened since.
func TestAnOrdinaryBackupIsNotAFinalOne(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" }).Decomm = &model.Decomm{Policy: "requires_final_backup"}
		w.Apply()
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": "10000", "storage": "local"})
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		nightly := backups(w)
		require.Len(t, nightly, 1)
		require.False(t, nightly[0].Protected)
		w.Drop("db")
		w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, backups(w), 2)
		for _, b := range backups(w) {
			require.Equal(t, b.ID != nightly[0].ID, b.Protected)
		}
	})
}

// TestFinalBackupThatIsNone keeps the guest, and asks about what can be known before
// it shuts anything down.
func TestFinalBackupThatIsNone(t *testing.T) {
	lie := func(w *world, path string, how reply) {
		d, err := proxmox.Open(proxmox.Config{
			Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
			Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
				if !strings.Contains(r.URL.String(), path) {
					return truth()
				}
				return how(r, truth)
			}),
		})
		require.NoError(w.T, err)
		w.Driver = d
	}
	for name, c := range map[string]struct {
		spoil   func(*world)
		says    string
		running bool
	}{
		"no right to back up": {func(w *world) {
			lie(w, "permissions?path=/vms/10000", fixed(http.StatusOK, `{"data":{"/vms/10000":{"VM.Audit":1}}}`))
		}, "lacks VM.Backup on /vms/10000", true},
		"no right to look": {func(w *world) {
			lie(w, "permissions?path=/storage/local", fixed(http.StatusOK, `{"data":{"/storage/local":{"Datastore.AllocateSpace":1}}}`))
		}, "lacks Datastore.Audit on /storage/local: `homestak-gitops doctor` prints", true},
		"storage keeps no backups": {func(w *world) {
			lie(w, "storage/local/status", fixed(http.StatusOK, `{"data":{"content":"iso","active":1}}`))
		}, "keeps no backups", true},
		"storage is away": {func(w *world) {
			lie(w, "storage/local/status", fixed(http.StatusOK, `{"data":{"content":"backup","active":0}}`))
		}, "not active", true},
		"list is null":      {func(w *world) { lie(w, "storage/local/content", fixed(http.StatusOK, `{"data":null}`)) }, "null", true},
		"storage is full":   {func(w *world) { w.Host.Edit(func(e *pve.Edit) { e.Fill("local", true) }) }, "kept, stopped", false},
		"it cannot be seen": {func(w *world) { lie(w, "storage/local/content", fixed(http.StatusOK, `{"data":[]}`)) }, "shows no backup of it", false},
		"it is empty": {func(w *world) {
			lie(w, "storage/local/content", bent(func(e map[string]any) map[string]any { e["size"] = 0; return e }))
		}, "shows no backup of it", false},
		"it is another user's": {func(w *world) {
			lie(w, "storage/local/content", bent(func(e map[string]any) map[string]any { e["notes"] = "nightly"; return e }))
		}, "shows no backup of it", false},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				step := leaving(w, "requires_final_backup")
				c.spoil(w)
				require.ErrorContains(t, w.Driver.Apply(t.Context(), step), c.says)
				require.Equal(t, c.running, w.Guest(10000).Running)
				require.NotContains(t, tasksOf(w, 10000), "qmdestroy")
			})
		})
	}
}

// TestFinalBackupHoldsAllThatGoes: what PVE would destroy and not back up is a reason
// to refuse, in the plan and in the step.
func TestFinalBackupHoldsAllThatGoes(t *testing.T) {
	for key, value := range map[string]string{"unused0": "local-lvm:vm-10000-disk-7", "scsi5": "local-lvm:vm-10000-disk-7,backup=0,size=3G"} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			step := leaving(w, "requires_final_backup")
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, value) })
			require.ErrorContains(t, w.Driver.Apply(t.Context(), step), "no backup would hold its "+key)
			require.True(t, w.Guest(10000).Running)
			p := w.Plan()
			require.Empty(t, p.Steps)
			require.Contains(t, card(p), "vm.db is not deleted: no backup would hold its "+key)
		})
	}
}

func TestMigrationFirst(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n := w.Node("db", nil)
		n.Decomm = &model.Decomm{Policy: "requires_migration_first"}
		w.Apply()
		w.Drop("db")
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Equal(t, "vm.db is not deleted: it runs, and its decommission policy is requires_migration_first", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, `power = "stopped"`)

		m := w.Site.Manifests["web"]
		m.Nodes = append(m.Nodes, n)
		w.VM("db").Power = "stopped"
		w.Apply()
		w.Drop("db")
		p = w.Plan()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		w.Host.Edit(func(e *pve.Edit) { e.Start(10000) })
		require.ErrorContains(t, w.Run(p)[dbAddr], "it runs")
		require.True(t, w.Guest(10000).Running)

		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]))
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

// TestAReplicatedGuestIsInUse also while it does not run: another node takes over from it.
func TestAReplicatedGuestIsInUse(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" }).Decomm = &model.Decomm{Policy: "requires_migration_first"}
		w.Apply()
		w.Drop("db")
		p := w.Plan()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		through := func(how reply) {
			d, err := proxmox.Open(proxmox.Config{
				Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
				Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
					truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
					if strings.HasSuffix(r.URL.Path, "/cluster/replication") {
						return how(r, truth)
					}
					return truth()
				}),
			})
			require.NoError(t, err)
			w.Driver = d
		}
		writes := w.Host.Snapshot().Writes
		through(fixed(http.StatusOK, `{"data":[{"id":"100-0","guest":100},{"id":"10000-0","guest":10000}]}`))
		require.ErrorContains(t, w.Run(p)[dbAddr], "VM 10000 is in use (replication job 10000-0 copies it)")
		through(fixed(http.StatusInternalServerError, `{"data":null,"message":"unable to read\n"}`))
		require.ErrorContains(t, w.Run(p)[dbAddr], "cannot check whether VM 10000 is replicated")
		require.Equal(t, writes, w.Host.Snapshot().Writes)
		through(fixed(http.StatusOK, `{"data":[{"id":"100-0","guest":100}]}`))
		require.Empty(t, w.Run(p))
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

func TestUnknownPolicyIsRefused(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("db", nil).Decomm = &model.Decomm{Policy: "requires_a_signature"}
		w.Apply()
		w.Drop("db")
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, p.Findings[0].Summary, "requires_a_signature")
	})
}

// TestPolicyHoldsForAReplacement too, and goes by the ownership tag, not by the new files.
func TestPolicyHoldsForAReplacement(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		n := w.Node("db", nil)
		n.Decomm = &model.Decomm{Policy: "requires_final_backup"}
		w.Apply()
		n.Decomm, n.Resource.Needs = nil, nil
		w.VM("db").Image, w.VM("db").Template = "", "golden"
		p := w.Plan()
		require.Len(t, p.Steps, 1, "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Contains(t, p.Steps[0].Reason, "cannot be changed in place; after a final backup to local")
		require.Empty(t, w.Run(p))
		require.Len(t, backups(w), 1)
		w.Converged()
	})
}

// TestLockedGuestIsNotRemoved: the lock is named with what clears it, at once and
// without a write.
func TestLockedGuestIsNotRemoved(t *testing.T) {
	for lock, says := range map[string]string{
		"backup": "`qm unlock 10000` on node father clears it", "snapshot": "`qm unlock 10000`", "migrate": "`qm unlock 10000`",
		"rollback": "`qm unlock 10000`", "snapshot-delete": "`qm unlock 10000`", "suspended": "Start it once",
		"create": "`qm unlock 10000 && qm destroy 10000`", "clone": "`qm unlock 10000 && qm destroy 10000`",
	} {
		t.Run(lock, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				step := leaving(w, "")
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, lock) })
				writes := w.Host.Snapshot().Writes
				err := w.Driver.Apply(t.Context(), step)
				require.ErrorContains(t, err, lock)
				require.ErrorContains(t, err, says)
				var busy interface{ Temporary() bool }
				require.False(t, errors.As(err, &busy) && busy.Temporary(), "or it would be tried again and again")
				require.Equal(t, writes, w.Host.Snapshot().Writes)
				p := w.Plan()
				card := fmt.Sprint(p.Unmanaged)
				for _, f := range p.Findings {
					card += f.Summary + f.Detail
				}
				require.Contains(t, card, says, "the plan says it as well")
			})
		})
	}
}

// TestLockOfATaskThatRuns names the task, and does not advise to unlock while it runs.
func TestLockOfATaskThatRuns(t *testing.T) {
	inTime(t, pve.Config{TaskTimes: map[string]time.Duration{"qmsnapshot": time.Hour}}, func(t *testing.T, w *world) {
		step := leaving(w, "")
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/snapshot", map[string]any{"snapname": "before"})
		require.NoError(t, err)
		theirs := proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			a, err := w.Host.RoundTrip(r)
			if err != nil || !strings.HasSuffix(r.URL.Path, "/tasks") {
				return a, err
			}
			body, err := io.ReadAll(a.Body)
			return canned(r, http.StatusOK, strings.ReplaceAll(string(body), "!", "!not-")), err
		})
		d, err := proxmox.Open(proxmox.Config{Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: theirs})
		require.NoError(t, err)
		err = d.Apply(t.Context(), step)
		require.ErrorContains(t, err, "task UPID:father:")
		require.ErrorContains(t, err, "works on it")
		require.NotContains(t, err.Error(), "unlock")
		require.True(t, w.Guest(10000).Running)
		began := time.Now()
		require.NoError(t, w.Driver.Apply(t.Context(), step), "our own task is waited for")
		require.Greater(t, time.Since(began), 50*time.Minute)
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

// TestFinalBackupBesideTheHAManager: a guest that does not run is stopped for its manager
// only when that has looked. Its backup is ordered before, and mode stop would be refused
// then (VZDump.pm, exec_backup_task).
func TestFinalBackupBesideTheHAManager(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", nil).Decomm = &model.Decomm{Policy: "requires_final_backup"}
		w.Apply()
		time.Sleep(time.Minute)
		_, err := w.Driver.Post(t.Context(), "/cluster/ha/resources", map[string]any{"sid": "vm:10000", "max_restart": 0})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		w.Drop("db")
		p := w.Plan()
		require.Len(t, p.Steps, 1)
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) }) // it crashed since the last pass
		require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]))
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, backups(w), 1)
	})
}

// TestNoMoreProtectedBackups: of one VMID PVE keeps five protected backups for who may not
// allocate in the storage (Storage.pm, get_max_protected_backups). Why a backup failed stands
// in the log of its task alone, which goes on after that.
func TestNoMoreProtectedBackups(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		step := leaving(w, "requires_final_backup")
		_, err := w.Driver.Put(t.Context(), "/storage/local", map[string]any{"max-protected-backups": 1})
		require.NoError(t, err)
		upid, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": "10000", "storage": "local", "protected": true})
		require.NoError(t, err)
		require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		err = w.Driver.Apply(t.Context(), step)
		require.ErrorContains(t, err, "so it is kept, stopped: task vzdump ended with: job errors: ERROR: Backup of VM 10000 failed - "+
			"The number of protected backups per guest is limited to 1 on storage 'local'")
		require.NotContains(t, tasksOf(w, 10000), "qmdestroy")
	})
}

// TestGuestsThatIgnoreShutdown are stopped in the end, and not before their time.
func TestGuestsThatIgnoreShutdown(t *testing.T) {
	t.Run("no system", func(t *testing.T) {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			down := 200
			w.Node("db", func(v *guest.VM) { v.Startup = &guest.Startup{Down: &down} })
			w.Apply()
			w.Host.Edit(func(e *pve.Edit) { e.Stop(10000); e.Set(10000, "scsi0", ""); e.Start(10000) })
			time.Sleep(time.Minute)
			w.Drop("db")
			began := time.Now()
			w.Apply()
			require.InDelta(t, 200, time.Since(began).Seconds(), 40)
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	})
	t.Run("shutdown hangs", func(t *testing.T) {
		inTime(t, pve.Config{TaskTimes: map[string]time.Duration{"qmshutdown": 24 * time.Hour}}, func(t *testing.T, w *world) {
			step := leaving(w, "")
			began := time.Now()
			require.NoError(t, w.Driver.Apply(t.Context(), step))
			require.Less(t, time.Since(began), 5*time.Minute)
			require.Greater(t, time.Since(began), time.Minute)
			require.Contains(t, tasksOf(w, 10000), "qmstop")
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	})
	t.Run("shutdown dies", func(t *testing.T) {
		inTime(t, pve.Config{TaskTimes: map[string]time.Duration{"qmshutdown": 30 * time.Second}}, func(t *testing.T, w *world) {
			step := leaving(w, "")
			crash := time.AfterFunc(5*time.Second, func() { w.Host.Edit(func(e *pve.Edit) { e.Crash(10000) }) })
			defer crash.Stop()
			require.NoError(t, w.Driver.Apply(t.Context(), step))
			require.Contains(t, tasksOf(w, 10000), "qmstop")
			require.Empty(t, w.Host.Snapshot().Guests)
		})
	})
}

// TestVolumesThatGoWithAGuest: the plan names disks that the files do not; volumes that
// only carry the VMID stay, and so do those of other guests.
func TestVolumesThatGoWithAGuest(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Apply()
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/config", map[string]any{"scsi5": "local-lvm:3"})
		require.NoError(t, err)
		_, err = w.Driver.Post(t.Context(), "/nodes/father/storage/local-lvm/content", map[string]any{"vmid": 10000, "filename": "vm-10000-disk-9", "size": "1G"})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		w.Drop("db")
		p := w.Apply()
		require.Equal(t, "left the site; together with scsi5, which no file names", p.Steps[0].Reason)
		var left []string
		for _, v := range w.Host.Snapshot().Volumes["local-lvm"] {
			left = append(left, v.ID)
		}
		require.Equal(t, []string{"local-lvm:vm-10000-disk-9"}, left)
	})
}

// TestAVolumeThatIsLeftIsNamed: a creation that died left its drive of cloud-init, and
// PVE makes none of that name a second time.
func TestAVolumeThatIsLeftIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		storage, file string
		free          string
		status        int // of a read of a guest that does not exist
	}{
		"logical volume": {"local-lvm", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"file":           {"files", "vm-10000-cloudinit.qcow2", "pvesm free STORAGE:10000/vm-10000-cloudinit.qcow2", 0},
		"image of ceph":  {"ceph", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"data set":       {"tank", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"pool":           {"local-lvm", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", http.StatusForbidden}, // rights on a pool only
	} {
		t.Run(name, func(t *testing.T) {
			fault := func(r *http.Request) (int, bool) {
				return map[bool]int{true: c.status}[strings.HasSuffix(r.URL.Path, "/qemu/10000/pending")], false
			}
			inTime(t, pve.Config{TaskTime: time.Second, Fault: fault, Storages: append(pve.DefaultStorages(),
				pve.Storage{Name: "files", Type: "dir", Content: []string{"images"}},
				pve.Storage{Name: "ceph", Type: "rbd", Content: []string{"images"}},
				pve.Storage{Name: "tank", Type: "zfspool", Content: []string{"images"}})}, func(t *testing.T, w *world) {
				_, err := w.Driver.Post(t.Context(), "/nodes/father/storage/"+c.storage+"/content", map[string]any{"vmid": 10000, "filename": c.file, "size": "4M"})
				require.NoError(t, err)
				w.Site.Hosts["father"].Storage = &model.Storage{Disks: c.storage}
				w.Node("web-1", nil)
				failed := w.Run(w.Plan())
				err = failed[model.Address{Kind: "vm", Name: "web-1"}]
				require.ErrorContains(t, err, c.free)
				require.ErrorContains(t, err, "no guest has VMID 10000")
				var left *model.UnusableVMIDError
				require.ErrorAs(t, err, &left)
				require.Equal(t, 10000, left.VMID)
				require.Empty(t, w.Host.Snapshot().Guests)
			})
		})
	}
}

// leaves allocates a volume as a creation that died left it.
func (w *world) leaves(storage, name, vmid string) {
	w.Root(http.MethodPost, "/nodes/father/storage/"+storage+"/content", url.Values{"vmid": {vmid}, "filename": {name}, "size": {"4M"}})
}

// recalling plans as an agent does that was told something by the pass before.
func (w *world) recalling(words []string) (*plan.Plan, []string) {
	want, _ := w.Site.Want("father")
	with := *want
	with.SweepHints = words
	have, err := w.Driver.Observe(w.T.Context(), &with)
	require.NoError(w.T, err)
	return w.PlanFor(&with, have), have.SweepHints
}

// disksAsked counts the lists of disks that were asked for.
func disksAsked(w *world) int {
	n := 0
	for what, times := range w.Host.Snapshot().Requests {
		if strings.HasPrefix(what, "GET ") && strings.Contains(what, "/storage/") && strings.HasSuffix(what, "/content") {
			n += times
		}
	}
	return n
}

const leftText = "storage local-lvm on node father has volumes of VMIDs that no guest has: local-lvm:vm-10005-disk-0"

// TestVolumesOfADeadCreation are reported from when a guest is unfinished until they are gone, and never removed. A check
// without such a reason asks for no list of disks.
func TestVolumesOfADeadCreation(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.leaves("local-lvm", "vm-10005-disk-0", "10005")
		w.leaves("local-lvm", "vm-60001-disk-0", "60001") // a VMID that no file names
		asked := disksAsked(w)
		p, words := w.recalling(nil)
		require.Empty(t, words)
		require.True(t, p.InSync(), card(p))
		steady := disksAsked(w) - asked
		require.NotZero(t, steady, "of images; so they are counted")

		half := w.Guest(10000)
		half.VMID, half.Running, half.Config = 10007, false, map[string]string{"lock": "create"}
		w.Host.Edit(func(e *pve.Edit) { e.Add(half) })
		w.leaves("local-lvm", "vm-10007-disk-0", "10007") // of a guest that is there
		p, words = w.recalling(nil)
		require.Equal(t, []string{"volumes"}, words)
		require.True(t, p.InSync(), "a finding, and nothing to do: %s", card(p))
		require.Contains(t, card(p), leftText)
		require.Contains(t, card(p), "on node father, if nothing uses them: `pvesm free local-lvm:vm-10005-disk-0`\n")
		require.NotContains(t, card(p), "60001")
		require.NotContains(t, card(p), "vm-10007")
		require.Contains(t, card(p), "VM 10007 on node father is unfinished: PVE began to create it, and no task works on it; its VMID is not used meanwhile\n"+
			"if it is not being created: `qm unlock 10007 && qm destroy 10007` on node father")

		w.Host.Edit(func(e *pve.Edit) { e.Delete(10007) })
		p, words = w.recalling(words)
		require.Equal(t, []string{"volumes"}, words)
		require.Contains(t, card(p), leftText)
		require.Contains(t, volumeIDs(w, "local-lvm"), "local-lvm:vm-10005-disk-0")

		w.Host.Edit(func(e *pve.Edit) {
			for _, id := range []string{"10005", "10007"} {
				e.RemoveVolume("local-lvm:vm-" + id + "-disk-0")
			}
		})
		p, words = w.recalling(words)
		require.Empty(t, words)
		require.True(t, p.InSync())
		asked = disksAsked(w)
		w.Converged()
		require.Equal(t, steady, disksAsked(w)-asked)
	})
}

// TestFailedCreationNamesWhatItLeft, at once, with what frees it.
func TestFailedCreationNamesWhatItLeft(t *testing.T) {
	fault, err := pve.ParseFault("POST /nodes/*/qemu status=500")
	require.NoError(t, err)
	inTime(t, pve.Config{TaskTime: time.Second, Fault: pve.Faults(fault)}, func(t *testing.T, w *world) {
		w.leaves("local-lvm", "vm-10000-disk-0", "10000")
		w.leaves("local-lvm", "vm-10005-disk-0", "10005")
		w.Node("web-1", nil)
		err := w.Run(w.Plan())[model.Address{Kind: "vm", Name: "web-1"}]
		require.ErrorContains(t, err, "no guest has VMID 10000 now, and this is left of it: on node father, `pvesm free local-lvm:vm-10000-disk-0` frees it")
		require.Contains(t, volumeIDs(w, "local-lvm"), "local-lvm:vm-10000-disk-0")
	})
}

// TestDoctorOnLeftoverVolumes: it lists them, or says which privilege would show them, with the commands that give it.
func TestDoctorOnLeftoverVolumes(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web-1", nil)
	w.leaves("local-lvm", "vm-10005-disk-0", "10005")
	token := w.least(true)
	found := func(token string) []doctor.Check {
		return slices.DeleteFunc(w.Examine(func(d *doctor.Doctor) { d.Token = token }), func(c doctor.Check) bool { return c.Name != "leftovers" })
	}
	list := found(token)
	require.Len(t, list, 1)
	require.Equal(t, doctor.NotChecked, list[0].Result)
	require.Equal(t, "the token may not list the disks on storage local-lvm: Datastore.Audit on /storage/local-lvm", list[0].Seen)
	require.Contains(t, strings.Join(list[0].Fix, "\n"), "--privs \"Datastore.AllocateSpace,Datastore.Audit\"")

	w.Root(http.MethodPut, "/access/roles/homestak-storage-local-lvm", url.Values{"privs": {"Datastore.AllocateSpace,Datastore.Audit"}})
	list = found(token)
	require.Len(t, list, 1)
	require.Equal(t, doctor.Warning, list[0].Result)
	require.Equal(t, []string{"pvesm free local-lvm:vm-10005-disk-0"}, list[0].Fix)

	w.Host.Edit(func(e *pve.Edit) { e.RemoveVolume("local-lvm:vm-10005-disk-0") })
	require.Empty(t, found(token))
}
