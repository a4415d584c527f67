package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestGuestsThatDoNotObey are stopped in the end, and by nobody before their time.
func TestGuestsThatDoNotObey(t *testing.T) {
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

// TestWhatGoesWithAGuest: the plan names disks that the files do not; volumes that
// only carry the VMID stay, and so do those of other guests.
func TestWhatGoesWithAGuest(t *testing.T) {
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
