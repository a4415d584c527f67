package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A program upgrades a folder step by step, and refuses one of a newer program before it changes anything.
func TestFormats(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var ran []int
	steps := []upgrade{
		func(string) error { ran = append(ran, 1); return nil },
		func(string) error { ran = append(ran, 2); return nil },
	}
	content := func() string {
		text, err := os.ReadFile(filepath.Join(dir, formatFile))
		require.NoError(t, err)
		return string(text)
	}

	require.NoError(t, claim(dir, "1.0.0", 1, nil, time.Now()))
	require.Equal(t, "1 1.0.0\n", content())
	require.NoError(t, claim(dir, "1.1.0", 1, nil, time.Now()))
	require.Equal(t, "1 1.0.0\n", content(), "the program that introduced it")

	broken := errors.New("no room")
	require.ErrorIs(t, claim(dir, "3.0.0", 3, []upgrade{steps[0], func(string) error { return broken }}, time.Now()), broken)
	require.Equal(t, "1 1.0.0\n", content())
	require.NoError(t, claim(dir, "3.0.0", 3, steps, time.Now()))
	require.Equal(t, []int{1, 1, 2}, ran, "all again after one that failed")
	require.Equal(t, "3 3.0.0\n", content())

	var newer *newerError
	require.ErrorAs(t, claim(dir, "1.1.0", 1, nil, time.Now().Add(2*takeBack)), &newer)
	require.Equal(t, newerError{Dir: dir, Format: 3, Program: "3.0.0"}, *newer)
	require.Equal(t, "3 3.0.0\n", content())

	require.NoError(t, os.WriteFile(filepath.Join(dir, formatFile), []byte("x\n"), 0o600))
	require.ErrorContains(t, claim(dir, "1.1.0", 1, nil, time.Now()), "has no format in it")
	require.Len(t, upgrades(), Format-1)
}

// The program from before takes back its files from a later one that was started and does not work, also if that was cut off while
// it changed them, or the restoration was. After an hour it is too late.
func TestAFormatIsTakenBack(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name string
		cut  bool
		at   time.Duration
	}{{"it was started", false, 5 * time.Minute}, {"it was cut off", true, 5 * time.Minute}, {"it was cut off, long ago", true, 2 * takeBack}, {"it ran for long", false, 2 * takeBack}} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			require.NoError(t, claim(dir, "1.0.0", 1, nil, now))
			put := func(name, text string) {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
				require.NoError(t, Replace(filepath.Join(dir, name), []byte(text)))
			}
			has := func(name, text string) {
				t.Helper()
				got, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Equal(t, text, string(got))
			}
			put("state.json", "1")
			put("receipts/1.json", "1")
			put("agent.lock", "")
			require.NoError(t, os.Chmod(filepath.Join(dir, "state.json"), 0o600))
			broken := errors.New("the machine is off")
			later := []upgrade{func(string) error {
				put("state.json", "2")
				require.NoError(t, os.Remove(filepath.Join(dir, "receipts/1.json")))
				if c.cut {
					return broken
				}
				return nil
			}}
			err := claim(dir, "2.0.0", 2, later, now)
			if c.cut {
				require.ErrorIs(t, err, broken)
			} else {
				require.NoError(t, err)
				put("receipts/2.json", "2")
				require.NoError(t, claim(dir, "2.0.1", 2, later, now), "it was started again")
			}
			err = claim(dir, "1.0.0", 1, nil, now.Add(c.at))
			if c.at > takeBack && !c.cut {
				require.ErrorAs(t, err, new(*newerError))
				require.NoError(t, claim(dir, "2.0.1", 2, later, now.Add(c.at)))
				require.NoDirExists(t, filepath.Join(dir, beforeDir), "it is not needed any more")
				has("state.json", "2")
				return
			}
			require.NoError(t, err)
			has("state.json", "1")
			has("receipts/1.json", "1")
			has("format", "1 1.0.0\n")
			require.NoFileExists(t, filepath.Join(dir, "receipts/2.json"))
			info, err := os.Stat(filepath.Join(dir, "state.json"))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode())
			put("state.json", "1, changed")
			require.NoError(t, claim(dir, "1.0.0", 1, nil, now.Add(c.at)))
			has("state.json", "1, changed")
			require.NoError(t, claim(dir, "2.0.2", 2, []upgrade{func(string) error { return nil }}, now.Add(c.at)))
			has("state.json", "1, changed")
		})
	}
}
