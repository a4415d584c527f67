package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func planned(r engine.Report) []string {
	var out []string
	for _, s := range r.Plan.Steps {
		out = append(out, fmt.Sprintf("%s %s", s.Action, s.Address))
	}
	return out
}

// The inside of a guest comes after the guest, in its place, and before all that needs the guest.
// A node is one line of the report, done when both are.
func TestTheInsideComesAfterItsGuest(t *testing.T) {
	s := enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
	for _, n := range s.Manifests["web"].Nodes {
		if n.Name == "b" {
			n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "a"))
		}
	}
	i := enginetest.NewInn()
	r := i.Pass(s).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"create disk.base", "create box.a", "create inner.a", "create box.b", "create inner.b"}, planned(r))
	require.Equal(t, []string{"create disk.base", "create box.a", "create inner.a", "create box.b", "create inner.b"}, i.Applied)
	for _, step := range r.Plan.Steps[2:3] {
		require.Equal(t, r.Plan.Steps[1].VMID, step.Inside.VMID)
		require.Equal(t, "father", step.Inside.Node)
	}
	require.Equal(t, "a:completed b:completed", enginetest.Statuses(r))
	status := r.NodeStatus(nil, time.Unix(0, 0))
	require.Len(t, status, 2)
	require.True(t, status[0].Ready)

	r = i.Pass(s).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Empty(t, r.Plan.Steps, "a second pass has nothing to do")
	require.True(t, r.Plan.InSync())
}

// The checks of a node ask about what its spec installs, so they hold after that.
func TestChecksHoldAfterTheSpecIsApplied(t *testing.T) {
	s := enginetest.InsideSite(map[string]int{"a": 1})
	s.Manifests["web"].Nodes[0].Checks = []model.Check{{Name: "up", Agent: true, Timeout: time.Minute, Interval: 10 * time.Second}}
	i := enginetest.NewInn()
	asked := map[string]int{}
	i.During = func(_ context.Context, step plan.Step) error {
		asked[step.Address.String()] = i.Times("a")
		return nil
	}
	r := i.Pass(s).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, 1, asked["inner.a"], "only whether a login works, so far")
	require.Equal(t, 2, i.Times("a"))
	require.Equal(t, "up", r.Nodes[0].Checks[0].Name)
}

// A guest that boots is waited for, and that is reported; one that never lets anybody in fails the step.
func TestAStepInsideWaitsForTheFirstBoot(t *testing.T) {
	for name, boots := range map[string]time.Duration{"it boots": 42 * time.Second, "it never does": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := enginetest.NewInn()
				i.Set("a", true)
				timer := time.AfterFunc(boots, func() { i.Set("a", false) })
				defer timer.Stop()
				var waits []string
				p := i.Pass(enginetest.InsideSite(map[string]int{"a": 1}))
				p.Health.Notify = func(w health.Progress) { waits = append(waits, w.Step().String()+" "+w.String()) }
				began := time.Now()
				r := p.Run(t.Context())
				require.Equal(t, "inner.a waiting for check login of box.a: a does not answer (0 s of 5m)", waits[0])
				if boots < time.Minute {
					require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
					require.Equal(t, 45*time.Second, time.Since(began))
					return
				}
				require.Equal(t, engine.Partly, r.Outcome)
				require.EqualError(t, r.Err, "create inner.a: no user can log in to box.a: a does not answer")
				require.Equal(t, "a:failed", enginetest.Statuses(r))
				require.Equal(t, []string{"create disk.base", "create box.a"}, i.Applied)

				i.Set("a", false)
				r = i.Pass(enginetest.InsideSite(map[string]int{"a": 1})).Run(t.Context())
				require.Equal(t, engine.Done, r.Outcome)
				require.Equal(t, []string{"create inner.a"}, planned(r), "the next pass goes on")
			})
		})
	}
}

// A step whose answer was lost is looked at and gone on with. Where its guest got another VMID, it goes
// there.
func TestAStepInsideGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		var at []int
		lost, taken := false, false
		i.During = func(_ context.Context, s plan.Step) error {
			switch {
			case s.Address.String() == "box.a" && !taken:
				taken = true
				i.Mu.Lock()
				defer i.Mu.Unlock()
				i.Unmanaged = append(i.Unmanaged, model.Unmanaged{VMID: s.VMID, Name: "VM 100", Kind: "box", Unfinished: true})
				return enginetest.LostError("no answer")
			case s.Address.String() == "inner.a":
				at = append(at, s.Inside.VMID)
				if !lost {
					lost = true
					return enginetest.LostError("the connection broke")
				}
			}
			return nil
		}
		r := i.Pass(enginetest.InsideSite(map[string]int{"a": 1})).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []int{101, 101}, at)
		require.Equal(t, []string{"create disk.base", "create box.a", "create inner.a"}, i.Applied)
	})
}

// A difference inside is changed there, is only reported where the spec says so, and says nothing about
// the guest of another node where it cannot be seen.
func TestDifferencesInside(t *testing.T) {
	begin := func(t *testing.T) (*enginetest.Inn, *model.Site) {
		t.Helper()
		i, s := enginetest.NewInn(), enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
		require.Equal(t, engine.Done, i.Pass(s).Run(t.Context()).Outcome)
		i.Applied = nil
		i.Holds[enginetest.Addr("inner", "a")].Spec.(*enginetest.Room).Packages = []string{"apache2"}
		return i, s
	}
	t.Run("reverted", func(t *testing.T) {
		i, s := begin(t)
		r := i.Pass(s).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, []string{"update inner.a"}, i.Applied)
		require.Equal(t, "a:completed b:completed", enginetest.Statuses(r))
	})
	t.Run("reported", func(t *testing.T) {
		i, s := begin(t)
		s.Specs["base"].Config = &model.Config{Drift: "report"}
		r := i.Pass(s).Run(t.Context())
		require.Empty(t, i.Applied)
		require.Equal(t, "drift: inner.a: packages +nginx -apache2 is left as it is (drift = report)", r.Findings[0].Summary)
		require.Equal(t, "a:skipped b:completed", enginetest.Statuses(r))
		require.False(t, r.NodeStatus(nil, time.Time{})[0].Ready)
	})
	t.Run("failed", func(t *testing.T) {
		i, s := begin(t)
		i.Fail = map[string]error{"inner.a": errors.New("the disk is full")}
		r := i.Pass(s).Run(t.Context())
		require.Equal(t, "a:failed b:completed", enginetest.Statuses(r))
		status := r.NodeStatus(nil, time.Time{})[0]
		require.Equal(t, "the disk is full", status.Error)
		require.Equal(t, 1, status.Drift)
	})
	t.Run("unread", func(t *testing.T) {
		i, s := begin(t)
		i.Holds[enginetest.Addr("inner", "a")].Unread = []string{"packages"}
		require.Empty(t, i.Pass(s).Run(t.Context()).Plan.Steps)
	})
	t.Run("unknown", func(t *testing.T) {
		i, s := begin(t)
		a := enginetest.Addr("inner", "a")
		delete(i.Holds, a)
		i.Unknown = []model.Unknown{{Scope: "inside of box.a", Why: "no login works", Kind: "inner", Only: []model.Address{a}}}
		for _, n := range s.Manifests["web"].Nodes {
			n.Resource.Spec.(*enginetest.Box).Size = 2
		}
		r := i.Pass(s).Run(t.Context())
		require.ElementsMatch(t, []string{"update box.a", "update box.b"}, i.Applied)
		require.Equal(t, "a:skipped b:completed", enginetest.Statuses(r))
		require.Contains(t, r.Nodes[0].Error, "inner.a: not created: inside of box.a cannot be read (no login works)")
	})
}

// The inside goes with its guest, and is not read before.
func TestTheInsideGoesWithItsGuest(t *testing.T) {
	i, s := enginetest.NewInn(), enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
	require.Equal(t, engine.Done, i.Pass(s).Run(t.Context()).Outcome)
	i.Applied = nil
	s.Manifests["web"].Nodes = s.Manifests["web"].Nodes[:1]
	stays := s.Manifests["web"].Nodes[0].Name
	r := i.Pass(s).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Len(t, i.Applied, 1)
	require.Contains(t, i.Applied[0], "delete box.")

	p := i.Pass(s)
	p.Manifest, p.Destroy = "web", true
	r = p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []string{"delete box." + stays}, planned(r))
	require.Equal(t, stays+":destroyed", enginetest.Statuses(r))
}

// A creation that fails inside is rolled back with its guest; nothing is removed inside.
func TestRollBackOfWhatIsInside(t *testing.T) {
	i, s := enginetest.NewInn(), enginetest.InsideSite(map[string]int{"a": 1})
	s.Manifests["web"].OnError = "rollback"
	i.During = func(_ context.Context, s plan.Step) error {
		if s.Address.Kind == "inner" && s.Action == plan.Create {
			return errors.New("no such package")
		}
		return nil
	}
	r := i.Pass(s).Run(t.Context())
	require.Equal(t, engine.Partly, r.Outcome)
	require.NotContains(t, i.Holds, enginetest.Addr("box", "a"))
	require.Len(t, r.Nodes, 1)
}

// A node that is pulled, or has no spec, has nothing inside that a pass would do.
func TestOnlyPushedNodesHaveAnInside(t *testing.T) {
	s := enginetest.InsideSite(map[string]int{"a": 1})
	s.Manifests["web"].Nodes[0].Mode = model.ModePull
	w, found := s.Want("father")
	require.Equal(t, diag.List(nil), found)
	require.NotContains(t, w.State, enginetest.Addr("inner", "a"))
	require.Empty(t, w.Deferred, "the node does it itself")
}

// withSecond is a site in whose boxes something is wanted that does not follow from their spec, comes after that,
// and lets them report.
func withSecond(s *model.Site, deferred string) *model.Site {
	s.Kinds = append(s.Kinds, &model.Kind{
		Name: "outer", New: func() any { return &enginetest.Room{} }, Unspecified: true,
		Inside: func(_ *model.Resource, in model.Scope) (*model.Resource, diag.List) {
			return &model.Resource{Spec: &enginetest.Room{Packages: []string{"agent"}}, Needs: []model.Address{enginetest.Addr("inner", in.Name)}, Reports: true, Deferred: deferred}, nil
		},
	})
	return s
}

// Of two things inside of a guest, one comes after the other that it needs. The node is done when both are there and
// it has reported.
func TestTwoThingsInsideOfAGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withSecond(enginetest.InsideSite(map[string]int{"a": 1, "b": 1}), "")
		for _, n := range s.Manifests["web"].Nodes {
			if n.Name == "b" {
				n.Spec = "" // it has one thing inside only
				n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "a"))
			}
		}
		i := enginetest.NewInn()
		p := i.Pass(s)
		asked := map[string]int{}
		p.Health.Reported = func(node string) (string, error) {
			require.Contains(t, i.Applied, "create outer."+node)
			if asked[node]++; asked[node] < 3 {
				return "", errors.New("it has not reported yet")
			}
			return "it reported", nil
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []string{"create disk.base", "create box.a", "create inner.a", "create outer.a", "create box.b", "create outer.b"}, i.Applied)
		require.Equal(t, map[string]int{"a": 3, "b": 3}, asked)
		require.Equal(t, "a:completed b:completed", enginetest.Statuses(r))

		i.Fail = map[string]error{"inner.a": errors.New("no such package")}
		delete(i.Holds, enginetest.Addr("inner", "a"))
		delete(i.Holds, enginetest.Addr("outer", "a"))
		r = i.Pass(s).Run(t.Context())
		require.Equal(t, "a:failed b:completed", enginetest.Statuses(r))
		require.Contains(t, r.Nodes[0].Error, "no such package")
		status := r.NodeStatus(nil, time.Unix(0, 0))
		require.False(t, status[0].Ready)
		require.Contains(t, status[0].Error, "no such package")
	})
}

// A resource that does not follow from a spec is wanted in every node, and has a line of its own where it is not done.
func TestTheInsideWithoutASpec(t *testing.T) {
	s := withSecond(enginetest.InsideSite(map[string]int{"a": 1}), "")
	s.Manifests["web"].Nodes[0].Mode = model.ModePull
	w, found := s.Want("father")
	require.Empty(t, found)
	require.Contains(t, w.State, enginetest.Addr("outer", "a"))
	require.Equal(t, []model.Address{enginetest.Addr("box", "a")}, w.State[enginetest.Addr("outer", "a")].Needs, "the other one is not there")
	require.True(t, w.State[enginetest.Addr("box", "a")].Reports)

	w, _ = withSecond(enginetest.InsideSite(map[string]int{"a": 1}), "not installed, since no server runs").Want("father")
	require.Equal(t, []model.Deferred{{Address: "outer.a", Why: "not installed, since no server runs"}}, w.Deferred)
	require.Contains(t, w.State, enginetest.Addr("inner", "a"))
}

// A spec that cannot be withdrawn yet is deferred, with the reason. If the way into its guest is unknown, there is a warning.
func TestALostSpecThatStays(t *testing.T) {
	was := enginetest.InsideSite(map[string]int{"a": 1})
	s := enginetest.InsideSite(map[string]int{"a": 1})
	s.Manifests["web"].Nodes[0].Spec = ""
	s.Kinds.Get("inner").Inside = func(*model.Resource, model.Scope) (*model.Resource, diag.List) {
		return &model.Resource{Deferred: "the guest is declared off"}, nil
	}
	p := enginetest.NewInn().Pass(s)
	p.History = enginetest.History{Site: was}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, []model.Deferred{{Address: "box.a", Why: "spec base is not withdrawn yet: the guest is declared off"}}, r.Plan.Deferred)

	p = enginetest.NewInn().Pass(s)
	p.History = enginetest.History{Err: errors.New("no commit c1")}
	r = p.Run(t.Context())
	require.Equal(t, "How the agent logged in to box.a is unknown: no commit c1."+
		" To withdraw it, give the node a spec with the access of that one and no other items, and take the spec away when it is applied.", r.Findings[0].Detail)
}
