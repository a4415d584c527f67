package source

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// failing lets one access to the local copy fail.
type failing struct {
	at    int // the number of that access, from 0
	with  error
	count int
	said  string
}

func (f *failing) before(op, name string) error {
	f.count++
	if f.count-1 != f.at {
		return nil
	}
	f.said = op + " " + name
	return f.with
}

// contents are the names and contents of all files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			out[strings.TrimPrefix(name, dir)] = "folder"
			return err
		}
		text, err := os.ReadFile(name)
		out[strings.TrimPrefix(name, dir)] = string(text)
		return err
	}))
	return out
}

// copied makes a local copy of two commits, of which the first is kept, in several packs. One file is read from its pack piece by
// piece.
func copied(t *testing.T) (o Options, remote *sourcetest.Repo, good, newest string) {
	t.Helper()
	remote = sourcetest.New(t)
	large := string(bytes.Repeat([]byte("0123456789abcde\n"), (streamed+4096)/16))
	good = remote.Commit(map[string]string{"a": "1", "dir/b": large}, "good")
	o = Options{URL: remote.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}
	r, err := OpenRepository(o)
	require.NoError(t, err)
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Keep(good))
	newest = remote.Commit(map[string]string{"a": "2"}, "newest")
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	return o, remote, good, newest
}

// copyOf copies a local copy into a folder, and replaces the one before.
func copyOf(t *testing.T, master, dir string) string {
	t.Helper()
	to := filepath.Join(dir, "copy")
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS(master)))
	return to
}

// readable reads the files of the last good commit.
func readable(r *Repository, good string) error {
	f, err := r.Files(good)
	if err != nil {
		return err
	}
	for name, length := range map[string]int{"a": 1, "dir/b": streamed + 4096} {
		text, err := fs.ReadFile(f, name)
		if err != nil {
			return err
		}
		if len(text) != length {
			return fmt.Errorf("%s has %d bytes", name, len(text))
		}
	}
	return nil
}

var diskErrors = []error{syscall.EACCES, syscall.EMFILE, syscall.EIO, syscall.ENOSPC}

// Whatever access fails while the copy is opened or read, and for whatever reason: no file changes, and the next attempt has
// the last good commit.
func TestS5AFailedAccessChangesNothing(t *testing.T) {
	t.Parallel()
	o, _, good, newest := copied(t)
	var said strings.Builder
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	before := contents(t, o.Dir)
	failed := map[string]bool{}
	for _, with := range diskErrors {
		for n := 0; ; n++ {
			f := &failing{at: n, with: with}
			r, err := open(o, f.before)
			opened := err == nil
			if opened {
				err = readable(r, good)
			}
			if f.said == "" {
				require.NoError(t, err)
				break // all of it happened
			}
			failed[strings.Fields(f.said)[0]] = true
			require.Equal(t, before, contents(t, o.Dir), "%v at %s", with, f.said)
			require.Empty(t, said.String(), "%v at %s", with, f.said)
			require.ErrorIs(t, err, with, "%s", f.said)
			require.NotErrorIs(t, err, objects.ErrDamaged, "%v at %s", with, f.said)
			if opened { // the error was one of reading: the same repository goes on
				require.False(t, r.damaged.Load(), "%v at %s", with, f.said)
				require.NoError(t, readable(r, good), "%v at %s", with, f.said)
			}
			again, err := OpenRepository(o)
			require.NoError(t, err)
			require.Equal(t, newest, again.state.head.String())
			require.NoError(t, readable(again, good))
		}
	}
	for _, op := range []string{"stat", "readdir", "mkdir", "read", "open", "readat"} {
		require.True(t, failed[op], "never failed: %s", op)
	}
}

// Whatever access fails while a new commit is fetched and the copy compacted: all files from before are there, and the last good
// commit can be read, by the same program and the next one.
func TestS5AFailedAccessDuringAFetch(t *testing.T) {
	t.Parallel()
	for _, packs := range []int{32, 1} { // the second compacts
		o, remote, good, newest := copied(t)
		o.packs = packs
		next := remote.Commit(map[string]string{"a": "3"}, "next")
		master, dir := o.Dir, sourcetest.TempDir(t)
		failed := map[string]bool{}
		for first := range 2 { // two of the errors at each access
			for n := 0; ; n++ {
				with := diskErrors[2*first+n%2]
				o.Dir = copyOf(t, master, dir)
				f := &failing{at: -1, with: with}
				r, err := open(o, f.before)
				require.NoError(t, err)
				f.at = f.count + n
				got, err := r.Head(t.Context())
				if f.said == "" {
					require.NoError(t, err)
					break
				}
				failed[strings.Fields(f.said)[0]] = true
				require.NotErrorIs(t, err, objects.ErrDamaged, "%v at %s", with, f.said)
				require.False(t, r.damaged.Load(), "%v at %s", with, f.said)
				if err != nil {
					require.ErrorIs(t, err, with, "%s", f.said)
				} else {
					require.Equal(t, next, got.ID)
				}
				require.NoError(t, readable(r, good), "%v at %s", with, f.said)
				again, err := OpenRepository(o)
				require.NoError(t, err)
				require.Contains(t, []string{newest, next}, again.state.head.String(), "%v at %s", with, f.said)
				require.NoError(t, readable(again, good), "%v at %s", with, f.said)
				_, err = again.Head(t.Context())
				require.NoError(t, err)
				require.Equal(t, next, again.state.head.String())
				require.NoDirExists(t, filepath.Join(o.Dir, asideDir))
			}
		}
		for _, op := range []string{"create", "write", "readat", "sync", "rename"} {
			require.True(t, failed[op], "never failed: %s", op)
		}
	}
}

// One changed or missing byte of any file is repaired from the remote. What was damaged is moved aside as it was.
func TestS5DamageRecovers(t *testing.T) {
	t.Parallel()
	o, _, _, newest := copied(t)
	master, dir := o.Dir, sourcetest.TempDir(t)
	var aside int
	for name, text := range contents(t, master) {
		if text == "folder" || name == "/"+ownerFile {
			continue
		}
		step := max(1, len(text)/15)
		for at := 0; at < len(text); at += step {
			for what, damaged := range map[string]string{
				"flipped": text[:at] + string([]byte{text[at] ^ 0x41}) + text[at+1:],
				"cut":     text[:at],
				"longer":  text + text[:at+1],
			} {
				what = fmt.Sprintf("%s %s at %d of %d", name, what, at, len(text))
				o.Dir = copyOf(t, master, dir)
				require.NoError(t, os.WriteFile(o.Dir+name, []byte(damaged), 0o600))
				r, err := OpenRepository(o)
				require.NoError(t, err, what)
				got, err := r.Head(t.Context())
				require.NoError(t, err, what)
				require.Equal(t, newest, got.ID, what)
				require.NoError(t, readable(r, newest), what)
				moved, err := os.ReadFile(o.Dir + "/" + asideName(1) + name)
				if err == nil {
					aside++
					require.Equal(t, damaged, string(moved), "%s is not as it was", what)
				} else {
					require.NotContains(t, name, "objects", "%s was not moved aside", what)
				}
			}
		}
	}
	t.Logf("%d times something was moved aside", aside)
	require.Greater(t, aside, 50)
}

// A damaged copy that cannot be moved aside stays where it is, and what a program has read of it stays in use.
func TestS5DamageThatCannotBeMovedAside(t *testing.T) {
	t.Parallel()
	o, _, _, newest := copied(t)
	packs, err := filepath.Glob(filepath.Join(o.Dir, packDir, "*.pack"))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(packs[0], 40))
	before := contents(t, o.Dir)
	master, dir := o.Dir, sourcetest.TempDir(t)
	for _, with := range diskErrors {
		for n := 0; ; n++ {
			o.Dir = copyOf(t, master, dir)
			f := &failing{at: n, with: with}
			_, err := open(o, f.before)
			if f.said == "" {
				require.NoError(t, err)
				break
			}
			after := contents(t, o.Dir)
			for name, text := range before {
				_, name = filepath.Split(name)
				found := text == "folder"
				for other, same := range after {
					found = found || strings.HasSuffix(other, "/"+name) && same == text
				}
				require.True(t, found, "%v at %s: %s is gone", with, f.said, name)
			}
			r, err := OpenRepository(o)
			require.NoError(t, err, "%v at %s", with, f.said)
			got, err := r.Head(t.Context())
			require.NoError(t, err)
			require.Equal(t, newest, got.ID)
		}
	}
}

// While the remote does not answer, a damaged copy stays in use as far as it can be read.
func TestS5DamageIsReplacedOnceTheRemoteAnswers(t *testing.T) {
	o, remote, good, newest := copied(t)
	r, err := OpenRepository(o)
	require.NoError(t, err)
	r.damaged.Store(true)
	packs, err := filepath.Glob(filepath.Join(o.Dir, packDir, "*.idx"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(packs[0], []byte("x"), 0o600))
	before := contents(t, o.Dir)
	remote.Remove()
	_, err = r.Head(t.Context())
	require.Error(t, err)
	require.Equal(t, before, contents(t, o.Dir))
	require.NoError(t, readable(r, good))
	remote.Restore()
	got, err := r.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, newest, got.ID)
	require.NoError(t, readable(r, newest))
	require.DirExists(t, filepath.Join(o.Dir, asideName(1)))
}

// What was moved aside is bounded in number and in size, and the newest stays.
func TestS5WhatIsMovedAsideIsBounded(t *testing.T) {
	o, _, _, _ := copied(t)
	for n := 1; n <= mostAside+2; n++ {
		require.NoError(t, os.WriteFile(filepath.Join(o.Dir, stateFile), []byte(fmt.Sprint("damage ", n)), 0o600))
		_, err := OpenRepository(o)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(o.Dir, asideName(n), stateFile))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("damage ", n), string(text))
	}
	left, err := os.ReadDir(filepath.Join(o.Dir, asideDir))
	require.NoError(t, err)
	require.Len(t, left, mostAside)

	large := filepath.Join(o.Dir, asideName(mostAside+1), "large")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, asideBytes))
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, stateFile), []byte("damage"), 0o600))
	_, err = OpenRepository(o)
	require.NoError(t, err)
	require.NoFileExists(t, large)
	require.FileExists(t, filepath.Join(o.Dir, asideName(mostAside+3), stateFile))
}

// Only what is typed as damage is damage.
func TestS5DamageIsATypeOfItsOwn(t *testing.T) {
	require.NoError(t, objects.Damage(nil))
	err := objects.Damage(fs.ErrNotExist)
	require.ErrorIs(t, err, objects.ErrDamaged)
	require.NotErrorIs(t, err, fs.ErrNotExist, "a missing part is not a missing file")
	require.NotErrorIs(t, syscall.EIO, objects.ErrDamaged)
}
