package durable_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// Files are the same only if nobody can have written them meanwhile.
func TestStamps(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	old := time.Now().Add(-time.Hour)
	put := func(text string, at time.Time) {
		t.Helper()
		require.NoError(t, os.WriteFile(a, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(a, at, at))
	}
	put("one", old)
	before := durable.StampsOf(a, b)
	require.True(t, durable.StampsOf(a, b).Same(before))
	require.False(t, durable.StampsOf(a, b).Same(durable.Stamps{}), "nothing is known of before")
	require.False(t, durable.StampsOf(a).Same(before))
	for what, change := range map[string]func(){
		"written": func() { put("two", old.Add(time.Second)) },
		"longer":  func() { put("three", old) },
		"replaced": func() {
			require.NoError(t, durable.Replace(a, []byte("one")))
			require.NoError(t, os.Chtimes(a, old, old))
		},
		"opened":     func() { require.NoError(t, os.Chmod(a, 0o644)) },
		"removed":    func() { require.NoError(t, os.Remove(a)) },
		"there, too": func() { require.NoError(t, os.WriteFile(b, nil, 0o600)); require.NoError(t, os.Chtimes(b, old, old)) },
	} {
		require.NoError(t, os.RemoveAll(b))
		require.NoError(t, os.RemoveAll(a))
		put("one", old)
		was := durable.StampsOf(a, b)
		change()
		require.False(t, durable.StampsOf(a, b).Same(was), what)
	}
	require.NoError(t, os.RemoveAll(b))
	put("now", time.Now())
	was := durable.StampsOf(a, b)
	require.False(t, durable.StampsOf(a, b).Same(was), "it may be written once more at the same tick")
}
