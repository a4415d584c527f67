package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestPVENodeIsBornAsAVMThatCanHaveGuests(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		n := w.node("inner", nil)
		n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
		child := w.node("app", nil)
		child.Parent = "inner"
		p := w.apply()
		require.Len(t, p.Steps, 2)
		require.Equal(t, "host", w.guest(10000).Config["cpu"])
		require.Len(t, w.host.Snapshot().Guests, 1, "children are not made here")
		require.Equal(t, "vm.app", p.Deferred[0].Address)
		w.converged()

		_, m, _ := owner.ParseDescription(w.guest(10000).Config["description"])
		require.Equal(t, "pve", m.Type)
		w.drop("inner")
		w.drop("app")
		w.apply()
		require.Empty(t, w.host.Snapshot().Guests)
	})
}
