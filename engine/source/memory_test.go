package source_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

func needGit(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, so there is nothing to compare with:", err)
	}
}

// runGit runs git in a folder, without the settings of whoever runs the test.
func runGit(t testing.TB, dir, in string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(in)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org", "GIT_AUTHOR_DATE=@1767323045 +0000", "GIT_COMMITTER_DATE=@1767323045 +0000")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return string(out)
}

func ada() model.Commit {
	return model.Commit{
		Author: model.Person{Name: "Ada", Email: "ada@example.org"}, At: time.Unix(1767323045, 0).UTC(), Subject: "a test",
		Trailers: map[string]string{"Ticket": "HOME-7", "Allow-Deletes": "2"},
	}
}

// The id that is computed is the one that git gives to the same files.
func TestASyntheticCommitIsTheOneThatGitMakes(t *testing.T) {
	needGit(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"site.hcl": "site\n", "a/b/c.txt": "c", "a-b": "1", "a.c": "2", "a/x": "3", "empty": ""} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nothing"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(dir, "a-b"), 0o755))
	require.NoError(t, os.Symlink("a/x", filepath.Join(dir, "link")))
	id, err := source.Synthesize(os.DirFS(dir), ada())
	require.NoError(t, err)

	runGit(t, dir, "", "init", "-q", "-b", "main")
	runGit(t, dir, "", "add", "-A")
	runGit(t, dir, "a test\n\nAllow-Deletes: 2\nTicket: HOME-7\n", "commit", "-q", "--no-gpg-sign", "--cleanup=verbatim", "-F", "-")
	require.Equal(t, strings.TrimSpace(runGit(t, dir, "", "rev-parse", "HEAD")), id)

	again, err := source.Synthesize(os.DirFS(dir), ada())
	require.NoError(t, err)
	require.Equal(t, id, again, "with .git there now, which is left out")
	other := ada()
	other.At = other.At.Add(time.Second)
	later, err := source.Synthesize(os.DirFS(dir), other)
	require.NoError(t, err)
	require.NotEqual(t, id, later)
}

func TestMemoryIsARepository(t *testing.T) {
	m, err := source.NewMemory("sites/home")
	require.NoError(t, err)
	_, err = m.Head(t.Context())
	require.ErrorIs(t, err, source.ErrEmpty)
	first, err := m.Add(fstest.MapFS{"site.hcl": {Data: []byte("1")}, "hosts/a.hcl": {Data: []byte("a")}}, ada())
	require.NoError(t, err)
	old, err := m.Files(first.ID)
	require.NoError(t, err)
	next := ada()
	next.Parents, next.Trailers = []string{first.ID}, nil
	second, err := m.Add(fstest.MapFS{"site.hcl": {Data: []byte("2")}}, next)
	require.NoError(t, err)

	require.Equal(t, ada().Trailers, first.Trailers)
	require.Equal(t, "a test", second.Subject)
	got, err := m.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, second, got)
	got, err = m.Commit(t.Context(), first.ID)
	require.NoError(t, err)
	require.Equal(t, first, got)
	since, err := m.Since(t.Context(), first.ID, second.ID)
	require.NoError(t, err)
	require.Equal(t, []model.Commit{second}, since)
	require.NoError(t, m.Keep(first.ID))
	require.Empty(t, m.Notes(second.ID))
	require.NoError(t, fstest.TestFS(old, "site.hcl", "hosts/a.hcl"))
	f, err := m.Files(second.ID)
	require.NoError(t, err)
	text, err := fs.ReadFile(f, "site.hcl")
	require.NoError(t, err)
	require.Equal(t, "2", string(text))
	_, err = fs.Stat(f, "hosts/a.hcl")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// What Pack writes is sound for git, and what it holds is what was added.
func TestAPackOfAMemoryIsSound(t *testing.T) {
	needGit(t)
	m, err := source.NewMemory("home")
	require.NoError(t, err)
	first, err := m.Add(fstest.MapFS{"site.hcl": {Data: bytes.Repeat([]byte("long\n"), 10_000)}}, ada())
	require.NoError(t, err)
	next := ada()
	next.Parents = []string{first.ID}
	second, err := m.Add(fstest.MapFS{"site.hcl": {Data: []byte("2\n")}}, next)
	require.NoError(t, err)
	var pack bytes.Buffer
	require.NoError(t, m.Pack(&pack, second.ID))
	require.ErrorIs(t, m.Pack(&pack, strings.Repeat("4", 40)), objects.ErrUnknown)

	r := sourcetest.New(t)
	runGit(t, r.Dir, pack.String(), "index-pack", "--stdin", "--strict")
	r.SetBranch("main", second.ID)
	fsck(t, r.Dir)
	require.Equal(t, "2\n", runGit(t, r.Dir, "", "cat-file", "blob", second.ID+":home/site.hcl"))
	require.Equal(t, second.ID+"\n"+first.ID+"\n", runGit(t, r.Dir, "", "rev-list", "main"))
}

func TestAddRefusesWhatIsNoCommit(t *testing.T) {
	m, err := source.NewMemory("")
	require.NoError(t, err)
	for want, change := range map[string]func(c *model.Commit){
		"subject must be one line": func(c *model.Commit) { c.Subject = "a\nb" },
		"not an id of a parent":    func(c *model.Commit) { c.Parents = []string{"main"} },
		"not a key of a trailer":   func(c *model.Commit) { c.Trailers = map[string]string{"a key:": "x"} },
	} {
		c := ada()
		change(&c)
		_, err := m.Add(fstest.MapFS{}, c)
		require.ErrorContains(t, err, want)
	}
	_, err = source.NewMemory("../x")
	require.ErrorContains(t, err, "outside the repository")
}
