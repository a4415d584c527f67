package engine_test

import (
	"context"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// apart is a driver that can observe changed guests alone, as long as they are there.
type apart struct {
	*enginetest.Host
	looks []string
}

func (a *apart) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	have, err := a.Host.Observe(ctx, w)
	have.State = maps.Clone(have.State)
	maps.DeleteFunc(have.State, func(addr model.Address, _ *model.Resource) bool {
		_, asked := w.Changed[addr]
		return len(w.Changed) > 0 && !asked
	})
	if have.Only = len(w.Changed) > 0 && len(have.State) == len(w.Changed); have.Only {
		a.looks = append(a.looks, "some")
		return have, err
	}
	a.looks = append(a.looks, "all")
	return a.Host.Observe(ctx, w)
}

// A pass about changed guests updates them, and says nothing of the others. Whatever else is to be done makes it a pass about
// all, and nothing that was not observed is taken for absent.
func TestAPassAboutChangedGuests(t *testing.T) {
	box := func(name string) model.Address { return enginetest.Addr("box", name) }
	for name, c := range map[string]struct {
		change  func(*enginetest.Host)
		looks   []string
		applied []string
	}{
		"as the files say": {looks: []string{"some"}},
		"another size":     {change: func(h *enginetest.Host) { h.Holds[box("a")].Spec.(*enginetest.Box).Size = 7 }, looks: []string{"some"}, applied: []string{"update box.a"}},
		"another one, too": {change: func(h *enginetest.Host) { h.Holds[box("b")].Spec.(*enginetest.Box).Size = 7 }, looks: []string{"some"}},
		"it is gone":       {change: func(h *enginetest.Host) { delete(h.Holds, box("a")) }, looks: []string{"all"}, applied: []string{"create box.a"}},
		"something is not seen": {change: func(h *enginetest.Host) {
			h.Unknown = []model.Unknown{{Scope: "box.a", Only: []model.Address{box("a")}}}
		}, looks: []string{"some", "all"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := enginetest.Site(map[string]int{"a": 1, "b": 1}), &enginetest.Host{}
			require.Equal(t, engine.Done, enginetest.Pass(s, h).Run(t.Context()).Outcome)
			h.Applied = nil
			if c.change != nil {
				c.change(h)
			}
			d := &apart{Host: h}
			seen := 0
			p := enginetest.Pass(s, h)
			p.Open = func(*model.Host) (engine.Driver, error) { return d, nil }
			p.Changed = map[model.Address]model.Guest{box("a"): {}}
			p.Observer = observedFunc(func(model.Observed) { seen++ })
			r := p.Run(t.Context())
			require.Equal(t, len(h.Unknown) == 0, r.Outcome == engine.Done, "%v", r.Err)
			require.Equal(t, c.looks, d.looks)
			require.Equal(t, c.applied, h.Applied)
			require.Equal(t, len(c.looks) == 1 && c.looks[0] == "some", seen == 0, "what others keep of the host is about all of it")
		})
	}
}

// The status of nodes that a pass was not about stays as it was.
func TestTheStatusOfOtherNodesStays(t *testing.T) {
	s, h := enginetest.Site(map[string]int{"a": 1, "b": 1}), &enginetest.Host{}
	r := enginetest.Pass(s, h).Run(t.Context())
	before := r.NodeStatus(nil, r.Began)
	require.Len(t, before, 2)
	h.Holds[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 7
	h.Fail = map[string]error{"box.a": context.DeadlineExceeded}
	d := &apart{Host: h}
	p := enginetest.Pass(s, h)
	p.Open = func(*model.Host) (engine.Driver, error) { return d, nil }
	p.Changed = map[model.Address]model.Guest{enginetest.Addr("box", "a"): {}}
	r = p.Run(t.Context())
	after := r.NodeStatus(before, r.Began)
	require.Len(t, after, 2)
	require.False(t, after[0].Ready)
	require.Equal(t, before[1], after[1])
}

// observedFunc is an observer of observations.
type observedFunc func(model.Observed)

func (observedFunc) Enter(engine.Phase)          {}
func (observedFunc) Step(apply.Event)            {}
func (f observedFunc) Observed(o model.Observed) { f(o) }
