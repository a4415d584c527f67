package proxmox_test

import (
	"net/url"
	"strings"
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

// TestGuestsOfAnotherPoolAreSaid: a guest joins its pool when it is made. The plan says
// how to move it when the host names another, once for all of them.
func TestGuestsOfAnotherPoolAreSaid(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		pool := func(name string) model.Address {
			addr := model.Address{Kind: "pool", Name: name}
			w.site.Objects[addr] = &model.Resource{Addr: addr, Spec: &proxmox.Pool{Host: "father"}}
			return addr
		}
		old := pool("old")
		w.site.Hosts["father"].Pool = "old"
		w.node("web-1", nil)
		w.node("web-2", nil)
		w.apply()
		w.converged()
		require.Empty(t, w.plan().Findings)

		pool("new")
		w.site.Hosts["father"].Pool = "new"
		w.apply()
		p := w.plan()
		require.Empty(t, p.Steps, "%s", describe(p))
		require.Len(t, p.Findings, 1)
		require.Equal(t, "guests are not in pool new, which host father names, but in another: vm.web-1 (old), vm.web-2 (old)", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, "pvesh set /pools/new --allow-move 1 --vms 10000,10001")

		w.root("PUT", "/pools/new", url.Values{"vms": {"10000,10001"}, "allow-move": {"1"}})
		require.Empty(t, w.plan().Findings)
		delete(w.site.Objects, old)
		w.apply()
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

// TestPoolWhoseCommentWasEdited is explained with the line that makes it ours again.
func TestPoolWhoseCommentWasEdited(t *testing.T) {
	inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
		addr := model.Address{Kind: "pool", Name: "prod"}
		w.site.Objects[addr] = &model.Resource{Addr: addr, Spec: &proxmox.Pool{Host: "father", Comment: "what pays"}}
		w.apply()
		comment := func(text string) {
			_, err := w.d.Put(t.Context(), "/pools/prod", map[string]any{"comment": text})
			require.NoError(t, err)
		}
		comment("mine")
		p := w.plan()
		require.Empty(t, p.Steps)
		require.Equal(t, `pool.prod is not created: pool "prod" exists already and is unmanaged (no ownership tag in its comment)`, p.Findings[0].Summary)
		before, line, _ := strings.Cut(p.Findings[0].Detail, "\n")
		require.Contains(t, before, "put its mark back")
		comment("mine\n" + line)
		w.apply()
		w.converged()
		require.Equal(t, "what pays\n"+line, w.host.Snapshot().Pools[0].Comment)
	})
}
