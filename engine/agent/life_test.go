package agent

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestWhetherAnOutputShowsANode(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.1 web\n": true, "web": true, "x web,y": true, "web-1\n": false, "my-web": false, "webs web": true, "db": false, "": true,
	} {
		require.Equal(t, want, (&OutputStatus{Text: text}).shows("web"), text)
	}
}

// A node without checks operates when it is there and its outputs are written; one that an output leaves out for an error is
// provisioned, and a finding says that it skipped a phase.
func TestPhasesOfNodes(t *testing.T) {
	live(t, func(w *world) {
		why := "the disk is full"
		w.options = func(o *Options) {
			o.Outputs = func(context.Context, engine.Desired, []engine.NodeStatus, []OutputStatus) []OutputStatus {
				return []OutputStatus{{Name: "hosts", Text: "one", Error: why}}
			}
		}
		d := boxes(map[string]int{"one": 1, "two": 1})
		d.Site.Outputs = map[string]*model.Output{"hosts": {Name: "hosts", To: "hosts"}}
		w.repo.push("a", d)
		w.start()
		s := w.pass(time.Minute)
		require.Equal(t, []plan.Phase{plan.Provisioned, plan.Operating}, lives(s))
		require.True(t, slices.ContainsFunc(s.Last.Findings, isSkipped), s.Last.Findings)
		require.Equal(t, "box.one", s.Last.Findings[slices.IndexFunc(s.Last.Findings, isSkipped)].Address)
		d.Site.Waivers = []model.Waiver{{Name: "w", Rule: model.RuleSkipped, Node: "one", Owner: "ana", Reason: "later", Expires: "2001-01-01"}}
		w.repo.push("b", d)
		s = w.look()
		require.Equal(t, "w", s.Last.Findings[slices.IndexFunc(s.Last.Findings, isSkipped)].Waiver)
		d.Site.Waivers = []model.Waiver{{Name: "w", Rule: model.RuleSkipped, Node: "one", Owner: "ana", Reason: "later", Expires: "1999-12-31"}}
		w.repo.push("c", d)
		s = w.look()
		require.Empty(t, s.Last.Findings[slices.IndexFunc(s.Last.Findings, isSkipped)].Waiver, "it has expired")
		w.set(func() { why = "" })
		s = w.look()
		require.Equal(t, []plan.Phase{plan.Operating, plan.Operating}, lives(s))
		require.False(t, slices.ContainsFunc(s.Last.Findings, isSkipped))
		require.Len(t, w.state().Validated, 2)
	})
}

func lives(s Status) []plan.Phase {
	var out []plan.Phase
	for _, n := range s.Nodes {
		out = append(out, n.Life)
	}
	return out
}

func isSkipped(f diag.Finding) bool { return f.Rule == model.RuleSkipped }
