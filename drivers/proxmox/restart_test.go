package proxmox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestGuestThatDoesNotObeyIsNotRestartedForEver: the files allow restarts, the guest
// does not shut down. It is asked once, then left alone for an hour while what waits
// stays listed, and restarted when it obeys again.
func TestGuestThatDoesNotObeyIsNotRestartedForEver(t *testing.T) {
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
			require.False(t, temporary.Temporary(), "trying again at once helps nobody")
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

// TestWhatWaitsIsNoEditOfSomebody: the digest moves between plan and step for a reason
// that is none of ours, while the guest waits for a restart. The step goes on.
func TestWhatWaitsIsNoEditOfSomebody(t *testing.T) {
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
		require.Contains(t, p.Unknown[0].Why, "may be being created, but the tasks of node father cannot be seen")
		require.Contains(t, p.Unknown[1].Why, "may be it")
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
