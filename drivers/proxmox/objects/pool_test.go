package objects_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestPoolLife(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		addr := model.Address{Kind: "pool", Name: "prod"}
		spec := &objects.Pool{Host: "father", Comment: "what pays"}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: spec}
		w.Site.Hosts["father"].Pool = "prod"
		w.Node("web-1", nil)
		w.Apply()
		require.Equal(t, "prod", w.Guest(10000).Pool)
		w.Converged()

		spec.Comment = "what earns"
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"comment"}, proxmoxtest.Paths(p.Steps[0]))
		require.Contains(t, w.Host.Snapshot().Pools[0].Comment, "what earns\nhomestak-gitops: {")

		w.Drop("web-1")
		delete(w.Site.Objects, addr)
		w.Site.Hosts["father"].Pool = ""
		p = w.Apply()
		require.Len(t, p.Steps, 2)
		require.Equal(t, "vm.web-1", p.Steps[0].Address.String(), "a pool goes after its guests")
		require.Empty(t, w.Host.Snapshot().Pools)
		w.Converged()
	})
}

// TestGuestsOfAnotherPoolAreSaid: a guest joins its pool when it is made. The plan says
// how to move it when the host names another, once for all of them.
func TestGuestsOfAnotherPoolAreSaid(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		pool := func(name string) model.Address {
			addr := model.Address{Kind: "pool", Name: name}
			w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: &objects.Pool{Host: "father"}}
			return addr
		}
		old := pool("old")
		w.Site.Hosts["father"].Pool = "old"
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		w.Apply()
		w.Converged()
		require.Empty(t, w.Plan().Findings)

		pool("new")
		w.Site.Hosts["father"].Pool = "new"
		w.Apply()
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Findings, 1)
		require.Equal(t, "guests are not in pool new, which host father names, but in another: vm.web-1 (old), vm.web-2 (old)", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, "pvesh set /pools/new --allow-move 1 --vms 10000,10001")

		w.Root("PUT", "/pools/new", url.Values{"vms": {"10000,10001"}, "allow-move": {"1"}})
		require.Empty(t, w.Plan().Findings)
		delete(w.Site.Objects, old)
		w.Apply()
		w.Converged()
	})
}

func TestUnmanagedPoolsAreLeftAlone(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		_, err := w.Driver.Client().Post(t.Context(), "/pools", map[string]any{"poolid": "prod", "comment": "by hand"})
		require.NoError(t, err)
		addr := model.Address{Kind: "pool", Name: "prod"}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: &objects.Pool{Host: "father"}}
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.True(t, p.Findings.HasErrors())
		require.Equal(t, "by hand", w.Host.Snapshot().Pools[0].Comment)
	})
}

// TestPoolWhoseCommentWasEdited is explained with the line that makes it ours again.
func TestPoolWhoseCommentWasEdited(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		addr := model.Address{Kind: "pool", Name: "prod"}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: &objects.Pool{Host: "father", Comment: "what pays"}}
		w.Apply()
		comment := func(text string) {
			_, err := w.Driver.Client().Put(t.Context(), "/pools/prod", map[string]any{"comment": text})
			require.NoError(t, err)
		}
		comment("mine")
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Equal(t, `pool.prod is not created: pool "prod" exists already and is unmanaged (no ownership tag in its comment)`, p.Findings[0].Summary)
		before, line, _ := strings.Cut(p.Findings[0].Detail, "\n")
		require.Contains(t, before, "put its ownership tag back")
		comment("mine\n" + line)
		w.Apply()
		w.Converged()
		require.Equal(t, "what pays\n"+line, w.Host.Snapshot().Pools[0].Comment)
	})
}
