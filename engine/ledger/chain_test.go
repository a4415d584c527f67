package ledger

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// removed is the receipt of a removal.
func removed(minute int) Receipt {
	r := took(minute, 1)
	r.Steps[0].Action, r.Steps[0].VMID = "delete", 100
	return r
}

func write(t *testing.T, l *Ledger, receipts ...Receipt) {
	t.Helper()
	for _, r := range receipts {
		_, err := l.Write(r)
		require.NoError(t, err)
	}
}

// many are receipts, of which those of minutes in kept are of removals.
func many(n int, kept ...int) []Receipt {
	var out []Receipt
	for i := range n {
		r := took(i, 1)
		if slices.Contains(kept, i) {
			r = removed(i)
		}
		out = append(out, r)
	}
	return out
}

// The record of a decommissioned node outlives any number of other receipts, and the chain goes on over those that went.
func TestReceiptsOfRemovalsStay(t *testing.T) {
	dir := t.TempDir()
	l, err := options{Files: 5}.Open(dir)
	require.NoError(t, err)
	write(t, l, many(30, 0, 7, 8, 20)...)
	p := intact(t, l)
	require.Equal(t, 9, p.Intact)
	require.Equal(t, 21, p.Dropped)
	require.Len(t, files(t, dir), 9)
	require.Equal(t, "20260102T030000.000Z-ab00-removed.json", files(t, dir)[0])
	require.Equal(t, "20260102T032000.000Z-ab20-removed.json", files(t, dir)[3])
	require.Len(t, p.Keys, 1)
	require.Equal(t, []string{p.Keys[0]}, must(l.Keys()))

	gap := filepath.Join(dir, "chain", "20260102T030800.000Z-ab08-removed.dropped")
	text := must(os.ReadFile(gap))
	require.NoError(t, os.WriteFile(gap, bytes.Replace(text, []byte(`"count": 11`), []byte(`"count": 12`), 1), 0o600))
	broken(t, l, Expect{}, "ab09: the record of the receipts removed from here on was changed")
	require.NoError(t, os.Remove(gap))
	broken(t, l, Expect{}, "ab08-removed: receipts between it and 20260102T032000.000Z-ab20-removed are missing")
	require.NoError(t, os.WriteFile(gap, text, 0o600))
	require.NoError(t, os.Remove(l.file("20260102T030800.000Z-ab08-removed")))
	broken(t, l, Expect{}, "ab07-removed: receipts between it and 20260102T032000.000Z-ab20-removed are missing")
}

// A reader shows what is in the folder: so one that is recorded as removed may be there only as it was.
func TestAForgeryAmongThoseThatWentIsFound(t *testing.T) {
	l, err := options{Files: 5}.Open(t.TempDir())
	require.NoError(t, err)
	write(t, l, many(8)...)
	newest := must(os.ReadFile(l.file(must(l.Head()).ID)))
	require.NoError(t, os.WriteFile(l.file(id(1)), bytes.Replace(newest, []byte("-ab07"), []byte("-ab01"), 1), 0o600))
	broken(t, l, Expect{}, "ab01: it is recorded as removed, is here, and has no good signature")
}

// Keys from elsewhere prove nothing about receipts that none of them signed, and that no signed one follows.
func TestUnsignedReceiptsAreNotProvedByKeys(t *testing.T) {
	l := open(t, t.TempDir())
	write(t, l, took(1, 1))
	edit(l, 1, func(b []byte) []byte {
		text, _, _ := strings.Cut(string(b), `,`+"\n"+`  "key"`)
		return []byte(text + "\n}\n")
	})
	intact(t, l)
	broken(t, l, Expect{Keys: must(l.Keys())}, "ab01: no receipt is signed, so the keys prove none")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// broken wants the first broken link to be this one.
func broken(t *testing.T, l *Ledger, e Expect, first string) {
	t.Helper()
	p, err := l.Verify(e)
	require.NoError(t, err)
	require.NotEmpty(t, p.Broken)
	require.Contains(t, p.Broken[0], first)
}

func TestEachKindOfForgeryIsFound(t *testing.T) {
	other := open(t, t.TempDir())
	write(t, other, many(5)...)
	for name, c := range map[string]struct {
		spoil func(l *Ledger)
		with  Expect
		want  string
	}{
		"edited": {spoil: func(l *Ledger) {
			edit(l, 2, func(b []byte) []byte { return bytes.Replace(b, []byte(`"done"`), []byte(`"none"`), 1) })
		}, want: "ab02: it was changed after it was signed"},
		"signature taken away": {spoil: func(l *Ledger) {
			edit(l, 2, func(b []byte) []byte {
				i := bytes.LastIndex(b, []byte(signature))
				return append(b[:i:i], []byte("\n}\n")...)
			})
		}, want: "ab02: it is not signed, unlike those before it"},
		"something behind the signature": {spoil: func(l *Ledger) {
			edit(l, 2, func(b []byte) []byte {
				return append(bytes.TrimSuffix(b, []byte("\n}\n")), []byte(",\n  \"verb\": \"x\"\n}\n")...)
			})
		}, want: "ab02: it was changed after it was signed"},
		"two exchanged": {spoil: func(l *Ledger) {
			a, b := must(os.ReadFile(l.file(id(1)))), must(os.ReadFile(l.file(id(2))))
			edit(l, 1, func([]byte) []byte { return b })
			edit(l, 2, func([]byte) []byte { return a })
		}, want: "ab01: the file has the receipt 20260102T030200.000Z-ab02"},
		"of another agent": {spoil: func(l *Ledger) {
			edit(l, 2, func([]byte) []byte { return must(os.ReadFile(other.file(id(2)))) })
		}, want: "ab02: it is signed with a foreign key, ed25519:"},
		"another chain": {spoil: func(*Ledger) {}, with: Expect{Keys: must(other.Keys())}, want: "ab00: it is signed with a foreign key"},
		"one removed":   {spoil: func(l *Ledger) { _ = os.Remove(l.file(id(2))) }, want: "ab01: receipts between it and 20260102T030300.000Z-ab03 are missing"},
		"the end cut off": {spoil: func(l *Ledger) {
			_ = os.Remove(l.file(id(4)))
		}, with: Expect{Newest: id(4)}, want: "ab04: the receipt is missing: the end of the chain was cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, t.TempDir())
			write(t, l, many(5)...)
			require.Equal(t, 5, intact(t, l).Intact)
			c.spoil(l)
			broken(t, l, c.with, c.want)

			export := filepath.Join(t.TempDir(), "export")
			require.NoError(t, os.WriteFile(export, must(l.Export()), 0o600))
			e := c.with
			if len(e.Keys) == 0 {
				e.Keys = must(l.Keys())
			}
			if name != "two exchanged" && name != "something behind the signature" { // an export has no names of files, nor their form
				p, err := VerifyFile(export, e)
				require.NoError(t, err)
				require.Contains(t, p.Broken[0], c.want)
			}
		})
	}
}

func id(minute int) string { return fmt.Sprintf("20260102T030%d00.000Z-ab%02d", minute, minute) }

func edit(l *Ledger, minute int, change func([]byte) []byte) {
	name := l.file(id(minute))
	if err := os.WriteFile(name, change(must(os.ReadFile(name))), 0o600); err != nil {
		panic(err)
	}
}

// An export is verified without the folder, by the public key alone.
func TestExport(t *testing.T) {
	l, err := options{Files: 5}.Open(t.TempDir())
	require.NoError(t, err)
	write(t, l, many(30, 3)...)
	export := filepath.Join(t.TempDir(), "export")
	require.NoError(t, os.WriteFile(export, must(l.Export()), 0o600))
	for _, e := range []Expect{{}, {Keys: must(l.Keys()), Newest: "20260102T032900.000Z-ab29"}, {Newest: "20260102T031000.000Z-ab10"}} {
		p, err := VerifyFile(export, e)
		require.NoError(t, err)
		require.Empty(t, p.Broken)
		require.Equal(t, 6, p.Intact)
		require.Equal(t, 24, p.Dropped)
	}
	require.NoError(t, os.WriteFile(export, []byte("nonsense"), 0o600))
	_, err = VerifyFile(export, Expect{})
	require.ErrorContains(t, err, "line 1 is not a receipt")
	_, err = ParseKey("ed25519:short")
	require.ErrorContains(t, err, "43 characters")
}

// Receipts of a version that did not sign are proved by the chain, and are reported as unsigned; after a signed one, none is accepted.
func TestReceiptsFromBeforeTheSignatures(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	write(t, l, many(5)...)
	before := ""
	for i := range 5 { // as that version wrote them: it also removed the oldest without a record
		edit(l, i, func(b []byte) []byte {
			text, _, _ := strings.Cut(string(b), `,`+"\n"+`  "key"`)
			lines := strings.SplitN(text, "\n", 4)
			lines[2] = fmt.Sprintf("  \"previous\": %q,", before)
			return []byte(strings.Join(lines, "\n") + "\n}\n")
		})
		before = digest(must(os.ReadFile(l.file(id(i)))))
	}
	require.NoError(t, os.Remove(l.file(id(0))))
	p := intact(t, open(t, dir))
	require.Equal(t, 4, p.Unsigned)
	write(t, l, took(6, 1))
	p = intact(t, l)
	require.Equal(t, 5, p.Intact)
	require.Equal(t, 4, p.Unsigned)

	edit(l, 2, func(b []byte) []byte { return bytes.Replace(b, []byte(`"done"`), []byte(`"none"`), 1) })
	broken(t, l, Expect{}, "ab02: it is not the predecessor that 20260102T030300.000Z-ab03 recorded")
}

// A key that was lost is replaced; what the old one signed holds.
func TestALostKey(t *testing.T) {
	dir := t.TempDir()
	write(t, open(t, dir), took(1, 1))
	require.NoError(t, os.Remove(filepath.Join(dir, "chain", "receipt.key")))
	write(t, open(t, dir), took(2, 1))
	p := intact(t, Read(dir))
	require.Len(t, p.Keys, 2)
	require.Equal(t, p.Keys, must(Read(dir).Keys()))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "chain", "receipt.key"), []byte("short"), 0o600))
	_, err := Open(dir)
	require.ErrorContains(t, err, "receipt.key is not usable")
}

// Wherever a crash ends a write, the chain holds, and the next write goes on: a write is a row of files that are replaced or
// removed, so a crash is any first part of that row.
func TestACrashAtEveryWrite(t *testing.T) {
	const n = 14
	full := t.TempDir()
	l, err := options{Files: 4}.Open(full)
	require.NoError(t, err)
	var states []map[string]string // after each file that changed
	last := snapshot(full)
	states = append(states, last)
	for _, r := range many(n, 2, 9) {
		write(t, l, r)
		now := snapshot(full)
		// In the order of a write: the receipt, the record of those to go, and then they go.
		step := maps.Clone(last)
		for _, part := range []string{"receipts", "chain"} {
			for name, text := range now {
				if strings.HasPrefix(name, part) && step[name] != text {
					step = maps.Clone(step)
					step[name] = text
					states = append(states, step)
				}
			}
		}
		for name := range last {
			if _, stays := now[name]; !stays {
				step = maps.Clone(step)
				delete(step, name)
				states = append(states, step)
			}
		}
		last = now
	}
	for i, state := range states {
		dir := t.TempDir()
		for name, text := range state {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chain", ".new-1"), []byte("{"), 0o600))
		l, err := options{Files: 4}.Open(dir)
		require.NoError(t, err)
		intact(t, l)
		write(t, l, took(50, 1), took(51, 1))
		p := intact(t, l)
		require.LessOrEqual(t, p.Intact, 6, "state %d", i)
	}
}

// snapshot has the files of a folder by name.
func snapshot(dir string) map[string]string {
	out := map[string]string{}
	for _, part := range []string{"receipts", "chain"} {
		for _, e := range must(os.ReadDir(filepath.Join(dir, part))) {
			out[part+"/"+e.Name()] = string(must(os.ReadFile(filepath.Join(dir, part, e.Name()))))
		}
	}
	return out
}
