package durable_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// Whoever reads, changes and writes under the lock loses no change of anybody else.
func TestExclusively(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "count")
	require.NoError(t, durable.Replace(name, []byte("0")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, durable.Unfinished+"1"), []byte("of one that died"), 0o600))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				if err := durable.Exclusively(dir, func() error { return increment(name) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	text, err := durable.ReadPrivate(name)
	require.NoError(t, err)
	require.Equal(t, "80", string(text))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Error(t, durable.Exclusively(filepath.Join(dir, "none"), func() error { return nil }))
}

// A lock is of a file, which is created, or of a folder. A second one has to wait until it is released.
func TestTryLock(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Join(dir, "lock")} {
		unlock, err := durable.TryLock(name)
		require.NoError(t, err)
		_, err = durable.TryLock(name)
		require.ErrorIs(t, err, durable.ErrLocked)
		unlock()
		unlock, err = durable.TryLock(name)
		require.NoError(t, err)
		unlock()
	}
	_, err := durable.TryLock(filepath.Join(dir, "none", "lock"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func increment(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return durable.Replace(name, []byte(strconv.Itoa(n+1)))
}

func TestReadPrivate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	_, err := durable.ReadPrivate(name)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(name, []byte("x"), 0o600))
	require.NoError(t, os.Chmod(name, 0o640))
	_, err = durable.ReadPrivate(name)
	require.ErrorContains(t, err, "chmod 600 "+name)
}

// What root makes in the folder of a service belongs to that service.
func TestHandOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "key")
	require.NoError(t, durable.Replace(name, nil))
	require.NoError(t, durable.HandOver(dir, name))
	require.Zero(t, ownerOf(t, name))
	require.NoError(t, os.Chown(dir, 65534, 65534))
	require.NoError(t, durable.HandOver(dir, name))
	require.Equal(t, 65534, ownerOf(t, name))
}

func ownerOf(t *testing.T, name string) int {
	t.Helper()
	info, err := os.Stat(name)
	require.NoError(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	return int(stat.Uid)
}
