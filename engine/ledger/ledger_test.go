package ledger

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

func open(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := Open(dir)
	require.NoError(t, err)
	return l
}

// intact checks the chain, and wants nothing broken.
func intact(t *testing.T, l *Ledger) Proof {
	t.Helper()
	p, err := l.Verify(Expect{})
	require.NoError(t, err)
	require.Empty(t, p.Broken)
	return p
}

func at(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }

// took is a receipt of one step that took so long.
func took(minute int, seconds float64) Receipt {
	return Receipt{
		Verb: "apply", Plan: fmt.Sprintf("ab%02d", minute), Began: at(minute), Outcome: "done",
		Steps: []Step{{Address: "vm.web", Action: "create", Status: "done", Seconds: seconds}},
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "receipts"))
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestAReceiptComesBackAsItWasWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "ledger")
	l := open(t, dir)
	in := Receipt{
		Verb: "agent", By: "father", Host: "father", Site: "home", Commit: "c0ffee", Subject: "more", Author: "Ada",
		Plan: "12ab34cd56ef", Began: at(4), Seconds: 1.5, Outcome: "partly", Drift: true,
		Steps: []Step{{
			Address: "vm.web", VMID: 100, Action: "update", Class: "hot", Reason: "memory differs",
			Changes: []Change{{Path: "memory", Before: "1", After: "2"}, {Path: "password", Sensitive: true}},
			Tasks:   []string{"UPID:x"}, Status: "failed", Error: "locked", Began: at(4), Seconds: 1,
		}},
		Findings: diag.List{{Severity: diag.Warning, Summary: "careful", Source: diag.FromPolicy}},
	}
	out, err := l.Write(in)
	require.NoError(t, err)
	require.Equal(t, "20260102T030400.000Z-12ab34cd56ef", out.ID)
	require.Empty(t, out.Previous)
	in.Version, in.ID, in.Key, in.Signature = 1, out.ID, out.Key, out.Signature
	got, err := l.Last(0, nil)
	require.NoError(t, err)
	require.Equal(t, []Receipt{in}, got)

	require.Equal(t, []string{out.ID + ".json"}, files(t, dir))
	info, err := os.Stat(filepath.Join(dir, "receipts", out.ID+".json"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	_, err = l.Write(Receipt{Began: at(5)})
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, "receipts", "20260102T030500.000Z-noplan.json"))
	require.NoError(t, err)
	require.Contains(t, string(b), `"steps": [],`, "a list is never null")
}

func TestTheNewestComeFirst(t *testing.T) {
	l := open(t, t.TempDir())
	for i := range 5 {
		_, err := l.Write(took(i, 1))
		require.NoError(t, err)
	}
	got, err := l.Last(2, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"ab04", "ab03"}, []string{got[0].Plan, got[1].Plan})
	got, err = l.Last(1, func(r *Receipt) bool { return r.Plan == "ab01" })
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "ab01", got[0].Plan)
}

// A clock that is set back does not change the order of receipts.
func TestTheOrderIsThatOfWriting(t *testing.T) {
	l := open(t, t.TempDir())
	for _, minute := range []int{9, 3, 3, 12} {
		_, err := l.Write(took(minute, 1))
		require.NoError(t, err)
	}
	got, err := l.Last(0, nil)
	require.NoError(t, err)
	var ids []string
	for _, r := range got {
		ids = append(ids, r.ID)
	}
	require.Equal(t, []string{
		"20260102T031200.000Z-ab12", "20260102T030900.002Z-ab03", "20260102T030900.001Z-ab03", "20260102T030900.000Z-ab09",
	}, ids)
	require.Equal(t, 4, intact(t, l).Intact)
}

func TestChangesOfTheChainAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(t *testing.T, path func(i int) string)
		held   int
		broken string
	}{
		"a changed one": {func(t *testing.T, path func(int) string) {
			t.Helper()
			b, err := os.ReadFile(path(1))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path(1), []byte(strings.Replace(string(b), "apply", "agent", 1)), 0o600))
		}, 4, "ab01: it was changed after it was signed"},
		"one that is gone": {func(t *testing.T, path func(int) string) { t.Helper(); require.NoError(t, os.Remove(path(2))) }, 4, "ab01: receipts between it and 20260102T030300.000Z-ab03 are missing, or their order was changed"},
		"garbage": {func(t *testing.T, path func(int) string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path(3), []byte("{"), 0o600))
		}, 4, "ab03: "},
		"the oldest gone": {func(t *testing.T, path func(int) string) { t.Helper(); require.NoError(t, os.Remove(path(0))) }, 4, "ab01: the receipts before it are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir)
			for i := range 5 {
				_, err := l.Write(took(i, 1))
				require.NoError(t, err)
			}
			c.spoil(t, func(i int) string {
				return filepath.Join(dir, "receipts", fmt.Sprintf("20260102T030%d00.000Z-ab%02d.json", i, i))
			})
			p, err := Read(dir).Verify(Expect{})
			require.NoError(t, err)
			require.Equal(t, c.held, p.Intact, "%v", p.Broken)
			require.Len(t, p.Broken, 1)
			require.Contains(t, p.Broken[0], c.broken)

			_, err = l.Write(took(9, 1)) // it goes on
			require.NoError(t, err)
		})
	}
}

func TestUnreadableReceiptsAreNamed(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	_, err := l.Write(took(1, 1))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"20260102T030000.000Z-aa.json": "{", "20260102T040000.000Z-bb.json": `{"version": 7}`,
		"notes.json": "{", "20260102T030000.000Z-aa.txt": "{", ".new-123": "{", // none of ours
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "receipts", name), []byte(text), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "receipts", "20260102T050000.000Z-cc.json"), 0o700))
	got, err := l.Last(0, nil)
	require.Len(t, got, 1)
	require.ErrorContains(t, err, "20260102T030000.000Z-aa")
	require.ErrorContains(t, err, "20260102T040000.000Z-bb: its version is 7")
	require.Equal(t, 1, strings.Count(err.Error(), "\n"))
}

func TestTheOldestGo(t *testing.T) {
	dir := t.TempDir()
	l, err := options{Files: 10}.Open(dir)
	require.NoError(t, err)
	for i := range 35 {
		_, err := l.Write(took(i, 1))
		require.NoError(t, err)
		require.LessOrEqual(t, len(files(t, dir)), 10)
	}
	require.Equal(t, "20260102T032500.000Z-ab25.json", files(t, dir)[0])
	p := intact(t, l)
	require.Equal(t, 10, p.Intact)
	require.Equal(t, 25, p.Dropped)

	big := took(50, 1)
	big.Subject = strings.Repeat("x", 5000)
	l, err = options{Bytes: 6000}.Open(dir)
	require.NoError(t, err)
	_, err = l.Write(big)
	require.NoError(t, err)
	require.Less(t, len(files(t, dir)), 4)
	big.Subject = strings.Repeat("x", 50000)
	_, err = l.Write(big)
	require.NoError(t, err)
	require.Len(t, files(t, dir), 1, "the newest stays, however large")
}

func TestHalfWrittenFilesAreSwept(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	old, young := filepath.Join(dir, "receipts", ".new-1"), filepath.Join(dir, ".new-2")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.WriteFile(young, nil, 0o600))
	hour := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, hour, hour))
	open(t, dir)
	require.NoFileExists(t, old)
	require.FileExists(t, young, "another process may be writing it")
}

func TestAReaderCreatesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nothing")
	l := Read(dir)
	got, err := l.Last(0, nil)
	require.NoError(t, err)
	require.Empty(t, got)
	s, err := l.State()
	require.NoError(t, err)
	require.Equal(t, State{}, s)
	require.Zero(t, intact(t, l).Intact)
	require.Zero(t, l.Usual("vm", "create"))
	_, err = l.Write(took(1, 1))
	require.ErrorIs(t, err, errReadOnly)
	require.ErrorIs(t, l.SetState(State{}), errReadOnly)
	require.NoDirExists(t, dir)
}

// While one process writes, others read: whole files, and never an error.
func TestReadersDoNotMindAWriter(t *testing.T) {
	dir := t.TempDir()
	l, err := options{Files: 5}.Open(dir)
	require.NoError(t, err)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			r := Read(dir)
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := r.Last(0, nil); err != nil {
					t.Error(err)
				}
				if _, err := r.State(); err != nil {
					t.Error(err)
				}
				if p, err := r.Verify(Expect{}); err != nil || len(p.Broken) > 0 {
					t.Error(p.Broken, err)
				}
				r.Usual("vm", "create")
			}
		})
	}
	for i := range 30 {
		_, err := l.Write(took(i, float64(i)))
		require.NoError(t, err)
		require.NoError(t, l.SetState(State{Consumed: i}))
		l.Usual("vm", "create")
	}
	close(done)
	readers.Wait()
}

func TestTheStateIsKept(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	until := at(9)
	s := State{
		Identity: "father", Head: CommitRef{ID: "c2", Since: at(1)}, Good: CommitRef{ID: "c1", Since: at(0)}, Consumed: 3, Counted: []string{"c3"}, UsedTrailers: []string{"c0"},
		Aside: []string{"web"}, Suspended: []Suspension{{Manifest: "db", Reason: "x", By: "ops", Since: at(2), Until: &until}},
	}
	require.NoError(t, l.SetState(s))
	s.Version = 1
	got, err := Read(dir).State()
	require.NoError(t, err)
	require.Equal(t, s, got)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte("nonsense"), 0o600))
	_, err = l.State()
	require.ErrorContains(t, err, "state.json")
	b, err := json.Marshal(State{})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), b, 0o600))
	_, err = l.State()
	require.ErrorContains(t, err, "its version is 0")
}

// attempt is the receipt of a pass that cannot start the agent of a child.
func attempt(minute int) Receipt {
	return Receipt{
		Verb: "agent", By: "father", Host: "father", Commit: "c0ffee", Plan: "ab12", Began: at(minute), Seconds: 2, Outcome: "failed",
		Steps: []Step{{
			Address: "agent.inner", Action: "update", Class: "hot", Status: "failed", Began: at(minute), Seconds: 2, Tasks: []string{fmt.Sprintf("UPID:father:%08X", minute)},
			Changes: []Change{{Path: "running", Before: false, After: true}},
			Error:   fmt.Sprintf("the agent does not start: job failed; tried %d times since 03:%02d:00 UTC", minute, minute),
		}},
	}
}

// A pass that fails in the same way at every check has one receipt, which counts them, and displaces no other.
func TestN8PassesThatFailInTheSameWay(t *testing.T) {
	dir := t.TempDir()
	l, err := options{Files: 3}.Open(dir)
	require.NoError(t, err)
	for minute := range 2 {
		_, err := l.Write(took(minute, 1))
		require.NoError(t, err)
	}
	for minute := 2; minute < 33; minute++ {
		if minute == 20 { // also over a restart
			l, err = options{Files: 3}.Open(dir)
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
	require.Equal(t, 3, intact(t, l).Intact)
}

// A different failure has a receipt of its own.
func TestN8PassesThatDiffer(t *testing.T) {
	for name, change := range map[string]func(*Receipt){
		"another commit":    func(r *Receipt) { r.Commit = "beef" },
		"another person":    func(r *Receipt) { r.By = "cli:ann@father" },
		"another error":     func(r *Receipt) { r.Steps[0].Error = "no space left on device" },
		"another value":     func(r *Receipt) { r.Steps[0].Changes[0].After = "x" },
		"another step":      func(r *Receipt) { r.Steps[0].Address = "agent.other" },
		"one step more":     func(r *Receipt) { r.Steps = append(r.Steps, r.Steps[0]) },
		"it was successful": func(r *Receipt) { r.Steps[0].Error, r.Steps[0].Status, r.Outcome = "", "done", "done" },
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

// It may contain a suspension, or members of a newer program.
func TestAStateThatCannotBeReadIsSetAside(t *testing.T) {
	for name, text := range map[string]string{"garbage": "{", "newer": `{"version": 2, "suspended": [{"manifest": ""}]}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600))
			l, err := Open(dir)
			require.NoError(t, err)
			_, err = l.State()
			require.Error(t, err)
			require.NoError(t, l.SetState(State{Identity: "father"}))
			require.NoError(t, l.SetState(State{Identity: "father", Consumed: 1}))
			b, err := os.ReadFile(filepath.Join(dir, "state.unreadable.json"))
			require.NoError(t, err)
			require.Equal(t, text, string(b))
			s, err := l.State()
			require.NoError(t, err)
			require.Equal(t, 1, s.Consumed)
		})
	}
}

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
	failed.Steps = append(failed.Steps, Step{Address: "vm.web", Action: "delete", Status: "done", Seconds: 2.5})
	_, err := l.Write(failed)
	require.NoError(t, err)
	for _, l := range []*Ledger{l, open(t, dir), Read(dir)} {
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
	require.Equal(t, 1000*time.Second, l.Usual("vm", "create"))
	many := took(1, 1)
	many.Steps = nil
	for range 250 {
		many.Steps = append(many.Steps, took(1, 7).Steps[0])
	}
	_, err = open(t, dir).Write(many)
	require.NoError(t, err)
	require.Equal(t, 1000*time.Second, l.Usual("vm", "create"), "it is not read again without a write")
	_, err = l.Write(took(2, 7))
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, l.Usual("vm", "create"))
}

// Every file in the folder is read, named, or ignored.
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
			require.Equal(t, State{}, s)
		}
		list, err := l.Last(0, nil)
		require.Equal(t, err == nil, len(list) == 1)
		_, err = l.Verify(Expect{})
		require.NoError(t, err)
		require.GreaterOrEqual(t, l.Usual("vm", "create"), time.Duration(0))
		_, err = l.Write(took(9, 1))
		require.NoError(t, err)
		p, err := l.Verify(Expect{})
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.Broken), 1, strings.Join(p.Broken, "\n"))
	})
}
