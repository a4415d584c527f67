package proxmox_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// proving is a world with a VM and a container that are backed up, and whose backups are to be verified at any time of day.
func proving(w *world) {
	w.T.Helper()
	w.Node("db", func(vm *guest.VM) { vm.Agent = true })
	w.Site.VMIDRanges = []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}
	w.Site.Backup = &model.Backup{Schedule: "02:30", MaxAge: 26 * time.Hour, Verify: "restore", Window: "00:00-00:00"}
	w.Apply()
	time.Sleep(time.Minute)
	w.backUp(10000)
}

func (w *world) backUp(vmid int) {
	w.T.Helper()
	upid, err := w.Driver.Post(w.T.Context(), "/nodes/father/vzdump", map[string]any{"vmid": fmt.Sprint(vmid), "storage": "local", "compress": "zstd"})
	require.NoError(w.T, err)
	require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
}

// due plans with what an agent remembers of verifications.
func (w *world) due(was map[model.Address]model.Restored) *plan.Plan {
	w.T.Helper()
	want, found := w.Site.Want("father")
	require.False(w.T, found.HasErrors(), "%v", found)
	own := *want
	own.Restored = was
	have, err := w.Driver.Observe(w.T.Context(), &own)
	require.NoError(w.T, err)
	own.State = model.State{}
	maps.Copy(own.State, want.State)
	for _, r := range have.Further {
		own.State[r.Addr] = r
	}
	return w.PlanFor(&own, have)
}

var none = map[model.Address]model.Restored{}

// production is what must not change, byte for byte.
func production(w *world) string {
	s := w.Host.Snapshot()
	var b strings.Builder
	for _, g := range s.Guests {
		if g.VMID == 10000 || g.VMID == 10001 {
			fmt.Fprintf(&b, "%+v\n", g)
		}
	}
	for _, name := range []string{"local", "local-lvm"} {
		for _, v := range s.Volumes[name] {
			fmt.Fprintf(&b, "%s %+v\n", name, v)
		}
	}
	return b.String()
}

func TestABackupIsProvedByARestore(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		proving(w)
		before := production(w)
		p := w.due(none)
		require.Len(t, p.Steps, 1, "%v", p.Findings)
		require.Equal(t, "restore.vm-db", p.Steps[0].Address.String())
		require.Equal(t, 10001, p.Steps[0].VMID, "reserved like that of any guest")
		require.Len(t, p.Backups, 1)
		require.Empty(t, p.Backups[0].Stale)

		started := false
		w.Sees = func(r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu/10001/status/start") {
				started = true
				g := w.Guest(10001)
				for key := range g.Config {
					require.False(t, strings.HasPrefix(key, "net"), "it has %s at its first start", key)
				}
				require.NotEqual(t, w.Guest(10000).Config["smbios1"], g.Config["smbios1"])
			}
		}
		require.NoError(t, w.Run(p)[p.Steps[0].Address])
		require.True(t, started)
		require.Equal(t, before, production(w))
		require.Len(t, w.Host.Snapshot().Guests, 1)

		now := time.Now()
		proved := map[model.Address]model.Restored{dbAddr: {Tried: now, Proved: now}}
		p = w.due(proved)
		require.Empty(t, p.Steps)
		require.Equal(t, now, *p.Backups[0].Proved)
		time.Sleep(31 * 24 * time.Hour)
		p = w.due(proved)
		require.Len(t, p.Steps, 1)
		require.Contains(t, p.Backups[0].Stale, "more than max_age 26h")
		require.True(t, slices.ContainsFunc(p.Findings, func(f diag.Finding) bool {
			return f.Address == "vm.db" && strings.Contains(f.Summary, "is stale") && strings.Contains(f.Detail, "the last backup task on node father succeeded")
		}), "%v", p.Findings)
		require.Empty(t, w.due(nil).Steps, "a pass by hand verifies nothing")
		w.Site.Backup.Window = "03:00-03:01"
		require.Empty(t, w.due(none).Steps)
	})
}

// TestOneListHasTheBackupsOfAHundredGuests: max_age costs one request for the list of their storage, if nothing else lists it, and
// what the last backup task was is asked once for all stale guests of a PVE node.
func TestOneListHasTheBackupsOfAHundredGuests(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		const guests = 100
		for i := range guests {
			w.Node(fmt.Sprintf("web-%d", i), nil)
		}
		w.Apply()
		requests := func(stale int) int {
			t.Helper()
			_, remembered := w.recalling(nil)
			before := total(w)
			p, _ := w.recalling(remembered)
			sent := total(w) - before
			require.Empty(t, p.Steps)
			found := 0
			for _, f := range p.Findings {
				if strings.Contains(f.Summary, "is stale") {
					require.Contains(t, f.Detail, "node father shows no backup task")
					found++
				}
			}
			require.Equal(t, stale, found)
			return sent
		}
		plain := requests(0)
		w.Site.Backup = &model.Backup{Schedule: "02:30"}
		w.Apply()
		jobs := requests(0)
		require.Equal(t, plain+1, jobs)
		w.Site.Backup.MaxAge = 26 * time.Hour
		fresh := requests(0)
		require.LessOrEqual(t, fresh, jobs+1)
		time.Sleep(27 * time.Hour)
		stale := requests(guests)
		require.Equal(t, fresh+1, stale)
		t.Logf("%d guests: %d requests, %d with backup jobs, %d with max_age, %d while all are stale", guests, plain, jobs, fresh, stale)
	})
}

// TestAFailedProofLeavesNothing: an archive that is torn, a guest that does not boot, a storage without room.
func TestAFailedProofLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(e *pve.Edit, archive string)
		says  string
	}{
		"a torn archive":                {func(e *pve.Edit, archive string) { e.Spoil(archive, true) }, "vma extract"},
		"a system that does not boot":   {func(e *pve.Edit, archive string) { e.Spoil(archive, false) }, "its guest agent has not answered within 10m0s"},
		"a full storage":                {func(e *pve.Edit, _ string) { e.Fill("local-lvm", true) }, "free space in thin pool"},
		"an archive without the agent":  {func(e *pve.Edit, _ string) { e.Set(10000, "agent", "0") }, "no guest agent"},
		"arguments for QEMU":            {func(e *pve.Edit, _ string) { e.Set(10000, "args", "-netdev user,id=n0") }, "isolating"},
		"an archive that is gone since": {func(e *pve.Edit, archive string) { e.RemoveVolume(archive) }, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				proving(w)
				if c.says == "no guest agent" || c.says == "isolating" {
					w.Host.Edit(func(e *pve.Edit) { c.spoil(e, "") })
					time.Sleep(time.Minute)
					w.backUp(10000)
				}
				p := w.due(none)
				p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return s.Address.Kind != "restore" })
				archive := p.Backups[0].Archive
				w.Host.Edit(func(e *pve.Edit) { c.spoil(e, archive) })
				before := production(w)
				err := w.Run(p)[model.Address{Kind: "restore", Name: "vm-db"}]
				require.ErrorContains(t, err, c.says)
				require.Equal(t, before, production(w))
				require.Len(t, w.Host.Snapshot().Guests, 1)

				tried := map[model.Address]model.Restored{dbAddr: {Tried: time.Now(), Error: err.Error()}}
				p = w.due(tried)
				require.False(t, slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Address.Kind == "restore" }), "not again in the same window")
				require.True(t, slices.ContainsFunc(p.Findings, func(f diag.Finding) bool { return strings.Contains(f.Summary, c.says) && f.Address == "vm.db" }), "%v", p.Findings)
			})
		})
	}
}

// TestRestartedWhileABackupIsProved: the agent dies at any moment of a verification; the next one removes what is left, whether it
// verifies again or not.
func TestRestartedWhileABackupIsProved(t *testing.T) {
	const tick = 700 * time.Millisecond
	for at := tick; at < 16*time.Second; at += tick {
		t.Run(at.String(), func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: 2 * time.Second}, func(t *testing.T, w *world) {
				proving(w)
				before := production(w)
				dying, cancel := context.WithTimeout(t.Context(), at)
				defer cancel()
				w.RunUntil(dying, w.due(none))
				w.Reopen()
				if at%(2*tick) == 0 {
					p := w.due(none)
					require.NoError(t, w.Run(p)[model.Address{Kind: "restore", Name: "vm-db"}], "%v", p.Findings)
				}
				time.Sleep(5 * time.Second) // the task of the first has ended
				w.Apply()
				require.Equal(t, before, production(w))
				require.Len(t, w.Host.Snapshot().Guests, 1)
			})
		})
	}
}

// TestAContainersBackupIsProved: PVE cannot ask a container more than whether it runs.
func TestAContainersBackupIsProved(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.CT("mail", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30", Verify: "restore", Window: "00:00-00:00"}
		w.Apply()
		w.backUp(10000)
		before := production(w)
		p := w.due(none)
		require.Len(t, p.Steps, 1, "%v", p.Findings)
		require.NoError(t, w.Run(p)[p.Steps[0].Address])
		require.Equal(t, before, production(w))
		archive := p.Backups[0].Archive
		w.Host.Edit(func(e *pve.Edit) { e.Spoil(archive, true) })
		require.ErrorContains(t, w.Run(w.due(none))[p.Steps[0].Address], "tar")
		require.Len(t, w.Host.Snapshot().Guests, 1)
	})
}

// TestABackupFromTheFutureHasNoAge: it would hide for years that none is made any more.
func TestABackupFromTheFutureHasNoAge(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		proving(w)
		archive := w.due(none).Backups[0].Archive
		time.Sleep(27 * time.Hour)
		w.Host.Edit(func(e *pve.Edit) { e.Date(archive, time.Now().Add(24*365*time.Hour)) })
		p := w.due(none)
		require.Contains(t, p.Backups[0].Stale, "lists no backup of it; "+archive+" is dated ")
		require.Empty(t, p.Steps, "nor is it verified")
	})
}

// TestAnotherGuestsBackupProvesNothing: the storage still lists one of an earlier container with the same VMID.
func TestAnotherGuestsBackupProvesNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.CT("mail", nil)
		w.Apply()
		w.backUp(10000)
		w.Drop("mail")
		w.Apply()
		w.CT("files", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30", Verify: "restore", Window: "00:00-00:00"}
		w.Apply()
		p := w.due(none)
		require.Len(t, p.Steps, 1, "%v", p.Findings)
		require.ErrorContains(t, w.Run(p)[p.Steps[0].Address], "it is of another guest")
		require.Len(t, w.Host.Snapshot().Guests, 1)
	})
}

// TestTheTagOfAProofDestroysNoLaterContainer: it is copied onto a container that got the same VMID.
func TestTheTagOfAProofDestroysNoLaterContainer(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.CT("mail", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30", Verify: "restore", Window: "00:00-00:00"}
		w.Apply()
		w.backUp(10000)
		tag := ""
		w.Sees = func(r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/lxc/10001/status/start") {
				tag = w.Guest(10001).Config["description"]
			}
		}
		p := w.due(none)
		require.NoError(t, w.Run(p)[p.Steps[0].Address])
		require.NotEmpty(t, tag)
		time.Sleep(25 * time.Hour)
		w.Host.Edit(func(e *pve.Edit) {
			e.Add(pve.Guest{VMID: 10001, Kind: "lxc", Config: map[string]string{"hostname": "later", "memory": "512", "description": tag}})
		})
		w.Apply()
		require.Len(t, w.Host.Snapshot().Guests, 2)
	})
}

// TestTheFinalBackupIsProvedBeforeAGuestIsDestroyed, and scripts run in it before it is stopped.
func TestTheFinalBackupIsProvedBeforeAGuestIsDestroyed(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n := w.Node("db", func(vm *guest.VM) { vm.Agent = true })
		n.Decomm = &model.Decomm{Policy: "requires_final_backup", Verify: "restore", Before: []string{"echo bye"}}
		w.Site.VMIDRanges = []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}
		w.Reopen()
		w.Apply()
		time.Sleep(time.Minute)
		w.Drop("db")
		p := w.Plan()
		require.Contains(t, p.Steps[0].Reason, "after a final backup to local, verified by a restore")
		require.True(t, p.Steps[0].Have.Guest.SlowRemoval)
		require.NoError(t, w.Run(p)[dbAddr])
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, backups(w), 1)
		require.Equal(t, []string{"qmcreate", "qmrestore", "qmstart", "qmstop", "qmdestroy"}, tasksOf(w, 10099))
	})
}

// TestAFailingScriptKeepsTheGuest as it is: it runs on, and nothing was backed up.
func TestAFailingScriptKeepsTheGuest(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n := w.Node("db", func(vm *guest.VM) { vm.Agent = true })
		n.Decomm = &model.Decomm{Policy: "requires_final_backup", Before: []string{"true", "exit 3"}}
		w.Apply()
		time.Sleep(time.Minute)
		n.Decomm.Before = nil // in the commit that removes it: what the guest's tag says counts
		w.Drop("db")
		before := production(w)
		require.ErrorContains(t, w.Run(w.Plan())[dbAddr], `before_destroy "exit 3" failed, so it is kept as it is: exit code 3`)
		require.Equal(t, before, production(w))
		require.True(t, w.Guest(10000).Running)

		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) }) // there is nothing to stop in it any more
		require.NoError(t, w.Run(w.Plan())[dbAddr])
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, backups(w), 1)
	})
}

// TestRestartedWhileAProvedGuestLeaves: the agent dies at any moment of a removal whose backup is verified; the next one goes on.
func TestRestartedWhileAProvedGuestLeaves(t *testing.T) {
	const tick = 1300 * time.Millisecond
	for at := tick; at < 26*time.Second; at += tick {
		t.Run(at.String(), func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: 2 * time.Second}, func(t *testing.T, w *world) {
				n := w.Node("db", func(vm *guest.VM) { vm.Agent = true })
				n.Decomm = &model.Decomm{Policy: "requires_final_backup", Verify: "restore", Before: []string{"true"}}
				w.Site.VMIDRanges = []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}
				w.Reopen()
				w.Apply()
				time.Sleep(time.Minute)
				w.Drop("db")
				dying, cancel := context.WithTimeout(t.Context(), at)
				defer cancel()
				w.RunUntil(dying, w.Plan())
				w.Reopen()
				w.Apply()
				time.Sleep(5 * time.Second)
				w.Apply()
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Len(t, backups(w), 1)
				w.Converged()
			})
		})
	}
}

// onPBS is proving with backups on a Proxmox Backup Server.
func onPBS(w *world) {
	w.T.Helper()
	_, err := w.Driver.Post(w.T.Context(), "/storage", map[string]any{"storage": "vault", "type": "pbs", "server": "192.0.2.60", "datastore": "main", "username": "root@pam"})
	require.NoError(w.T, err)
	w.Node("db", func(vm *guest.VM) { vm.Agent = true })
	w.CT("mail", nil)
	w.Site.VMIDRanges = []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}
	w.Site.Backup = &model.Backup{Schedule: "02:30", Storage: "vault", Keep: map[string]string{"daily": "7"}, MaxAge: 26 * time.Hour, Verify: "restore", Window: "00:00-00:00"}
	w.Apply()
	time.Sleep(time.Minute)
	w.vault()
}

// vault backs both guests up.
func (w *world) vault() {
	w.T.Helper()
	for _, vmid := range []string{"10000", "10001"} {
		upid, err := w.Driver.Post(w.T.Context(), "/nodes/father/vzdump", map[string]any{"vmid": vmid, "storage": "vault", "prune-backups": "keep-last=2"})
		require.NoError(w.T, err)
		require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
	}
}

// backupOf is what a plan says of the backups of a guest.
func backupOf(t *testing.T, p *plan.Plan, addr string) *model.BackupState {
	t.Helper()
	for _, b := range p.Backups {
		if b.Address.String() == addr {
			return b.BackupState
		}
	}
	require.Fail(t, "the plan says nothing of its backups", addr)
	return nil
}

// TestBackupsOnAProxmoxBackupServer count as others do: jobs, keep, age, and the proof by a restore, of a VM and of a container.
func TestBackupsOnAProxmoxBackupServer(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		onPBS(w)
		w.Converged()
		p := w.due(none)
		for addr, name := range map[string]string{"vm.db": "vault:backup/vm/1000", "ct.mail": "vault:backup/ct/1000"} {
			b := backupOf(t, p, addr)
			require.Contains(t, b.Archive, name)
			require.Empty(t, b.Stale)
		}
		for name, addr := range map[string]model.Address{"vm-db": dbAddr, "ct-mail": {Kind: "ct", Name: "mail"}} {
			other := map[model.Address]model.Restored{{Kind: "vm", Name: "db"}: {Tried: time.Now(), Proved: time.Now()}, {Kind: "ct", Name: "mail"}: {Tried: time.Now(), Proved: time.Now()}}
			delete(other, addr)
			p = w.due(other)
			require.Len(t, p.Steps, 1, "%v", p.Findings)
			require.Equal(t, "restore."+name, p.Steps[0].Address.String())
			before := production(w)
			require.NoError(t, w.Run(p)[p.Steps[0].Address])
			require.Equal(t, before, production(w))
			require.Len(t, w.Host.Snapshot().Guests, 2)
			archive := backupOf(t, p, addr.String()).Archive
			w.Host.Edit(func(e *pve.Edit) { e.Spoil(archive, true) })
			require.ErrorContains(t, w.Run(w.due(other))[p.Steps[0].Address], "failed: exit code 255")
			require.Len(t, w.Host.Snapshot().Guests, 2)
		}
		time.Sleep(27 * time.Hour)
		require.Contains(t, backupOf(t, w.due(nil), "vm.db").Stale, "the newest on storage vault is 27h")
		w.vault()
		time.Sleep(time.Minute)
		w.vault()
		require.Empty(t, backupOf(t, w.due(nil), "vm.db").Stale)
		require.Len(t, w.Host.Snapshot().Volumes["vault"], 4, "two of each guest are kept")
	})
}

// TestABackupThatItsServerFoundDamaged does not count, and neither does one that is being written.
func TestABackupThatItsServerFoundDamaged(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		onPBS(w)
		first := backupOf(t, w.due(nil), "vm.db").Archive
		says := func() string {
			var out []string
			for _, f := range w.due(nil).Findings {
				if f.Address == "vm.db" {
					out = append(out, f.Summary)
				}
			}
			return strings.Join(out, "\n")
		}
		verified := func(volid, state string) { w.Host.Edit(func(e *pve.Edit) { e.Verified(volid, state) }) }
		verified(first, "ok")
		require.Empty(t, says())
		time.Sleep(20 * time.Hour)
		w.vault()
		second := backupOf(t, w.due(nil), "vm.db").Archive
		require.NotEqual(t, first, second)
		verified(second, "failed")
		require.Equal(t, "the backup "+second+" of vm.db is damaged", says(), "the first is fresh enough")
		require.Equal(t, first, backupOf(t, w.due(nil), "vm.db").Archive)
		p := w.due(map[model.Address]model.Restored{{Kind: "ct", Name: "mail"}: {Tried: time.Now(), Proved: time.Now()}})
		require.Equal(t, first, p.Steps[0].Want.Spec.(*model.RestoreTest).Archive, "it is not the one to verify")
		verified(second, "unfinished")
		require.Empty(t, says())
		require.Equal(t, first, backupOf(t, w.due(nil), "vm.db").Archive)
		verified(second, "failed")
		verified(first, "failed")
		time.Sleep(7 * time.Hour)
		require.Equal(t, "the backup of vm.db is stale: storage vault lists no backup of it\nthe backup "+first+" of vm.db is damaged", says(), "neither is whole")
	})
}

// TestAFinalBackupOnAProxmoxBackupServer is made, verified and found again; one that the server found damaged is made again.
func TestAFinalBackupOnAProxmoxBackupServer(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		onPBS(w)
		w.Site.Hosts["father"].Storage = &model.Storage{Disks: "local-lvm", Images: "local", ISO: "local", Snippets: "local", Backups: "vault"}
		w.Site.Backup = nil
		w.Site.Manifests["web"].Nodes[0].Decomm = &model.Decomm{Policy: "requires_final_backup", Verify: "restore"}
		w.Reopen()
		w.Apply()
		w.Drop("db")
		dying, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		w.RunUntil(dying, w.Plan()) // the backup is there by then
		final := func() (out []string) {
			for _, v := range w.Host.Snapshot().Volumes["vault"] {
				if v.Protected {
					out = append(out, v.ID)
				}
			}
			return out
		}
		made := final()
		require.Len(t, made, 1)
		w.Host.Edit(func(e *pve.Edit) { e.Verified(made[0], "failed") })
		w.Reopen()
		require.NoError(t, w.Run(w.Plan())[dbAddr])
		require.Len(t, final(), 2, "another one was made")
		require.Len(t, w.Host.Snapshot().Guests, 1)
	})
}
