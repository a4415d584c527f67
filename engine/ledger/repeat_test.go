package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/ledger"
)

// attempt is the receipt of a pass that cannot start the agent of a child.
func attempt(minute int) ledger.Receipt {
	return ledger.Receipt{
		Verb: "agent", By: "father", Host: "father", Commit: "c0ffee", Plan: "ab12", Began: at(minute), Seconds: 2, Outcome: "failed",
		Steps: []ledger.Step{{
			Address: "agent.inner", Action: "update", Class: "hot", Status: "failed", Began: at(minute), Seconds: 2, Tasks: []string{fmt.Sprintf("UPID:father:%08X", minute)},
			Changes: []ledger.Change{{Path: "running", Before: false, After: true}},
			Error:   fmt.Sprintf("the agent does not start: job failed; tried %d times since 03:%02d:00 UTC", minute, minute),
		}},
	}
}

// A pass that fails in the same way at every check has one receipt, which counts them, and displaces no other.
func TestN8PassesThatFailInTheSameWay(t *testing.T) {
	dir := t.TempDir()
	l, err := ledger.Options{Files: 3}.Open(dir)
	require.NoError(t, err)
	for minute := range 2 {
		_, err := l.Write(took(minute, 1))
		require.NoError(t, err)
	}
	for minute := 2; minute < 33; minute++ {
		if minute == 20 { // also over a restart
			l, err = ledger.Options{Files: 3}.Open(dir)
			require.NoError(t, err)
		}
		_, err := l.Write(attempt(minute))
		require.NoError(t, err)
	}
	got, err := l.Last(0, nil)
	require.NoError(t, err)
	require.Len(t, got, 3)
	first := at(2)
	require.Equal(t, 31, got[0].Passes)
	require.Equal(t, &first, got[0].First)
	require.Equal(t, at(32), got[0].Began, "the last one counts")
	require.Contains(t, got[0].Steps[0].Error, "tried 32 times")
	require.Equal(t, []string{"ab01", "ab00"}, []string{got[1].Plan, got[2].Plan})

	_, err = l.Write(took(40, 1))
	require.NoError(t, err)
	intact, broken, err := l.Verify()
	require.NoError(t, err)
	require.Empty(t, broken)
	require.Equal(t, 3, intact)
}

// What differs has a receipt of its own.
func TestN8PassesThatDiffer(t *testing.T) {
	for name, change := range map[string]func(*ledger.Receipt){
		"another commit":    func(r *ledger.Receipt) { r.Commit = "beef" },
		"another person":    func(r *ledger.Receipt) { r.By = "cli:ann@father" },
		"another error":     func(r *ledger.Receipt) { r.Steps[0].Error = "no space left on device" },
		"another value":     func(r *ledger.Receipt) { r.Steps[0].Changes[0].After = "x" },
		"another step":      func(r *ledger.Receipt) { r.Steps[0].Address = "agent.other" },
		"one step more":     func(r *ledger.Receipt) { r.Steps = append(r.Steps, r.Steps[0]) },
		"it was successful": func(r *ledger.Receipt) { r.Steps[0].Error, r.Steps[0].Status, r.Outcome = "", "done", "done" },
	} {
		l := open(t, t.TempDir())
		_, err := l.Write(attempt(1))
		require.NoError(t, err)
		other := attempt(2)
		change(&other)
		_, err = l.Write(other)
		require.NoError(t, err)
		got, err := l.Last(0, nil)
		require.NoError(t, err)
		require.Len(t, got, 2, name)
		require.Zero(t, got[0].Passes, name)
	}
	l := open(t, t.TempDir())
	for minute := range 2 { // the same drift twice was reverted twice
		done := attempt(minute)
		done.Steps[0].Error, done.Steps[0].Status, done.Outcome, done.Drift = "", "done", "done", true
		_, err := l.Write(done)
		require.NoError(t, err)
	}
	got, err := l.Last(0, nil)
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.WithinRange(t, got[0].Began, at(1), at(1).Add(time.Second))
}
