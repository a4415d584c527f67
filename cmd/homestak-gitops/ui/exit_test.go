package ui_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func TestExitCodesAreOneTable(t *testing.T) {
	var codes []int
	for _, c := range ui.ExitMeanings() {
		codes = append(codes, c.Code)
		require.NotEmpty(t, c.Meaning)
	}
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 130}, codes)

	for _, c := range []struct {
		outcome engine.Outcome
		err     error
		want    int
	}{
		{engine.Done, nil, 0},
		{engine.Planned, nil, 0},
		{engine.Invalid, nil, 3},
		{engine.Refused, nil, 4},
		{engine.Partly, nil, 5},
		{engine.Failed, nil, 1},
		{engine.Failed, fmt.Errorf("apply: %w", &ui.ExitError{Code: ui.ExitRefused}), 4},
		{engine.Failed, ui.ErrTimeout, 1},
		{engine.Interrupted, engine.ErrInterrupted, 130},
		{"", nil, 1},
	} {
		require.Equal(t, c.want, ui.ExitCode(ui.ExitOfPass(engine.Report{Outcome: c.outcome, Err: c.err})), "%s %v", c.outcome, c.err)
	}
	require.ErrorContains(t, ui.ExitOfPass(engine.Report{
		Outcome: engine.Partly, Results: []apply.Result{{Status: apply.Done}},
		Err: &engine.NotObservedError{Parts: []model.Unknown{{Scope: "node b", Why: "offline"}, {Scope: "1"}, {Scope: "2"}, {Scope: "3"}}},
	}), "node b: offline; 1: ; 2: ; and 1 more", "all steps are done, so nothing else says why it is not all")
	require.Equal(t, 130, ui.ExitCode(fmt.Errorf("plan: %w", engine.ErrInterrupted)))
	require.Equal(t, 3, ui.ExitCode(&site.InvalidError{}))
	for code, want := range map[wire.Code]int{wire.CodeNoCredential: 6, wire.CodeRefused: 6, wire.CodeNotYours: 6, wire.CodeExpired: 6, wire.CodeNotFound: 1, wire.CodeConnection: 1} {
		require.Equal(t, want, ui.ExitCode(fmt.Errorf("fetching: %w", &wire.Error{Code: code})), code)
	}
}
