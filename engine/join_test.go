package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// record is a name in a zone, the kind of a second driver.
type record struct {
	Target string `hcl:"target"`
}

// zone is that driver: names in memory. All drivers of a test write their steps to one list.
type zone struct {
	names  model.State
	down   error
	recall []string
	asked  *model.Want // last
	steps  *[]string
}

func (z *zone) Observe(_ context.Context, w *model.Want) (model.Observed, error) {
	z.asked = w
	return model.Observed{State: maps.Clone(z.names), SweepHints: z.recall}, z.down
}

func (z *zone) Apply(_ context.Context, s plan.Step) error {
	*z.steps = append(*z.steps, fmt.Sprintf("zone: %s %s", s.Action, s.Address))
	if z.names[s.Address] = s.Want; s.Action == plan.Delete {
		delete(z.names, s.Address)
	}
	return nil
}

func (*zone) Machine(model.Address, model.Guest, []netip.Addr) guest.Machine { return nil }

// joinedWorld is a host and a zone, as one driver.
type joinedWorld struct {
	inn   *innHost
	zone  *zone
	steps []string
	all   engine.Provider
}

// innHost writes down its steps, too.
type innHost struct {
	engine.Driver
	*joinedWorld
}

func (h *innHost) Apply(ctx context.Context, s plan.Step) error {
	h.steps = append(h.steps, fmt.Sprintf("host: %s %s", s.Action, s.Address))
	return h.Driver.Apply(ctx, s)
}

func newJoinedWorld() *joinedWorld {
	w := &joinedWorld{}
	w.inn = &innHost{enginetest.NewInn(), w}
	w.zone = &zone{names: model.State{}, steps: &w.steps}
	w.all = engine.Join(
		engine.Provider{Name: "host", Kinds: enginetest.Site(nil).Kinds, Open: func(engine.Desired, *model.Host) (engine.Driver, error) { return w.inn, nil }},
		engine.Provider{
			Name: "zone", Kinds: model.Kinds{{Name: "record", Block: "record", Everywhere: true, New: func() any { return &record{} }}},
			Open: func(engine.Desired, *model.Host) (engine.Driver, error) { return w.zone, nil },
		},
	)
	return w
}

// pass wants the boxes, and of box a that it has a name: the box needs its disk and its
// record, and the record of www needs that of a.
func (w *joinedWorld) pass(sizes map[string]int, names ...string) *engine.Pass {
	s := enginetest.Site(sizes)
	s.Kinds = w.all.Kinds
	for _, name := range names {
		r := &model.Resource{Addr: enginetest.Addr("record", name), Spec: &record{Target: "a"}}
		s.Objects[r.Addr] = r
		for _, n := range s.Manifests["web"].Nodes {
			n.Resource.Needs = append(n.Resource.Needs, r.Addr)
		}
	}
	d := engine.Desired{Site: s, Commit: "c0ffee"}
	return &engine.Pass{
		Verb: "apply", Host: "father", Width: 1,
		Load:    func(context.Context) engine.Desired { return d },
		Open:    func(h *model.Host) (engine.Driver, error) { return w.all.Open(d, h) },
		Verdict: func(context.Context, *plan.Plan) (bool, error) { return true, nil },
	}
}

func TestOnePlanCrossesDrivers(t *testing.T) {
	w := newJoinedWorld()
	r := w.pass(map[string]int{"a": 1}, "a").Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v %v", r.Err, r.Findings)
	require.Len(t, r.Plan.Steps, 3, "one plan")
	require.ElementsMatch(t, []string{"host: create disk.base", "zone: create record.a", "host: create box.a"}, w.steps)
	require.Equal(t, "host: create box.a", w.steps[2], "a step waits for what another driver does")
	for a := range w.zone.asked.State {
		require.Equal(t, "record", a.Kind, "a driver is asked about its own kinds")
	}

	w.steps = nil
	r = w.pass(map[string]int{"a": 1}, "a").Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Empty(t, w.steps, "what both hold is as wanted")
	require.Len(t, r.Have.State, 3, "one observation")

	r = w.pass(nil).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, "host: delete box.a", w.steps[0], "and it goes before what it needed")
	require.Contains(t, w.steps, "zone: delete record.a")
}

func TestADriverThatSeesNothing(t *testing.T) {
	w := newJoinedWorld()
	w.zone.down = errors.New("no route")
	r := w.pass(map[string]int{"b": 1}).Run(t.Context())
	require.Equal(t, []string{"host: create disk.base", "host: create box.b"}, w.steps, "the other goes on")
	require.False(t, r.Have.NothingSeen())
	require.Equal(t, "record of host father", r.Have.Unknown[0].Scope)

	w.steps, w.inn.Driver = nil, blindDriver{w.inn.Driver}
	r = w.pass(map[string]int{"c": 1}, "c").Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome, "without the guests nothing is certain")
	require.True(t, r.Have.NothingSeen())
	require.Empty(t, w.steps)
}

// blindDriver sees nothing.
type blindDriver struct{ engine.Driver }

func (blindDriver) Observe(context.Context, *model.Want) (model.Observed, error) {
	return model.Observed{}, errors.New("connection refused")
}

func TestHintsComeBackToTheirDriver(t *testing.T) {
	w := newJoinedWorld()
	w.zone.recall = []string{"ns1: a"}
	r := w.pass(nil).Run(t.Context())
	require.Equal(t, []string{"zone: ns1: a"}, r.Have.SweepHints)
	p := w.pass(nil)
	p.SweepHints = []string{r.Have.SweepHints[0], "host: iso"}
	p.Run(t.Context())
	require.Equal(t, []string{"ns1: a"}, w.zone.asked.SweepHints)
}

func TestJoining(t *testing.T) {
	w := newJoinedWorld()
	d, err := w.all.Open(engine.Desired{}, &model.Host{Name: "father"})
	require.NoError(t, err)
	require.NotNil(t, d.Machine(enginetest.Addr("box", "a"), model.Guest{}, nil), "the way into a guest is that of its driver")
	require.Nil(t, d.Machine(enginetest.Addr("record", "a"), model.Guest{}, nil))
	require.Nil(t, d.Machine(enginetest.Addr("moon", "a"), model.Guest{}, nil))
	require.ErrorContains(t, d.Apply(t.Context(), plan.Step{Address: enginetest.Addr("moon", "a")}), "no driver has the kind moon")
	require.Len(t, w.all.Kinds, 3)

	one := engine.Provider{Name: "one", Kinds: w.all.Kinds}
	require.Equal(t, "one", engine.Join(one).Name)
	require.PanicsWithValue(t, "join drivers: both one and two have a kind box", func() {
		engine.Join(one, engine.Provider{Name: "two", Kinds: w.all.Kinds})
	})
	failing := engine.Provider{Name: "two", Open: func(engine.Desired, *model.Host) (engine.Driver, error) { return nil, errors.New("no token") }}
	_, err = engine.Join(failing, engine.Provider{Name: "three"}).Open(engine.Desired{}, &model.Host{})
	require.EqualError(t, err, "two: no token")
}
