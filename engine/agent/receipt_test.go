package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestAReceiptTellsWhatWasDone(t *testing.T) {
	h := &enginetest.Host{Fail: map[string]error{"box.b": errors.New("storage is full")}, During: func(ctx context.Context, s plan.Step) error {
		model.RecordTask(ctx, "UPID:"+s.Address.Name)
		return nil
	}}
	s := enginetest.Site(map[string]int{"a": 1, "b": 2})
	s.Manifests["web"].OnError = "continue"
	p := enginetest.Pass(s, h)
	p.Commit = &model.Commit{ID: "c0ffee", Subject: "more boxes", Author: model.Person{Name: "Ada", Email: "ada@example.org"}}
	r := p.Run(t.Context())
	got, ok := agent.Receipt(&r, "cli:ops@pve", true)
	require.True(t, ok)
	require.Equal(t, "partly", got.Outcome)
	for i := range got.Steps {
		require.False(t, got.Steps[i].Began.IsZero())
		got.Steps[i].Began, got.Steps[i].Seconds = r.Results[i].Started, 0
	}
	size := func(n int64) []ledger.Change {
		return []ledger.Change{{Path: "size", After: n}, {Path: "ip", After: enginetest.IPOf("a")}}
	}
	require.ElementsMatch(t, size(1), got.Steps[1].Changes)
	for i := range got.Steps {
		got.Steps[i].Changes, got.Steps[i].Began = nil, got.Began
	}
	require.Equal(t, ledger.Receipt{
		Verb: "apply", By: "cli:ops@pve", Host: "father", Site: "home", Commit: "c0ffee", Subject: "more boxes", Author: "Ada",
		Plan: r.Plan.ID, Began: got.Began, Seconds: r.Seconds, Outcome: "partly", Drift: true, Findings: diag.List{},
		Steps: []ledger.Step{
			{Address: "disk.base", Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:base"}, Status: "done", Began: got.Began},
			{Address: "box.a", VMID: 100, Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:a"}, Status: "done", Began: got.Began},
			{Address: "box.b", VMID: 101, Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:b"}, Status: "failed", Error: "storage is full", Began: got.Began},
		},
	}, got)

	r = enginetest.Pass(s, &enginetest.Host{}).Run(t.Context())
	_, ok = agent.Receipt(&r, "x", false)
	require.True(t, ok)
	r = engine.Failure("apply", "c0ffee", nil)
	_, ok = agent.Receipt(&r, "x", false)
	require.False(t, ok, "nothing was begun")
}

// A receipt lies about for years: what is secret, what is unmanaged and the lines of
// the files have no place in it.
func TestAReceiptHoldsNoSecret(t *testing.T) {
	const secret = "correct horse"
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "not ours", Kind: "vm", Why: "no ownership tag"}}}
	s := enginetest.Site(map[string]int{"a": 1})
	a := s.Manifests["web"].Nodes[0].Resource
	a.Spec.(*enginetest.Box).IP, a.Sensitive = secret, []string{"ip"}
	p := enginetest.Pass(s, h)
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, Findings: diag.List{{Severity: diag.Warning, Summary: "a plain password", Code: "ip = " + secret}}}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	got, ok := agent.Receipt(&r, "father", false)
	require.True(t, ok)
	b, err := json.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(b), secret)
	require.NotContains(t, string(b), "not ours")
	require.Contains(t, got.Steps[1].Changes, ledger.Change{Path: "ip", Sensitive: true})
	require.Equal(t, "a plain password", got.Findings[0].Summary)
	require.Contains(t, r.Findings[0].Code, secret, "the report itself is as it was")
}
