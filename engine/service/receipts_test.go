package service

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A child whose receipts take too much room makes no more folders here, whatever it names them.
func TestReceiptsOfAChildHaveLimitedRoom(t *testing.T) {
	dir := t.TempDir()
	l, err := ledger.Open(dir)
	require.NoError(t, err)
	s := &Service{Ledger: l, o: Options{Config: &Config{}, Log: slog.New(slog.DiscardHandler)}}
	sent := func(name string) wire.Receipts {
		return wire.Receipts{Version: 1, Chains: []wire.ReceiptChain{{Path: []string{name}}}}
	}
	heads, err := s.keepReceipts("inner", sent("a"))
	require.NoError(t, err)
	require.Len(t, heads.Heads, 1)
	large := filepath.Join(dir, "below", "inner", "below", "a", "receipts", "x.json")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, 2<<30)) // sparse
	_, err = s.keepReceipts("inner", sent("b"))
	require.ErrorContains(t, err, "the parent keeps no more of its receipts")
	require.NoDirExists(t, filepath.Join(dir, "below", "inner", "below", "b"))
	_, err = s.keepReceipts("other", sent("b"))
	require.NoError(t, err)
}

// A pass by hand that is killed leaves a receipt with unknown steps, which the next process writes that locks its host: another
// apply, or the agent. One that was declined leaves none.
func TestAPassByHandThatIsCutOffIsRecorded(t *testing.T) {
	dir := t.TempDir()
	var notes []string
	v := Verb{
		Name: "apply", Env: func(k string) string { return map[string]string{"HOMESTAK_DATA_DIR": dir}[k] },
		Note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
	}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(dir, 0o700))
	}
	father, mother := &model.Host{Name: "father"}, &model.Host{Name: "mother"}
	removal := plan.Step{Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Delete, VMID: 100}
	made := &plan.Plan{ID: "0a1b", Host: "father", Steps: []plan.Step{removal}}
	lock := func(h *model.Host) {
		t.Helper()
		release, err := v.Lock(t.Context(), h)
		require.NoError(t, err)
		release()
	}
	receipts := func() (out []string) {
		all, err := ledger.Read(control.Folder(dir).Ledger()).Last(0, nil)
		require.NoError(t, err)
		for _, r := range all {
			out = append(out, r.Verb+" "+r.Host+" "+r.Commit+" "+r.Steps[0].Status)
		}
		return out
	}
	v.Begin(father, model.Commit{ID: "c1"}, made)
	lock(mother)
	lock(&model.Host{Name: "father", API: "https://other.example:8006"}) // of another site
	require.Empty(t, receipts(), "it may be at work")
	lock(father)
	require.Equal(t, []string{"apply father c1 unknown"}, receipts())
	require.Equal(t, []string{"an earlier apply or destroy of host father was cut off; its receipt says which steps are unknown"}, notes)

	v.Begin(father, model.Commit{ID: "c3"}, made)
	v.Record(father, &engine.Report{Verb: "apply", Host: "father", Plan: made, Outcome: engine.Failed}) // it was interrupted before the first step
	lock(father)
	require.Len(t, receipts(), 1)

	s := &Service{o: Options{Config: &Config{}, Log: slog.New(slog.DiscardHandler)}}
	s.o.Config.DataDir = dir
	v.Begin(father, model.Commit{ID: "c4"}, &plan.Plan{ID: "4e5f", Host: "father", Steps: []plan.Step{removal}})
	release, err := s.exclusive(t.Context(), father, func(string) {})
	require.NoError(t, err)
	release()
	require.Len(t, receipts(), 2, "an agent that shares the folder records it as well")
}
