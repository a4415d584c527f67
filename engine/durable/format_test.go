package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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

	require.NoError(t, claim(dir, "1.0.0", 1, nil))
	require.Equal(t, "1 1.0.0\n", content())
	require.NoError(t, claim(dir, "1.1.0", 1, nil))
	require.Equal(t, "1 1.0.0\n", content(), "the program that introduced it")

	broken := errors.New("no room")
	require.ErrorIs(t, claim(dir, "3.0.0", 3, []upgrade{steps[0], func(string) error { return broken }}), broken)
	require.Equal(t, "1 1.0.0\n", content())
	require.NoError(t, claim(dir, "3.0.0", 3, steps))
	require.Equal(t, []int{1, 1, 2}, ran, "all again after one that failed")
	require.Equal(t, "3 3.0.0\n", content())

	var newer *newerError
	require.ErrorAs(t, claim(dir, "1.1.0", 1, nil), &newer)
	require.Equal(t, newerError{Dir: dir, Format: 3, Program: "3.0.0"}, *newer)
	require.Equal(t, "3 3.0.0\n", content())

	require.NoError(t, os.WriteFile(filepath.Join(dir, formatFile), []byte("x\n"), 0o600))
	require.ErrorContains(t, claim(dir, "1.1.0", 1, nil), "has no format in it")
	require.Len(t, upgrades(), Format-1)
}
