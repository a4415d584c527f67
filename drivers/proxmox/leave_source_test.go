package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) }) // it crashes, and nobody looked yet
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
