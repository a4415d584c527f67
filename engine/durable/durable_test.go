package durable_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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

// A reader always sees one whole content while others write.
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

// Read, change and write under the lock lose no change of another process.
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
	_, err = durable.TryLock(filepath.Join(dir, "removed") + "/")
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(dir, "removed"), "a folder that is gone does not become a file")
}

// A program that is being started has a copy of each open file until it runs.
func TestUnlockedInSpiteOfACopy(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := durable.TryLock(name)
	require.NoError(t, err)
	copied := -1
	files, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, f := range files {
		if to, _ := os.Readlink(f); to == name {
			fd, err := strconv.Atoi(filepath.Base(f))
			require.NoError(t, err)
			copied, err = syscall.Dup(fd)
			require.NoError(t, err)
		}
	}
	require.GreaterOrEqual(t, copied, 0)
	t.Cleanup(func() { require.NoError(t, syscall.Close(copied)) })
	unlock()
	unlock, err = durable.TryLock(name)
	require.NoError(t, err)
	unlock()
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

// Files that root makes in the folder of a service belong to that service.
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

// Each way to change a file is noticed, in each of the folders; a folder that is not there is no error.
func TestNotice(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	one, other := t.TempDir(), t.TempDir()
	name := filepath.Join(other, "key")
	notices := durable.Notice(ctx, one, filepath.Join(one, "none"), other)
	for _, change := range []func() error{
		func() error { return os.WriteFile(name, []byte("a"), 0o600) },
		func() error { return os.WriteFile(name, []byte("b"), 0o600) },
		func() error { return durable.Replace(name, []byte("c")) },
		func() error { return os.Chmod(name, 0o400) },
		func() error { return os.Remove(name) },
		func() error { return os.Symlink("/nowhere", filepath.Join(one, "link")) },
	} {
		require.NoError(t, change())
		<-notices
		for done := false; !done; { // one change may be several events
			require.NoError(t, os.WriteFile(filepath.Join(one, "last"), nil, 0o600))
			<-notices
			done = len(notices) == 0
		}
	}
}

// Files count as unchanged only if a write since then is impossible.
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
