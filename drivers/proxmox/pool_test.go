package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestPoolLife(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		addr := model.Address{Kind: "pool", Name: "prod"}
		spec := &proxmox.Pool{Host: "father", Comment: "what pays"}
		w.site.Objects[addr] = &model.Resource{Addr: addr, Spec: spec}
		w.site.Hosts["father"].Pool = "prod"
		w.node("web-1", nil)
		w.apply()
		require.Equal(t, "prod", w.guest(10000).Pool)
		w.converged()

		spec.Comment = "what earns"
		p := w.apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"comment"}, paths(p.Steps[0]))
		require.Contains(t, w.host.Snapshot().Pools[0].Comment, "what earns\nhomestak-gitops: {")

		w.drop("web-1")
		delete(w.site.Objects, addr)
		w.site.Hosts["father"].Pool = ""
		p = w.apply()
		require.Len(t, p.Steps, 2)
		require.Equal(t, "vm.web-1", p.Steps[0].Address.String(), "a pool goes after its guests")
		require.Empty(t, w.host.Snapshot().Pools)
		w.converged()
	})
}

func TestForeignPoolIsLeftAlone(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		_, err := w.d.Post(t.Context(), "/pools", map[string]any{"poolid": "prod", "comment": "by hand"})
		require.NoError(t, err)
		addr := model.Address{Kind: "pool", Name: "prod"}
		w.site.Objects[addr] = &model.Resource{Addr: addr, Spec: &proxmox.Pool{Host: "father"}}
		p := w.plan()
		require.Empty(t, p.Steps)
		require.True(t, p.Findings.HasErrors())
		require.Equal(t, "by hand", w.host.Snapshot().Pools[0].Comment)
	})
}
