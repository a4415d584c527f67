package source

import (
	"bytes"
	"errors"
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

// Damaged copies that were moved aside are bounded in number and in size, and the newest stays.
func TestS5DamagedCopiesAreBounded(t *testing.T) {
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

var errKilled = errors.New("killed")

// killer lets so many changes of the folder happen, and no more after that: what a
// dead program would have done next, and its tidying up, never comes.
type killer struct {
	left int
	said string // the change that did not happen
}

func (k *killer) before(op, name string) error {
	if !changes(op) {
		return nil
	}
	if k.left--; k.left < 0 {
		if k.said == "" {
			k.said = op + " " + name
		}
		return errKilled
	}
	return nil
}

// changes reports whether an access to the local copy changes names: only then does the moment of a kill make a difference.
func changes(op string) bool {
	return op == "mkdir" || op == "create" || op == "rename" || op == "sync" || op == "remove"
}

// life is what an agent does in some days: it fetches, keeps, and so the copy is
// compacted more than once. It gives the commit it last kept.
func life(r *Repository, remote *sourcetest.Repo, commits []string, t *testing.T) (string, error) {
	t.Helper()
	last := ""
	for i, id := range commits {
		remote.Reset(id)
		c, err := r.Head(t.Context())
		if err != nil {
			return last, err
		}
		if c.ID != id {
			return last, fmt.Errorf("head is %s", c.ID)
		}
		if i%5 == 0 {
			if err := r.Keep(id); err != nil {
				return last, err
			}
			last = id
		}
	}
	return last, nil
}

// However a program ends, the next one finds a copy that works, and what was kept is
// still there.
func TestKilledAtAnyChangeOfTheCopy(t *testing.T) {
	t.Parallel()
	const few = 4 // packs, so that the copy is compacted often
	remote := sourcetest.New(t)
	var commits []string
	for i := range 2*few + 3 {
		commits = append(commits, remote.Commit(map[string]string{"a": fmt.Sprint(i), fmt.Sprint("f", i): "x"}, fmt.Sprint("commit ", i)))
	}
	killed := map[string]bool{}
	dir := sourcetest.TempDir(t)
	for n := 0; ; n++ {
		o := Options{URL: remote.URL(), Dir: filepath.Join(dir, fmt.Sprint(n)), packs: few}
		k := &killer{left: n}
		var last string
		r, err := open(o, k.before)
		if err == nil {
			last, err = life(r, remote, commits, t)
		}
		if k.said == "" {
			require.NoError(t, err)
			break // all of it happened
		}
		verb, name, _ := strings.Cut(k.said, " ")
		killed[verb+" "+filepath.Dir(name)] = true

		r, err = OpenRepository(o)
		require.NoError(t, err, "%d: killed before %s", n, k.said)
		if last != "" {
			f, err := r.Files(last)
			require.NoError(t, err, "%d: killed before %s: what was kept is gone", n, k.said)
			_, err = fs.ReadFile(f, "a")
			require.NoError(t, err)
		}
		_, err = r.Head(t.Context())
		require.NoError(t, err)
		_, err = life(r, remote, commits, t)
		require.NoError(t, err, "%d: killed before %s", n, k.said)
		require.NoError(t, os.RemoveAll(o.Dir))
	}
	for _, what := range []string{"rename objects/pack", "sync objects/pack", "remove objects/pack", "create .", "rename ."} {
		require.True(t, killed[what], "never killed before %s", what)
	}
}

// A damaged copy is moved aside and fetched again, and the log says so.
func TestDamagedCopies(t *testing.T) {
	t.Parallel()
	remote := sourcetest.New(t)
	id := remote.Commit(map[string]string{"a": "1", "dir/b": strings.Repeat("b", 3000)}, "first")
	each := func(dir, pattern string, do func(file string)) {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			require.NoError(t, os.Chmod(f, 0o700)) // some are folders
			do(f)
		}
	}
	overwrite := func(at int) func(string) {
		return func(file string) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			b[(at+len(b))%len(b)] ^= 0x5a
			require.NoError(t, os.WriteFile(file, b, 0o600))
		}
	}
	remove := func(file string) { require.NoError(t, os.RemoveAll(file)) }
	shorten := func(file string) { require.NoError(t, os.Truncate(file, 30)) }
	empty := func(file string) { require.NoError(t, os.Truncate(file, 0)) }
	fill := func(text string) func(string) {
		return func(file string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	}
	for name, c := range map[string]struct {
		pattern string
		do      func(string)
		silent  bool // there is nothing to say
	}{
		"no packs":             {"objects/pack/*", remove, false},
		"no index":             {"objects/pack/*.idx", remove, false},
		"no pack":              {"objects/pack/*.pack", remove, false},
		"no objects":           {"objects", remove, false},
		"a short pack":         {"objects/pack/*.pack", shorten, false},
		"a short index":        {"objects/pack/*.idx", shorten, false},
		"an empty pack":        {"objects/pack/*.pack", empty, false},
		"an empty index":       {"objects/pack/*.idx", empty, false},
		"a bit in the pack":    {"objects/pack/*.pack", overwrite(60), false},
		"a bit in the index":   {"objects/pack/*.idx", overwrite(1040), false},
		"the pack's head":      {"objects/pack/*.pack", overwrite(0), false},
		"the pack's checksum":  {"objects/pack/*.pack", overwrite(-1), false},
		"no state":             {"packed-refs", remove, true},
		"an empty state":       {"packed-refs", empty, true},
		"another state":        {"packed-refs", fill(strings.Repeat("5", 40) + " refs/heads/main\n"), false},
		"a state of nonsense":  {"packed-refs", fill("<html>"), false},
		"half a line of state": {"packed-refs", shorten, false},
		"a folder as state":    {"packed-refs", func(f string) { remove(f); require.NoError(t, os.Mkdir(f, 0o700)) }, false},
		"no HEAD":              {"HEAD", remove, true},
		"no refs":              {"refs", remove, true},
		"no mark":              {"homestak-gitops", func(string) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			o := Options{URL: remote.URL(), Dir: filepath.Join(t.TempDir(), "copy"), Log: slog.New(slog.NewTextHandler(&said, nil))}
			r, err := OpenRepository(o)
			require.NoError(t, err)
			_, err = r.Head(t.Context())
			require.NoError(t, err)
			each(o.Dir, c.pattern, c.do)
			r, err = OpenRepository(o)
			require.NoError(t, err)
			got, err := r.Head(t.Context())
			require.NoError(t, err)
			require.Equal(t, id, got.ID)
			f, err := r.Files(id)
			require.NoError(t, err)
			text, err := fs.ReadFile(f, "dir/b")
			require.NoError(t, err)
			require.Len(t, text, 3000)
			require.Equal(t, c.silent, said.String() == "", said.String())
		})
	}
}

// What is damaged while it is in use is noticed by who reads it, and mended by the
// next look.
func TestDamageWhileInUse(t *testing.T) {
	remote := sourcetest.New(t)
	id := remote.Commit(map[string]string{"a": strings.Repeat("a", 100)}, "first")
	o := Options{URL: remote.URL(), Dir: filepath.Join(t.TempDir(), "copy")}
	r, err := OpenRepository(o)
	require.NoError(t, err)
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	packs, err := filepath.Glob(filepath.Join(o.Dir, "objects/pack/*.pack"))
	require.NoError(t, err)
	f, err := os.OpenFile(packs[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 200), 20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	files, err := r.Files(id)
	if err == nil {
		_, err = fs.ReadFile(files, "a")
	}
	require.ErrorIs(t, err, objects.ErrDamaged)
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	files, err = r.Files(id)
	require.NoError(t, err)
	_, err = fs.ReadFile(files, "a")
	require.NoError(t, err)

	// And the same if the whole folder goes away.
	require.NoError(t, os.RemoveAll(o.Dir))
	remote.Commit(map[string]string{"a": "2"}, "second")
	_, err = r.Head(t.Context())
	require.Error(t, err)
	got, err := r.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, "second", got.Subject)
}
