package agent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A node that loses its spec is entered by what the agent converged to before, until nothing of the spec is left; from then
// on nobody enters it.
func TestAnAgentWithdrawsALostSpec(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		w.repo.push("c1", engine.Desired{Site: enginetest.InsideSite(map[string]int{"a": 1})})
		w.start()
		w.pass(10 * time.Minute)
		inner := enginetest.Addr("inner", "a")
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)

		byHand := func(change func()) {
			i.Mu.Lock()
			defer i.Mu.Unlock()
			change()
		}
		without := enginetest.InsideSite(map[string]int{"a": 1})
		without.Manifests["web"].Nodes[0].Spec = ""
		byHand(func() { i.Fail = map[string]error{"inner.a": errors.New("no route to host")} })
		w.repo.push("c2", engine.Desired{Site: without})
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)
		byHand(func() { i.Fail = nil })
		w.pass(time.Hour)
		require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)

		byHand(func() {
			i.Applied, i.Holds[inner].Spec = nil, &enginetest.Room{Packages: []string{"by hand"}}
		})
		w.pass(time.Hour)
		require.Empty(t, i.Applied, "what somebody does inside is no business of the site any more")
	})
}

// A spec that is lost while nobody may enter the guest is withdrawn by the first pass that may, whatever was committed
// meanwhile, and also after the agent was started again.
func TestALostSpecIsWithdrawnLater(t *testing.T) {
	inner := enginetest.Addr("inner", "a")
	site := func(spec string, change func(*model.Site)) engine.Desired {
		s := enginetest.InsideSite(map[string]int{"a": 1})
		s.Manifests["web"].Nodes[0].Spec = spec
		if change != nil {
			change(s)
		}
		return engine.Desired{Site: s}
	}
	suspended := func(s *model.Site) { s.Manifests["web"].Suspend = true }
	off := func(s *model.Site) { // nobody can enter a guest that shall be off
		k := *s.Kinds.Get("inner")
		k.Inside = func(_ *model.Resource, in model.Scope) (*model.Resource, diag.List) {
			if in.Earlier != nil {
				return &model.Resource{Deferred: "the guest is declared off"}, nil
			}
			return nil, nil
		}
		for i := range s.Kinds {
			if s.Kinds[i].Name == k.Name {
				s.Kinds[i] = &k
			}
		}
	}
	for name, c := range map[string]struct {
		lose, settle func(w *world, i *enginetest.Inn)
	}{
		"the files suspend the manifest": {
			func(w *world, _ *enginetest.Inn) { w.repo.push("c2", site("", suspended)) },
			func(w *world, _ *enginetest.Inn) { w.repo.push("c4", site("", nil)) },
		},
		"the manifest is suspended by hand": {
			func(w *world, _ *enginetest.Inn) {
				require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web"}))
				w.repo.push("c2", site("", nil))
			},
			func(w *world, _ *enginetest.Inn) {
				_, err := w.agent.Resume("web")
				require.NoError(t, err)
			},
		},
		"the guest is declared off": {
			func(w *world, _ *enginetest.Inn) { w.repo.push("c2", site("", off)) },
			func(w *world, _ *enginetest.Inn) { w.repo.push("c4", site("", nil)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				i := enginetest.NewInn()
				w.options = func(o *agent.Options) {
					o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
				}
				full := &enginetest.Room{Packages: []string{"nginx"}}
				w.repo.push("c1", site("base", nil))
				w.start()
				w.pass(10 * time.Minute)
				require.Equal(t, full, i.Holds[inner].Spec)

				c.lose(w, i)
				w.pass(10 * time.Minute)
				next := w.repo.sites["c2"].Site
				again := *next
				w.repo.push("c3", engine.Desired{Site: &again})
				w.pass(10 * time.Minute)
				require.Equal(t, "c3", w.state().Converged.ID)
				require.Equal(t, full, i.Holds[inner].Spec)
				w.end()
				w.start()
				require.Contains(t, w.repo.kept, "c1", "the commit that says how the guest is entered stays available")

				c.settle(w, i)
				w.pass(time.Hour)
				require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)
				require.Empty(t, w.state().Specs)
			})
		})
	}
}

// A state of an older program has no commits of specs. One that is noted for a guest does not hide the commit that the host
// converged to, by which the spec of another guest was applied.
func TestALostSpecOfAGuestWithoutANote(t *testing.T) {
	a, b := enginetest.Addr("inner", "a"), enginetest.Addr("inner", "b")
	site := func(specs map[string]string) engine.Desired {
		s := enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
		for _, n := range s.Manifests["web"].Nodes {
			n.Spec = specs[n.Name]
		}
		return engine.Desired{Site: s}
	}
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		w.repo.push("c1", site(map[string]string{"a": "base", "b": "base"}))
		w.start()
		w.pass(10 * time.Minute)
		full := &enginetest.Room{Packages: []string{"nginx"}}
		require.Equal(t, full, i.Holds[a].Spec)
		require.Equal(t, full, i.Holds[b].Spec)
		w.end()
		state := w.state()
		delete(state.Specs, enginetest.Addr("box", "b").String())
		kept, err := ledger.Open(w.dir)
		require.NoError(t, err)
		require.NoError(t, kept.SetState(state))
		w.repo.push("c2", site(map[string]string{"a": "base"}))
		w.start()
		w.pass(10 * time.Minute)
		require.Equal(t, full, i.Holds[a].Spec)
		require.Equal(t, &enginetest.Room{}, i.Holds[b].Spec)
	})
}

// A spec of a commit that the host never converged to is withdrawn as well.
func TestALostSpecOfACommitThatNeverConverged(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		site := func(spec string) engine.Desired {
			s := enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
			for _, n := range s.Manifests["web"].Nodes {
				if n.Name == "a" {
					n.Spec = spec
				}
			}
			return engine.Desired{Site: s}
		}
		inner := enginetest.Addr("inner", "a")
		i.Fail = map[string]error{"inner.b": errors.New("no space left on device")}
		w.repo.push("c1", site(""))
		w.start()
		w.pass(10 * time.Minute)
		w.repo.push("c2", site("base"))
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)
		require.Empty(t, w.state().Converged.ID)
		w.repo.push("c3", site(""))
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)
		i.Mu.Lock()
		i.Fail = nil
		i.Mu.Unlock()
		w.pass(time.Hour)
		require.Equal(t, map[string]string{"box.b": "c3"}, w.state().Specs)
	})
}
