package ledger_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/ledger"
)

func TestUsualIsTheMedianOfWhatWasDone(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	require.Zero(t, l.Usual("vm", "create"))
	for i, seconds := range []float64{30, 1, 20, 900, 10} {
		_, err := l.Write(took(i, seconds))
		require.NoError(t, err)
	}
	failed := took(6, 1000)
	failed.Steps[0].Status = "failed"
	failed.Steps = append(failed.Steps, ledger.Step{Address: "vm.web", Action: "delete", Status: "done", Seconds: 2.5})
	_, err := l.Write(failed)
	require.NoError(t, err)
	for _, l := range []*ledger.Ledger{l, open(t, dir), ledger.Read(dir)} {
		require.Equal(t, 20*time.Second, l.Usual("vm", "create"))
		require.Equal(t, 2500*time.Millisecond, l.Usual("vm", "delete"))
		require.Zero(t, l.Usual("image", "create"))
	}
}

// The newest two hundred count; what another process wrote meanwhile is among them.
func TestUsualForgetsWhatIsOld(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	_, err := l.Write(took(0, 1000))
	require.NoError(t, err)
	many := took(1, 1)
	many.Steps = nil
	for range 250 {
		many.Steps = append(many.Steps, took(1, 7).Steps[0])
	}
	_, err = open(t, dir).Write(many)
	require.NoError(t, err)
	require.Equal(t, 1000*time.Second, l.Usual("vm", "create"), "it does not look by itself")
	_, err = l.Write(took(2, 7))
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, l.Usual("vm", "create"))
}

// Whatever lies in the folder: it is read, or named, or left aside.
func FuzzFiles(f *testing.F) {
	for _, seed := range []string{
		"", "{", "null", "[]", `{"version":1}`, `{"version":1,"suspended":[{"manifest":"web","until":null}],"spent":-3}`,
		`{"version":1,"steps":[{"address":"vm.web","action":"create","status":"done","duration_seconds":1e300}]}`,
		`{"version":1,"began":"2026-01-02T03:04:05Z","findings":[{"at":{"line":1}}],"steps":[{"changes":[{"before":{}}]}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		l := open(t, dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "receipts", "20260102T030405.000Z-aa.json"), []byte(text), 0o600))
		s, err := l.State()
		require.GreaterOrEqual(t, s.Consumed, 0)
		if err != nil {
			require.Equal(t, ledger.State{}, s)
		}
		list, err := l.Last(0, nil)
		require.Equal(t, err == nil, len(list) == 1)
		_, _, err = l.Verify()
		require.NoError(t, err)
		require.GreaterOrEqual(t, l.Usual("vm", "create"), time.Duration(0))
		_, err = l.Write(took(9, 1))
		require.NoError(t, err)
		_, broken, err := l.Verify()
		require.NoError(t, err)
		require.LessOrEqual(t, len(broken), 1, strings.Join(broken, "\n"))
	})
}
