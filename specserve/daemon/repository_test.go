package daemon

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// innerText adds a host of its own to the site.
const innerText = `
manifest "hosts" {
  pattern = "flat"
  host    = host.father
  node "inner" {
    type   = "pve"
    cores  = 1
    memory = 2048
    image  = image.debian
  }
}
`

// git runs git, which must succeed.
func (m *machine) git(args ...string) string {
	m.t.Helper()
	out, err := m.tryGit(args...)
	require.NoError(m.t, err, "git %s: %s", strings.Join(args, " "), out)
	return out
}

func (m *machine) tryGit(args ...string) (string, error) {
	cmd := exec.CommandContext(m.t.Context(), "git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C", "GIT_SSL_NO_VERIFY=1")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// inSite runs git in the folder of the site.
func (m *machine) inSite(args ...string) string {
	m.t.Helper()
	return m.git(append([]string{"-C", m.o.Site.Dir}, args...)...)
}

// checkedOut makes the folder of the site a checkout, with files that git does not track.
func checkedOut(t *testing.T) *machine {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	m := newMachine(t)
	m.write("site.hcl", siteText+innerText)
	m.write(".gitignore", "secrets.yaml\n")
	m.inSite("init", "-q")
	m.inSite("add", "-A")
	m.inSite("commit", "-q", "-m", "one")
	m.o.Site.Secrets = ""
	m.write("secrets.yaml", strings.Replace(secretsText, "%s", first, 1))
	m.write("untracked.txt", "canary-untracked")
	return m
}

// commit changes the site, and waits until that is served.
func (m *machine) commit(domain string) string {
	m.t.Helper()
	m.write("site.hcl", strings.Replace(siteText, "home.example", domain, 1)+innerText)
	m.inSite("commit", "-qam", domain)
	id := m.inSite("rev-parse", "HEAD")
	m.eventuallyLogs("serving another version\" commit=" + id)
	return id
}

func (m *machine) key() string {
	m.t.Helper()
	access, err := keys.ReadAccess(keys.Files{Dir: m.o.Dir}, nil)
	require.NoError(m.t, err)
	return string(access.Repository)
}

func (m *machine) url(path string) string { return "https://" + m.at.Addr.String() + path }

func bearer(key string) string { return "http.extraHeader=Authorization: Bearer " + key }

func basic(key string) string {
	return "http.extraHeader=Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+key))
}

// ask sends a request with a credential.
func (m *machine) ask(path, key string) (status int, header http.Header, body string) {
	m.t.Helper()
	r, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, m.url(path), http.NoBody)
	require.NoError(m.t, err)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	got, err := m.client.Do(r)
	require.NoError(m.t, err)
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	require.NoError(m.t, err)
	return got.StatusCode, got.Header, string(text)
}

func (m *machine) mint(node string) string {
	m.t.Helper()
	minted, err := keys.Mint(m.o.Dir, node, "base", time.Hour, time.Now())
	require.NoError(m.t, err)
	return minted.Token
}

const refs = "/site.git/info/refs?service=git-upload-pack"

// git clones and fetches what is in force, with the key or as a child, before, while and after a commit
// is made. What git does not track is in nothing that is served.
func TestClone(t *testing.T) {
	m := checkedOut(t)
	m.start()
	one := m.inSite("rev-parse", "HEAD")
	dir := filepath.Join(t.TempDir(), "clone")
	m.git("-c", bearer(m.key()), "clone", "-q", m.url("/site.git"), dir)
	require.Equal(t, one, m.git("-C", dir, "rev-parse", "HEAD"))
	require.Equal(t, "main", m.git("-C", dir, "rev-parse", "--abbrev-ref", "HEAD"))
	for _, name := range []string{"secrets.yaml", "untracked.txt"} {
		require.NoFileExists(t, filepath.Join(dir, name))
		status, _, body := m.ask("/site.git/raw/HEAD/"+name, m.key())
		require.Equal(t, 404, status)
		require.NotContains(t, body, "canary")
	}

	m.git("-C", dir, "config", "http.extraHeader", strings.TrimPrefix(basic(m.mint("inner")), "http.extraHeader="))
	done := make(chan string, 1)
	go func() {
		for range 20 {
			if out, err := m.tryGit("-C", dir, "fetch", "-q"); err != nil {
				done <- out
				return
			}
		}
		done <- ""
	}()
	two := m.commit("two.example")
	require.Empty(t, <-done, "while the commit was made")
	m.git("-C", dir, "pull", "-q", "--ff-only")
	require.Equal(t, two, m.git("-C", dir, "rev-parse", "HEAD"))
	require.Empty(t, m.git("-C", dir, "fsck", "--strict", "--no-progress", "--no-dangling"))
	status, _, body := m.ask("/site.git/raw/"+two+"/site.hcl", m.mint("inner"))
	require.Equal(t, 200, status)
	require.Contains(t, body, "two.example")

	// A commit that is not good is in neither the specs nor the repository.
	m.write("site.hcl", "site {")
	m.inSite("commit", "-qam", "bad")
	m.eventuallyLogs("a change is not served")
	m.git("-C", dir, "fetch", "-q")
	require.Equal(t, two, m.git("-C", dir, "rev-parse", "origin/main", "FETCH_HEAD")[:40])
	three := m.commit("three.example")
	m.git("-C", dir, "fetch", "-q")
	require.Equal(t, three, m.git("-C", dir, "rev-parse", "origin/main"))
	require.Equal(t, "3", m.git("-C", dir, "rev-list", "--count", two+"~1..origin/main"))
	require.Empty(t, m.git("-C", dir, "log", "--all", "-Scanary", "--format=%H"))

	// Somebody removes the copy: it is made again, with the next commit.
	require.NoError(t, os.RemoveAll(filepath.Join(m.o.Dir, copyFolder)))
	four := m.commit("four.example")
	status, _, body = m.ask("/site.git/raw/"+four+"/site.hcl", m.key())
	require.Equal(t, 200, status, body)

	// The server begins again with the same copy.
	m.stop()
	m.start()
	m.git("-C", dir, "remote", "set-url", "origin", m.url("/site.git"))
	m.git("-C", dir, "fetch", "-q", "--update-shallow")
	require.Equal(t, four, m.git("-C", dir, "rev-parse", "origin/main"))
}

// Who may not have the repository does not get it, and git asks for a password.
func TestRepositoryIsRefused(t *testing.T) {
	m := checkedOut(t)
	m.start()
	status, header, _ := m.ask(refs, "")
	require.Equal(t, 401, status)
	require.Len(t, header.Values("WWW-Authenticate"), 2)
	status, _, body := m.ask(refs, m.mint("own"))
	require.Equal(t, 403, status)
	require.Contains(t, body, "E302")
	status, _, _ = m.ask(refs, first)
	require.Equal(t, 403, status)
	status, _, _ = m.ask(refs, m.mint("inner"))
	require.Equal(t, 200, status)

	dir := t.TempDir()
	out, err := m.tryGit("clone", "-q", m.url("/site.git"), filepath.Join(dir, "no"))
	require.Error(t, err)
	require.Contains(t, out, "could not read Username", "it would ask")
	out, err = m.tryGit("-c", bearer(m.mint("own")), "clone", "-q", m.url("/site.git"), filepath.Join(dir, "no"))
	require.Error(t, err)
	require.Contains(t, out, "403")

	// The key as a password, from a credential helper, at a server whose key is pinned.
	helper := filepath.Join(dir, "helper")
	require.NoError(t, os.WriteFile(helper, []byte("#!/bin/sh\necho username=git\nprintf password=; cat '"+filepath.Join(m.o.Dir, keys.RepositoryFile)+"'\n"), 0o700))
	sum, err := hex.DecodeString(strings.TrimPrefix(m.at.Pins[0], "sha256:"))
	require.NoError(t, err)
	pinned := func(sum []byte) []string {
		return []string{"-c", "http.pinnedPubkey=sha256//" + base64.StdEncoding.EncodeToString(sum), "-c", "credential.helper=" + helper, "clone", "-q", m.url("/site.git")}
	}
	m.git(append(pinned(sum), filepath.Join(dir, "yes"))...)
	out, err = m.tryGit(append(pinned(make([]byte, 32)), filepath.Join(dir, "no"))...)
	require.Error(t, err)
	require.Contains(t, out, "pinned")

	// Another key opens it from now on.
	old := m.key()
	require.NoError(t, os.WriteFile(filepath.Join(m.o.Dir, keys.RepositoryFile), []byte(strings.Repeat("0f", 32)), 0o600))
	require.Eventually(t, func() bool { status, _, _ := m.ask(refs, m.key()); return status == 200 }, 5*time.Minute, 50*time.Millisecond)
	status, _, _ = m.ask(refs, old)
	require.Equal(t, 401, status)
}

// Where there is no commit there is no repository, and specs are served nevertheless.
func TestNoRepository(t *testing.T) {
	m := checkedOut(t)
	m.start()
	reason := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			status, _, body := m.ask(refs, m.key())
			return status == 404 && strings.Contains(body, "E200") && strings.Contains(body, want)
		}, 5*time.Minute, 50*time.Millisecond, want)
		status, _ := m.get(first)
		require.Equal(t, 200, status)
	}
	m.write("site.hcl", strings.Replace(siteText, "home.example", "dirty.example", 1)+innerText)
	reason("changes that are not committed")
	m.commit("clean.example")
	require.Eventually(t, func() bool { status, _, _ := m.ask(refs, m.key()); return status == 200 }, 5*time.Minute, 50*time.Millisecond)
	require.NoError(t, os.Mkdir(filepath.Join(m.o.Site.Dir, "other"), 0o700))
	m.write("other/secrets.yaml", "passwords:\n  root: canary-of-another-site\n")
	m.inSite("add", "-f", "other/secrets.yaml")
	m.inSite("commit", "-qm", "secrets")
	reason("git tracks secrets in plain text: other/secrets.yaml")
	m.inSite("rm", "-q", "other/secrets.yaml")
	m.commit("again.example")
	dir := filepath.Join(t.TempDir(), "clone")
	m.git("-c", bearer(m.key()), "clone", "-q", m.url("/site.git"), dir)
	require.Equal(t, "1", m.git("-C", dir, "rev-list", "--count", "--all"), "history ends above the commit with the secrets")
	m.inSite("checkout", "-q", "--detach")
	m.inSite("commit", "-q", "--allow-empty", "-m", "beside")
	reason("at no branch")
	require.NoError(t, os.RemoveAll(filepath.Join(m.o.Site.Dir, ".git")))
	reason("not a checkout of git")
}

// Two servers do not share a copy: each would remove files of the other.
func TestCopyIsLocked(t *testing.T) {
	m := checkedOut(t)
	m.start()
	second := newMachine(t)
	second.o.Site, second.o.Dir = m.o.Site, m.o.Dir
	second.start()
	_, _, body := second.ask(refs, m.key())
	require.Contains(t, body, "the log of the server says why")
	require.Contains(t, second.logged(), "another server has the copy of the repository")
}

// A new node gets the program that runs, and its spec says which one that is.
func TestProgram(t *testing.T) {
	m := newMachine(t)
	var err error
	m.o.Program, err = os.Executable()
	require.NoError(t, err)
	m.start()
	var spec struct{ Agent map[string]string }
	_, body := m.get(first)
	require.NoError(t, json.Unmarshal([]byte(body), &spec))
	p, err := specserve.OpenProgram(m.o.Program)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.Equal(t, p.Sums(), spec.Agent)
	want, err := os.ReadFile(m.o.Program)
	require.NoError(t, err)
	status, _, got := m.ask("/agent/"+specserve.ProgramSystem(), m.mint("own"))
	require.Equal(t, 200, status)
	require.Equal(t, sha256.Sum256(want), sha256.Sum256([]byte(got)))
}

// The site may be a folder of a checkout that has no history, and git may have it elsewhere.
func TestFolderOfAShallowWorktree(t *testing.T) {
	m := checkedOut(t)
	m.inSite("mv", "site.hcl", "moved.hcl")
	require.NoError(t, os.Mkdir(filepath.Join(m.o.Site.Dir, "home"), 0o700))
	m.inSite("mv", "moved.hcl", "home/site.hcl")
	m.inSite("commit", "-qm", "two")
	base := t.TempDir()
	m.git("clone", "-q", "--depth=1", "file://"+m.o.Site.Dir, filepath.Join(base, "shallow"))
	m.git("-C", filepath.Join(base, "shallow"), "worktree", "add", "-q", "-b", "live", filepath.Join(base, "linked"))
	secrets := filepath.Join(m.o.Site.Dir, "secrets.yaml")
	m.o.Site.Dir, m.o.Site.Secrets = filepath.Join(base, "linked", "home"), secrets
	m.start()
	dir := filepath.Join(base, "clone")
	m.git("-c", bearer(m.key()), "clone", "-q", m.url("/site.git"), dir)
	require.Equal(t, m.at.Commit, m.git("-C", dir, "rev-parse", "live"))
	require.FileExists(t, filepath.Join(dir, "home", "site.hcl"))
	require.Equal(t, "1", m.git("-C", dir, "rev-list", "--count", "live"))
}
