package proxmox_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestRenamedAndUnreadIsNotMadeAgain: the name that somebody gave a guest says nothing
// about whose it is while its configuration cannot be read.
func TestRenamedAndUnreadIsNotMadeAgain(t *testing.T) {
	var dark atomic.Bool // the agent's requests run side by side
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/qemu/10000/")}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "name", "renamed") })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Unknown)
		dark.Store(false)
		w.Apply()
		require.Equal(t, "web-1", w.Guest(10000).Config["name"])
		require.Len(t, w.Host.Snapshot().Guests, 1)
	})
}

// TestCopyBesideAnUnreadOriginalIsNotStarted: a restored backup proves as much as its
// original; while that one cannot be read nobody knows that there are two.
func TestCopyBesideAnUnreadOriginalIsNotStarted(t *testing.T) {
	var dark atomic.Bool // as above
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/qemu/10000/")}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 10001, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Unknown)
		w.Drop("web-1")
		require.Empty(t, w.Plan().Steps, "nor is it removed")
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "name", "renamed")
			e.Set(10001, "name", "renamed")
		})
		time.Sleep(20 * time.Second)
		require.Empty(t, w.Plan().Steps, "whatever both are called")
	})
}

// TestCopiesAreCalledWhatTheyAre: of containers PVE's tools have other names.
func TestCopiesAreCalledWhatTheyAre(t *testing.T) {
	var dark atomic.Bool // as above
	inTime(t, pve.Config{TaskTime: time.Second, Fault: unreadable(&dark, "/lxc/10000/")}, func(t *testing.T, w *world) {
		w.ct("cache", nil)
		w.Apply()
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 10001, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		dark.Store(true)
		require.Contains(t, card(w.Plan()), "CT 10001 carries its identity, and so may CT 10000 of the same name, which cannot be read")
	})
}

// TestCopyThatNothingTellsButItsName: a restored backup without our tag, outside of the
// site's ranges, of a guest that left the files. Only its name says that it is to be read.
func TestCopyThatNothingTellsButItsName(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "tags", "") })
		copied := w.Guest(10000)
		copied.VMID, copied.Running = 30000, false
		w.Host.Edit(func(e *pve.Edit) { e.Add(copied) })
		time.Sleep(20 * time.Second)
		w.Drop("web-1")
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Unmanaged, 2)
		require.Contains(t, p.Unmanaged[0].Why, "one of 2 guests with the identity of vm.web-1")
	})
}

func unreadable(dark *atomic.Bool, path string) func(*http.Request) (int, bool) {
	return func(r *http.Request) (int, bool) {
		if dark.Load() && strings.Contains(r.URL.Path, path) {
			return 595, false
		}
		return 0, false
	}
}

// TestAnotherVMIDIsARemoval: what keeps a guest from being removed keeps it from being
// recreated under another VMID.
func TestAnotherVMIDIsARemoval(t *testing.T) {
	for word, edit := range map[string]func(*model.Node, *guest.VM){
		"decommission": func(n *model.Node, _ *guest.VM) { n.Decomm = &model.Decomm{Policy: "requires_migration_first"} },
		"protected":    func(_ *model.Node, v *guest.VM) { v.Protection = true },
	} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			n := w.Node("web-1", nil)
			edit(n, w.VM("web-1"))
			w.Apply()
			n.Resource.Guest.VMID = 10050
			p := w.Plan()
			require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
			require.Contains(t, p.Findings[0].Summary, word)
		})
	}
}
