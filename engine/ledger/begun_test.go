package ledger

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that is killed in a pass leaves a receipt: before the pass is recorded, one whose steps are unknown; after it, the one it
// wrote, and no other.
func TestAPassThatIsCutOffIsRecorded(t *testing.T) {
	began := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	r := Receipt{Verb: "agent", Plan: "0a1b", Commit: "c1", Outcome: "interrupted", Began: began, Steps: []Step{{Address: "vm.web", VMID: 100, Action: "delete", Status: "running"}}}
	open := func(dir string) *Ledger {
		l, err := Open(dir)
		require.NoError(t, err)
		return l
	}
	for name, c := range map[string]struct {
		written bool
		want    []string
	}{"in the pass": {false, []string{Unknown}}, "after its receipt": {true, []string{"done"}}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(dir)
			require.NoError(t, Begin(l, "", r))
			if c.written {
				whole := r
				whole.Began, whole.Seconds, whole.Outcome = began.Add(-time.Second), 5, "done"
				whole.Steps = []Step{{Address: "vm.web", VMID: 100, Action: "delete", Status: "done"}}
				_, err := l.Write(whole)
				require.NoError(t, err)
			}
			l = open(dir)
			found, err := Settle(l, "")
			require.NoError(t, err)
			require.Equal(t, !c.written, found)
			kept, err := l.Last(0, nil)
			require.NoError(t, err)
			var got []string
			for _, k := range kept {
				got = append(got, k.Steps[0].Status)
				require.True(t, k.removes(), "it is kept over the limit")
			}
			require.Equal(t, c.want, got)
			proof, err := l.Verify(Expect{})
			require.NoError(t, err)
			require.Empty(t, proof.Broken)
			found, err = Settle(l, "")
			require.NoError(t, err)
			require.False(t, found, "once")
		})
	}

	// An unreadable file is dropped with an error, and a pass that ended leaves none.
	dir := t.TempDir()
	l := open(dir)
	require.NoError(t, os.WriteFile(begunFile(dir, ""), []byte("{"), 0o600))
	_, err := Settle(l, "")
	require.ErrorContains(t, err, "read the pass that was cut off")
	require.NoError(t, Begin(l, "", r))
	require.NoError(t, End(l, ""))
	found, err := Settle(l, "")
	require.NoError(t, err)
	require.False(t, found)

	// A pass whose receipt could not be written is recorded by the next one, in spite of a receipt that cannot be read.
	dir = t.TempDir()
	l = open(dir)
	earlier, err := l.Write(Receipt{Verb: "agent", Began: began.Add(-time.Hour)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(l.file(earlier.ID), []byte("{"), 0o600))
	require.NoError(t, Begin(l, "", r))
	next := r
	next.Plan = "2c3d"
	require.NoError(t, Begin(l, "", next))
	kept, err := l.Last(0, nil)
	require.ErrorContains(t, err, earlier.ID)
	require.Len(t, kept, 1)
	require.Equal(t, []string{"0a1b", Unknown}, []string{kept[0].Plan, kept[0].Steps[0].Status})
	require.Equal(t, "running", r.Steps[0].Status, "the caller's receipt stays as it is")
}
