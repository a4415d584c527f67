package source

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

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

// A copy that something else damaged is thrown away and fetched anew, and that is said.
func TestDamagedCopies(t *testing.T) {
	t.Parallel()
	remote := sourcetest.New(t)
	id := remote.Commit(map[string]string{"a": "1", "dir/b": strings.Repeat("b", 3000)}, "first")
	each := func(dir, pattern string, do func(file string)) {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			require.NoError(t, os.Chmod(f, 0o600))
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
