package proxmox_test

import (
	"context"
	"errors"
	"fmt"
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

// nursery is a parent: it counts its tokens, of which each is a secret.
type nursery struct {
	tokens   int
	broken   error
	reported atomic.Bool
}

func (p *nursery) FirstBoot(node, spec, userData string) (string, error) {
	if p.broken != nil {
		return "", p.broken
	}
	p.tokens++
	return fmt.Sprintf("#cloud-config\n# %s pulls %s with %s-%d\n%s", node, spec, hush, p.tokens, userData), nil
}

func (p *nursery) HasReported(string) bool { return p.reported.Load() }

// pulling declares a node in mode pull, and a parent that serves it.
func (w *world) pulling(name string, edit func(*guest.VM)) (*model.Node, *nursery) {
	w.Site.Specs["base"] = &model.Spec{Name: "base"}
	n := w.Node(name, edit)
	n.Mode, n.Spec = model.ModePull, "base"
	p := &nursery{}
	w.Parent = p
	w.Reopen()
	return n, p
}

// A node in mode pull gets to know its parent at its first boot. Nobody else does: the token is on
// the seed alone, and that is removed. A fresh token is no difference.
func TestANodeInModePullGetsToKnowItsParent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		_, parent := w.pulling("web-1", nil)
		p := w.Plan()
		require.Equal(t, "small, debian-12, pulls spec base", w.Site.Kinds.Get("vm").Brief(p.Steps[1].Want))
		require.Zero(t, parent.tokens, "a plan mints none")
		p = w.Apply()
		require.Equal(t, 1, parent.tokens)
		require.Len(t, o.order, 1)
		docs := documents(t, o.uploads[o.order[0]])
		require.Equal(t, "#cloud-config\n# web-1 pulls base with "+hush+"-1\n", docs["user-data"])
		require.Contains(t, docs["vendor-data"], "ops@home")
		require.NotContains(t, o.plain.String(), "cloudinit", "a second volume of that label")
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"], "its agent answered, so it was read")
		require.Empty(t, seeds(w))
		silent(t, w, o, p)
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		require.Equal(t, 1, parent.tokens)

		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		p = w.Apply()
		require.Equal(t, 2, parent.tokens, "another machine, another token")
		require.Contains(t, documents(t, o.uploads[o.order[1]])["user-data"], hush+"-2")
		silent(t, w, o, p)
	})
}

// Beside what the site says.
func TestANodeInModePullHasUserDataToo(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		n, _ := w.pulling("web-1", func(v *guest.VM) { v.UserData = "#cloud-config\n{}\n" })
		w.Apply()
		require.Contains(t, documents(t, o.uploads[o.order[0]])["user-data"], "#cloud-config\n{}\n")
		w.VM("web-1").UserData = ""
		pending := w.Plan().Pending
		require.Len(t, pending, 1)
		require.Equal(t, "user_data", pending[0].Path)
		n.Mode = model.ModePush
		require.Len(t, w.Plan().Pending, 1, "whoever pushes does not mind what it knows")
	})
}

// Without a guest agent its own report says that the first boot is over.
func TestTheSeedGoesWhenTheNodeHasReported(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", func(v *guest.VM) { v.Agent = false })
		time.AfterFunc(40*time.Second, func() { parent.reported.Store(true) })
		w.Apply()
		require.Empty(t, seeds(w))
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"])
	})
}

// Nor does a pass that was interrupted leave the seed for long.
func TestALaterPassRemovesTheSeedOfANodeThatHasReported(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", func(v *guest.VM) { v.Agent = false })
		w.Apply()
		require.Len(t, seeds(w), 1)
		w.Converged()
		parent.reported.Store(true)
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"seed"}, proxmoxtest.Paths(p.Steps[0]))
		require.Empty(t, seeds(w))
		w.Converged()
	})
}

// Where nobody serves its spec it is not created, and the plan says what to do. One that is there is
// changed as any other.
func TestANodeInModePullNeedsAParent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n, parent := w.pulling("web-1", nil)
		w.Parent = nil
		w.Reopen()
		p := w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.web-1 is not created: it is in mode pull, and no server for its spec runs here", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, "listen")

		w.Parent = parent
		w.Reopen()
		w.Apply()
		w.Parent = nil
		w.Reopen()
		w.Converged()
		w.VM("web-1").Description = "edited"
		require.Len(t, w.Apply().Steps, 1)

		w.VM("web-1").Image, w.VM("web-1").Template = "", "golden" // recreates it
		w.Template(9000, "golden")
		p = w.Apply()
		require.Empty(t, p.Steps)
		require.Contains(t, p.Findings[len(p.Findings)-1].Summary, "vm.web-1 is not replaced")
		require.Len(t, w.Host.Snapshot().Guests, 2)

		n.Spec = "" // there is nothing to pull
		require.Len(t, w.Plan().Steps, 1)
	})
}

// A container has no cloud-init, so somebody has to enter it from its node.
func TestAContainerInModePullIsNotCreated(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.pulling("web-1", nil)
		w.CT("box", nil)
		nodes := w.Site.Manifests["web"].Nodes
		nodes[1].Mode, nodes[1].Spec = model.ModePull, "base"
		p := w.Plan()
		require.Len(t, p.Findings, 1)
		require.Equal(t, "ct.box is not created: containers cannot be created in mode pull from another machine", p.Findings[0].Summary)
	})
}

// A guest that was created to be pushed does not know a parent, and nobody configures it from then on.
func TestALateModePullIsPending(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n, _ := w.pulling("web-1", nil)
		n.Mode = model.ModePush
		w.Apply()
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		n.Mode = model.ModePull
		w.Converged()
		pending := w.Plan().Pending
		require.Len(t, pending, 1)
		require.Equal(t, "mode", pending[0].Path)
		require.Contains(t, pending[0].Why, "recreate")
	})
}

// Whatever gets lost on the way, there is one machine in the end, and the token of its seed is the last
// one. Where no token can be had, nothing is created.
func TestCreationInModePullGoesOn(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", nil)
		parent.broken = errors.New("there is no signing key")
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "there is no signing key")
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Empty(t, seeds(w))

		parent.broken = nil
		o := w.tap()
		ctx, stop := context.WithCancel(t.Context())
		sees := w.Sees
		w.Sees = func(r *http.Request) {
			sees(r)
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu") {
				stop() // the seed is there, and its machine is not
			}
		}
		w.RunUntil(ctx, w.Plan())
		require.Len(t, seeds(w), 1)
		w.Sees = sees
		w.Apply()
		require.Len(t, w.Host.Snapshot().Guests, 1)
		require.Contains(t, documents(t, o.uploads[o.order[len(o.order)-1]])["user-data"], fmt.Sprintf("%s-%d", hush, parent.tokens))
		w.Converged()
	})
}
