package node_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	one = `{"version":1,"node":"web-1","spec":"base"}`
	two = `{"version":1,"node":"web-1","spec":"edge"}`
)

func files(t *testing.T, f node.Folder) []string {
	t.Helper()
	entries, err := os.ReadDir(f.Path)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode(), e.Name())
		out = append(out, e.Name())
	}
	return out
}

// A spec is complete until another one arrives; the one before it is kept.
func TestFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := node.Folder{Path: filepath.Join(t.TempDir(), "var", "lib")}
		_, err := f.Spec()
		require.ErrorIs(t, err, fs.ErrNotExist)

		changed, err := f.Store([]byte(one))
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, []string{"spec.json"}, files(t, f))
		s, err := f.Spec()
		require.NoError(t, err)
		require.Equal(t, "base", s.Name)

		first := time.Now()
		require.NoError(t, f.Fail(errors.New("apt is locked"), first))
		time.Sleep(time.Hour)
		require.NoError(t, f.Fail(wire.Errorf(wire.CodeConnection, "no route"), time.Now()))
		failed, err := f.Failed()
		require.NoError(t, err)
		require.Equal(t, &node.Failed{Version: 1, Code: "E501", Message: wire.Errorf(wire.CodeConnection, "no route").Error(), Attempts: 2, First: first.UTC(), Last: first.UTC().Add(time.Hour)}, failed)

		require.NoError(t, f.Applied(s, 7, time.Now()))
		require.Equal(t, []string{"config-complete.json", "config-failed.json", "spec.json"}, files(t, f), "the parent may still be away")
		require.NoError(t, f.Recovered())
		require.Equal(t, []string{"config-complete.json", "spec.json"}, files(t, f))
		done, err := f.Complete()
		require.NoError(t, err)
		require.Equal(t, &node.Complete{Version: 1, Node: "web-1", Spec: "base", At: time.Now().UTC(), Changed: 7}, done)

		time.Sleep(time.Hour)
		require.NoError(t, f.Applied(s, 0, time.Now()))
		again, err := f.Complete()
		require.NoError(t, err)
		require.Equal(t, done, again, "nothing is written")

		changed, err = f.Store([]byte(one))
		require.NoError(t, err)
		require.False(t, changed, "the same document")
		require.Len(t, files(t, f), 2, "it stays complete")

		changed, err = f.Store([]byte(two))
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, []string{"spec.json", "spec.prev.json"}, files(t, f))
		before, err := os.ReadFile(filepath.Join(f.Path, "spec.prev.json"))
		require.NoError(t, err)
		require.JSONEq(t, one, string(before))
	})
}

// What is no spec is refused, and the one that is there stays.
func TestStoreRefuses(t *testing.T) {
	f := node.Folder{Path: t.TempDir()}
	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	for _, bad := range []string{"", "null and void", `{"version":2,"node":"web-1"}`, one[:20]} {
		_, err := f.Store([]byte(bad))
		require.Error(t, err, bad)
	}
	require.Equal(t, []string{"spec.json"}, files(t, f))
	s, err := f.Spec()
	require.NoError(t, err)
	require.Equal(t, "base", s.Name)
}

// Files that somebody damaged are reported; a new failure replaces them.
func TestDamagedFiles(t *testing.T) {
	f := node.Folder{Path: t.TempDir()}
	for _, name := range []string{"config-complete.json", "config-failed.json", "spec.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(f.Path, name), []byte("{"), 0o600))
	}
	_, err := f.Complete()
	require.ErrorContains(t, err, "config-complete.json: ")
	_, err = f.Failed()
	require.ErrorContains(t, err, "config-failed.json: ")
	_, err = f.Spec()
	require.ErrorContains(t, err, "spec.json: reading the spec")
	require.NoError(t, f.Fail(errors.New("why"), time.Now()))
	failed, err := f.Failed()
	require.NoError(t, err)
	require.Equal(t, 1, failed.Attempts)
}
