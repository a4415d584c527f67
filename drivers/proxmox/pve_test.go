package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestPVENodeIsBornAsAVMThatCanHaveGuests(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		n := w.Node("inner", nil)
		n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
		child := w.Node("app", nil)
		child.Parent, n.Children = "inner", []string{"app"}
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		require.Equal(t, "host", w.Guest(10000).Config["cpu"])
		require.Len(t, w.Host.Snapshot().Guests, 1, "children are not made here")
		require.Equal(t, "pve.inner", p.Deferred[0].Address)
		require.Contains(t, p.Deferred[0].Why, "app")
		w.Converged()

		_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
		require.Equal(t, "pve", m.Type)
		w.Drop("inner")
		w.Drop("app")
		require.NotEmpty(t, w.Apply().Postponed(), "nobody said that nothing is left in it")
		require.Len(t, w.Host.Snapshot().Guests, 1)

		w.Orphans = []string{"inner"}
		w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}
