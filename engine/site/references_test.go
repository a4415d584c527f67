package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

func TestFindWord(t *testing.T) {
	for _, c := range []struct {
		text, word string
		found      bool
	}{
		{"host web down", "web", true},
		{"web.example.com", "web", true},
		{"http://web:80/", "web", true},
		{"web-2 cobweb web_a Web", "web", false},
		{"web-2, web", "web", true},
		{"10.0.0.100", "100", false},
		{"vmid: 100.", "100", true},
		{"vm-100-disk-0", "100", false},
		{"1100 1001", "100", false},
		{"10.0.0.5/24", "10.0.0.5", true},
		{"10.0.0.5:22", "10.0.0.5", true},
		{"10.0.0.51 110.0.0.5", "10.0.0.5", false},
		{"is 10.0.0.5.", "10.0.0.5", true},
		{"2001:db8::5", "2001:db8::5", true},
	} {
		require.Equal(t, c.found, findWord([]byte(c.text), c.word) >= 0, "%q in %q", c.word, c.text)
	}
}

func TestReferences(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("registry/hosts", "# hosts\n10.0.0.5 web\n")
	write("registry/.git/index", "db")
	write("dns", "one\nmail IN A 10.0.0.9\n")
	web, db, mail := model.Address{Kind: "vm", Name: "web"}, model.Address{Kind: "vm", Name: "db"}, model.Address{Kind: "vm", Name: "mail"}
	words := map[model.Address][]string{web: {"web", "10.0.0.5"}, db: {"db", "10001"}, mail: {"mail"}}
	r := references{tree: fstest.MapFS{"docs/a.md": {Data: []byte("see web-2")}, "docs/b.md": {Data: []byte("\n\nVM 10001")}}, of: &model.References{
		Paths: []string{filepath.Join(dir, "registry"), filepath.Join(dir, "dns"), "docs"},
	}}
	got := r.find(t.Context(), words)
	require.Equal(t, map[model.Address]string{
		web:  "it is still referenced at " + dir + "/registry/hosts:2 (10.0.0.5), " + dir + "/registry/hosts:2 (web)",
		db:   "it is still referenced at docs/b.md:3 (10001)",
		mail: "it is still referenced at " + dir + "/dns:2 (mail)",
	}, got)

	other := model.Address{Kind: "vm", Name: "other"}
	require.Empty(t, r.find(t.Context(), map[model.Address][]string{other: {"other"}}))
	r.of.Paths = append(r.of.Paths, filepath.Join(dir, "gone"))
	got = r.find(t.Context(), map[model.Address][]string{other: {"other"}})
	require.Contains(t, got[other], "whether it is still referenced is unknown: "+dir+"/gone could not be searched", "what cannot be read is no proof of absence")
	write("large", strings.Repeat("x", mostReferenceFile+1))
	r.of.Paths = []string{filepath.Join(dir, "large")}
	require.Contains(t, r.find(t.Context(), map[model.Address][]string{other: {"other"}})[other], "more than 8 MiB")
}

// A path that is no file was searched as an empty one.
func TestADeviceIsNotSearched(t *testing.T) {
	web := model.Address{Kind: "vm", Name: "web"}
	got := references{tree: fstest.MapFS{}, of: &model.References{Paths: []string{os.DevNull}}}.find(t.Context(), map[model.Address][]string{web: {"web"}})
	require.Contains(t, got[web], "it is neither a file nor a folder")
}

// TestLinksAndSpecialFiles: a link inside the folder is searched as what it leads to, one that leads to nothing has nothing, and one
// that leads out is no proof of absence; nor is a pipe, which is not opened.
func TestLinksAndSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "named")
	require.NoError(t, os.Mkdir(named, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "outside"), []byte("web"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(named, "inside"), []byte("mail"), 0o600))
	require.NoError(t, os.Symlink("inside", filepath.Join(named, "link")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(named, "nothing")))
	require.NoError(t, os.Symlink(named, filepath.Join(dir, "alias")))
	find := func(name, word string) string {
		addr := model.Address{Kind: "vm", Name: word}
		return references{tree: fstest.MapFS{}, of: &model.References{Paths: []string{name}}}.find(t.Context(), map[model.Address][]string{addr: {word}})[addr]
	}
	require.Empty(t, find(named, "web"))
	require.Equal(t, "it is still referenced at "+named+"/inside:1 (mail)", find(named, "mail"), "once")
	require.Contains(t, find(filepath.Join(dir, "alias"), "mail"), dir+"/alias/inside:1", "what is named may be a link")
	for name, add := range map[string]func(string) error{
		"relative": func(name string) error { return os.Symlink("../outside", name) },
		"absolute": func(name string) error { return os.Symlink(filepath.Join(dir, "outside"), name) },
		"folder":   func(name string) error { return os.Symlink("/", name) },
		"pipe":     func(name string) error { return syscall.Mkfifo(name, 0o600) },
	} {
		at := filepath.Join(named, name)
		require.NoError(t, add(at))
		got := find(named, "web")
		require.Contains(t, got, "whether it is still referenced is unknown: "+named+" could not be searched: "+at, name)
		require.Regexp(t, "is a link that leads out of it|is neither a file nor a folder", got)
		require.NoError(t, os.Remove(at))
	}
}

// TestReferencesInRepositories: the newest commit of the default branch or of the one that is named is searched, over https with
// a token and over ssh with a key. A repository that cannot be reached is no proof of absence.
func TestReferencesInRepositories(t *testing.T) {
	docs, dns := sourcetest.New(t), sourcetest.New(t)
	docs.Branch = "trunk"
	docs.Commit(map[string]string{"a.md": "the old web"}, "one")
	docs.Commit(map[string]string{"a.md": "web-2", "hosts/list": "\n10.0.0.5\n"}, "two")
	require.NoError(t, os.WriteFile(filepath.Join(docs.Dir, "HEAD"), []byte("ref: refs/heads/trunk\n"), 0o600))
	dns.Commit(map[string]string{"zone": "mail"}, "one")
	dns.SetBranch("old", dns.Head())
	dns.Commit(map[string]string{"zone": "nothing"}, "two")
	web, ssh := docs.HTTPS(), dns.SSH()
	web.SetLogin("git", "t0ken")
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	address := func(name string) model.Address { return model.Address{Kind: "vm", Name: name} }
	words := map[model.Address][]string{address("web"): {"web", "10.0.0.5"}, address("mail"): {"mail"}, address("other"): {"other"}}
	of := &model.References{
		Repositories: []string{web.URL, ssh.URL, ssh.URL + "#old"}, Token: "t0ken", Key: read(ssh.KeyFile), HostKey: read(ssh.KnownHostsFile),
	}
	require.Empty(t, checkReferences(of))
	dir := filepath.Join(t.TempDir(), "references")
	auth := source.Auth{CAFile: web.CAFile, TokenFile: "/that of the site", KeyFile: "/that of the site"}
	for name, copies := range map[string]source.Options{"kept": {Dir: dir, Auth: auth}, "by hand": {Auth: auth}} {
		r := references{tree: fstest.MapFS{}, of: of, copies: copies}
		require.Equal(t, map[model.Address]string{
			address("web"):  "it is still referenced at " + web.URL + " hosts/list:2 (10.0.0.5)",
			address("mail"): "it is still referenced at " + ssh.URL + "#old zone:1 (mail)",
		}, r.find(t.Context(), words), name)
	}
	copies, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, copies, 3)
	require.Equal(t, docs.Head()+"\n", read(filepath.Join(dir, copyName(web.URL), "shallow")), "the history is not fetched")
	asked := web.Requests()
	require.Len(t, references{tree: fstest.MapFS{}, of: of, copies: source.Options{Dir: dir, Auth: auth}}.find(t.Context(), words), 2)
	require.Equal(t, asked+1, web.Requests(), "asked whether the copy is the newest")

	docs.Commit(map[string]string{"a.md": "other"}, "three")
	docs.Remove()
	of.Repositories = of.Repositories[:1]
	got := references{tree: fstest.MapFS{}, of: of, copies: source.Options{Dir: dir, Auth: auth}}.find(t.Context(), words)
	for _, name := range []string{"web", "mail", "other"} {
		require.Contains(t, got[address(name)], "whether it is still referenced is unknown: "+web.URL+" could not be searched: ", "the copy is not what counts")
		require.NotContains(t, got[address(name)], "t0ken")
	}
	copies, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, copies, 1, "those that left the site are removed")
	of.Repositories[0] = strings.Replace(web.URL, "//", "//pa55word@", 1)
	got = references{tree: fstest.MapFS{}, of: of, copies: source.Options{Dir: dir, Auth: auth}}.find(t.Context(), words)
	require.Contains(t, got[address("web")], web.URL)
	require.NotContains(t, got[address("web")], "pa55word", "what stands for the user may be a token")
	of.Repositories[0], of.Missing = web.URL, []string{"secret.passwords.docs"}
	got = references{tree: fstest.MapFS{}, of: of, copies: source.Options{Dir: dir, Auth: auth}}.find(t.Context(), words)
	require.Contains(t, got[address("other")], "repositories could not be searched: the value of secret.passwords.docs is not known here")
	of.Missing = nil
	docs.Restore()
	got = references{tree: fstest.MapFS{}, of: of, copies: source.Options{Dir: dir, Auth: auth}}.find(t.Context(), words)
	require.Contains(t, got[address("other")], "a.md:1 (other)")
}

// TestARepositoryThatIsTooLarge: its newest commit is downloaded once, and not at every pass in which a removal waits.
func TestARepositoryThatIsTooLarge(t *testing.T) {
	docs := sourcetest.New(t)
	docs.Commit(map[string]string{"a.md": "web"}, "one")
	web := docs.HTTPS()
	addr := model.Address{Kind: "vm", Name: "web"}
	r := references{tree: fstest.MapFS{}, of: &model.References{Repositories: []string{web.URL}}, copies: source.Options{
		Dir: filepath.Join(t.TempDir(), "references"), Auth: source.Auth{CAFile: web.CAFile}, MaxPack: 16, Refusals: source.Refusals{},
	}}
	find := func() (string, int) {
		before := web.Requests()
		return r.find(t.Context(), map[model.Address][]string{addr: {"web"}})[addr], web.Requests() - before
	}
	said, _ := find()
	require.Contains(t, said, "more than 0 MiB to fetch")
	again, asked := find()
	require.Equal(t, said, again)
	require.Equal(t, 1, asked, "only which commit is the newest")
	docs.Commit(map[string]string{"a.md": "other"}, "two")
	_, asked = find()
	require.Greater(t, asked, 1)
}

func TestRepositoriesThatAreNotSearched(t *testing.T) {
	many := make([]string, 9)
	for i := range many {
		many[i] = fmt.Sprintf("https://git.example/%d.git", i)
	}
	for name, c := range map[string]struct {
		of   model.References
		want string
	}{
		"a folder":            {model.References{Repositories: []string{"docs"}}, `"docs" is not the URL of a repository`},
		"a password":          {model.References{Repositories: []string{"https://me:pa55word@git.example/a.git"}}, "has a password"},
		"another scheme":      {model.References{Repositories: []string{"ftp://git.example/a.git"}}, "repositories are not read by ftp://"},
		"a branch":            {model.References{Repositories: []string{"https://git.example/a.git#a b"}}, "is not a branch name"},
		"too many":            {model.References{Repositories: many}, "Name at most 8"},
		"a token for another": {model.References{Token: "t0ken", Repositories: []string{"https://git.example/a.git", "https://other.example/b.git"}}, "Each would get it"},
	} {
		found := checkReferences(&c.of)
		require.Len(t, found, 1, name)
		require.True(t, found.HasErrors())
		require.Contains(t, found[0].Detail, c.want, name)
		require.NotContains(t, found[0].Detail, "pa55word")
	}
	require.Empty(t, checkReferences(&model.References{Token: "t0ken", Repositories: []string{"https://git.example/a.git", "git@other.example:b.git", "file:///srv/git/c.git#main"}}))
}
