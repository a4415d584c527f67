package durable_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/durable"
)

func TestReplace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"one", "", "three\x00"} {
		require.NoError(t, durable.Replace(name, []byte(content)))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, content, string(b))
	}
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
}

// A file that cannot be replaced stays, and nothing is left beside it.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "folder")
	require.NoError(t, os.MkdirAll(filepath.Join(name, "full"), 0o755))
	require.Error(t, durable.Replace(name, []byte("x")))
	require.Error(t, durable.Replace(filepath.Join(dir, "none", "file"), []byte("x")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// A reader sees one content as a whole, whoever writes.
func TestReadersSeeWholeFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, durable.Replace(name, []byte(strings.Repeat("0", 1000))))
	var all sync.WaitGroup
	for _, digit := range []string{"1", "2", "3"} {
		all.Go(func() {
			for range 20 {
				if err := durable.Replace(name, []byte(strings.Repeat(digit, 1000))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat(string(b[:1]), 1000), string(b))
	}
	all.Wait()
}
