package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// once is what happens in place of the first try of a step, or with it.
func once(address string, do func(s plan.Step) error) func(context.Context, plan.Step) error {
	done := false
	return func(_ context.Context, s plan.Step) error {
		if s.Address.String() != address || done {
			return nil
		}
		done = true
		return do(s)
	}
}

// TestAPassGoesOn: a step whose answer was lost is looked at and gone on with, as far as
// that is what the plan showed.
func TestAPassGoesOn(t *testing.T) {
	held := func(h *enginetest.Host, s plan.Step, size int) {
		made := *s.Want
		made.Spec = &enginetest.Box{Size: size, IP: s.Want.Spec.(*enginetest.Box).IP}
		h.Holds[s.Address] = &made
	}
	for name, c := range map[string]struct {
		there   bool                                  // box.a is there, of another size
		happens func(h *enginetest.Host, s plan.Step) // with the first try, whose answer is lost
		judge   func(engine.Question) diag.List       // from the second question on
		applied []string                              // to box.a, after the first try
		err     string
		vmid    int
	}{
		"nothing was done":        {happens: func(*enginetest.Host, plan.Step) {}, applied: []string{"create box.a"}, vmid: 100},
		"all was done":            {happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 1) }, vmid: 100},
		"a part was done":         {happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 7) }, applied: []string{"update box.a"}, vmid: 100},
		"an update, nothing done": {there: true, happens: func(*enginetest.Host, plan.Step) {}, applied: []string{"update box.a"}, vmid: 100},
		"an update, all done":     {there: true, happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 1) }, vmid: 100},
		"an update, and more to do than was shown": {
			there: true, vmid: 100, err: "ip 10.9.9.9 → ",
			happens: func(h *enginetest.Host, s plan.Step) {
				held(h, s, 7)
				h.Holds[s.Address].Spec.(*enginetest.Box).IP = "10.9.9.9"
			},
		},
		"an update, and the guest is gone": {
			there: true, vmid: 100, err: "the plan showed update, and the rest of it is create: plan again",
			happens: func(h *enginetest.Host, s plan.Step) { delete(h.Holds, s.Address) },
		},
		"its VMID is taken": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unmanaged = append(h.Unmanaged, model.Unmanaged{VMID: s.VMID, Name: "VM 100", Kind: "box", Unfinished: true, Fix: "qm unlock"})
			},
			applied: []string{"create box.a"}, vmid: 102,
		},
		"its VMID is taken, and a rule denies the other one": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unmanaged = append(h.Unmanaged, model.Unmanaged{VMID: s.VMID, Name: "VM 100", Kind: "box", Unfinished: true})
			},
			judge: func(q engine.Question) diag.List {
				if len(q.Plan.Steps) == 1 && q.Plan.Steps[0].VMID == 102 {
					return diag.List{{Severity: diag.Error, Source: diag.FromPolicy, Summary: "not 102"}}
				}
				return nil
			},
			err: "with VMID 102 it is denied: not 102", vmid: 100,
		},
		"it cannot be seen": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unknown = []model.Unknown{{Scope: "box 100", Why: "dark", VMID: s.VMID}}
			},
			err: "box 100 cannot be read (dark) and may be it", vmid: 100,
		},
		"another one that is being made cannot be seen": {
			happens: func(h *enginetest.Host, _ plan.Step) {
				h.Unknown = []model.Unknown{{Scope: "box 101", Why: "is being created", VMID: 101}}
			},
			applied: []string{"create box.a"}, vmid: 100,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.Site(map[string]int{"a": 1, "b": 2})
				h := &enginetest.Host{Holds: model.State{}}
				if c.there {
					a := *s.Manifests["web"].Nodes[0].Resource
					if a.Addr.Name != "a" {
						a = *s.Manifests["web"].Nodes[1].Resource
					}
					a.Spec = &enginetest.Box{Size: 7, IP: enginetest.IPOf("a")}
					a.Guest = &model.Guest{VMID: 100}
					h.Holds[a.Addr] = &a
				}
				h.During = once("box.a", func(s plan.Step) error {
					h.Mu.Lock()
					defer h.Mu.Unlock()
					c.happens(h, s)
					h.Applied = append(h.Applied, "first")
					return enginetest.LostError("596")
				})
				p := enginetest.Pass(s, h)
				p.Width = 1
				if c.judge != nil {
					load := p.Load
					p.Load = func(ctx context.Context) engine.Desired {
						d := load(ctx)
						d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List { return c.judge(q) }
						return d
					}
				}
				r := p.Run(t.Context())
				var a engine.Node
				for _, n := range r.Nodes {
					if n.Name == "a" {
						a = n
					}
				}
				require.Equal(t, c.vmid, a.VMID)
				if c.err != "" {
					require.Equal(t, engine.NodeFailed, a.Status)
					require.Contains(t, a.Error, "596")
					require.Contains(t, a.Error, c.err)
				} else {
					require.Equal(t, engine.NodeCompleted, a.Status, "%v", r.Err)
				}
				var after []string
				for i, what := range h.Applied {
					if what == "first" {
						after = h.Applied[i+1:]
					}
				}
				for len(after) > 0 && after[len(after)-1] == "create box.b" {
					after = after[:len(after)-1]
				}
				require.Len(t, after, len(c.applied))
				require.Subset(t, after, c.applied)
			})
		})
	}
}

// TestAPassThatCannotLook: a host that went dark ends the pass after a few looks.
func TestAPassThatCannotLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &enginetest.Host{}
		h.During = func(context.Context, plan.Step) error {
			h.Mu.Lock()
			defer h.Mu.Unlock()
			h.ObserveErr = errors.New("connection refused")
			return enginetest.LostError("EOF")
		}
		r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "tried 4 times, checking the host before each retry; the outcome is still unknown: EOF; and checking it failed: connection refused")
	})
}
