package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const siteText = `
site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
posture "prod" {
  auth {
    method = "node_token"
  }
}
spec "base" {
  access {
    posture = posture.prod
  }
}
manifest "web" {
  pattern = "flat"
  host    = host.father
  node "own" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    execution {
      mode = "pull"
    }
  }
}
`

const secretsText = "auth:\n  node_tokens:\n    own: \"%s\"\n"

// patient are limits of a server whose clients ask for what is not there yet, on a machine as slow as it may be.
func patient() specserve.Limits {
	l := specserve.Usual()
	l.Refusals.Burst, l.RefusalsPerNode.Burst = 1<<20, 1<<20
	l.Header, l.Read, l.Write = 5*time.Minute, 5*time.Minute, 5*time.Minute
	return l
}

// machine is a folder of a site, and a server that serves it.
type machine struct {
	t      *testing.T
	o      Options
	ctx    context.Context
	stop   func()
	done   chan error
	hangup chan os.Signal
	ready  chan Announce
	at     Announce
	client *http.Client

	mutex   sync.Mutex // the server writes from its goroutines
	log     bytes.Buffer
	notices []string
}

func (m *machine) Write(b []byte) (int, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.log.Write(b)
}

func (m *machine) logged() string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.log.String()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, hangup: make(chan os.Signal)}
	m.o = Options{
		Site: site.FolderOptions{Kinds: proxmox.Kinds(), Dir: t.TempDir(), Secrets: filepath.Join(t.TempDir(), "secrets.yaml")},
		Dir:  filepath.Join(t.TempDir(), "data", Folder), Listen: "127.0.0.1:0", Version: "1.2.3",
		Log:   slog.New(slog.NewTextHandler(m, nil)),
		Found: func(l diag.List) { require.Empty(t, l) },
		Ready: func(at Announce) error { m.ready <- at; return nil },
		poll:  10 * time.Millisecond, Limits: patient(),
		notify: func(state string) error {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			if state != "WATCHDOG=1" {
				m.notices = append(m.notices, state)
			}
			return nil
		},
	}
	m.write("site.hcl", siteText)
	m.secret("one-canary-token-of-node-own")
	return m
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.o.Site.Dir, name), []byte(text), 0o600))
}

func (m *machine) secret(token string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(m.o.Site.Secrets, fmt.Appendf(nil, secretsText, token), 0o600))
}

// start runs the server.
func (m *machine) start() {
	m.t.Helper()
	var cancel context.CancelFunc
	m.ctx, cancel = context.WithCancel(context.WithoutCancel(m.t.Context()))
	m.done, m.ready = make(chan error, 1), make(chan Announce, 1)
	go func() { m.done <- Run(m.ctx, m.o, m.hangup) }()
	select {
	case m.at = <-m.ready:
	case err := <-m.done:
		require.NoError(m.t, err)
	case <-time.After(5 * time.Minute):
		m.t.Fatal("it does not start")
	}
	pins, err := wire.ParsePins(m.at.Pins)
	require.NoError(m.t, err)
	m.client = &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), DisableKeepAlives: true}}
	m.stop = sync.OnceFunc(func() {
		cancel()
		began := time.Now()
		require.NoError(m.t, <-m.done)
		require.Less(m.t, time.Since(began), time.Minute, "it does not hang")
		require.NotContains(m.t, m.logged(), "canary")
	})
	m.t.Cleanup(m.stop)
}

// get fetches the spec of own.
func (m *machine) get(token string) (status int, body string) {
	m.t.Helper()
	r, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, "https://"+m.at.Addr.String()+"/spec/own", http.NoBody)
	require.NoError(m.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := m.client.Do(r)
	require.NoError(m.t, err)
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	require.NoError(m.t, err)
	return got.StatusCode, string(text)
}

// eventually waits for an answer to have a text.
func (m *machine) eventually(token string, status int, text string) {
	m.t.Helper()
	var gotStatus int
	var got string
	require.Eventually(m.t, func() bool {
		gotStatus, got = m.get(token)
		return gotStatus == status && strings.Contains(got, text)
	}, 5*time.Minute, 100*time.Millisecond, "%s", m.logged())
}

func (m *machine) eventuallyLogs(text string) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return strings.Contains(m.logged(), text) }, 5*time.Minute, 10*time.Millisecond, "%s", m.logged())
}

const first, second, third = "one-canary-token-of-node-own", "two-canary-token-of-node-own", "six-canary-token-of-node-own"

// Whatever changes on the disk is served without a restart; what is wrong changes nothing.
func TestFilesAreFollowed(t *testing.T) {
	m := newMachine(t)
	m.start()
	status, body := m.get(first)
	require.Equal(t, 200, status)
	require.Contains(t, body, `"domain":"home.example"`)

	m.write("site.hcl", strings.Replace(siteText, "home.example", "other.example", 1))
	m.eventually(first, 200, `"domain":"other.example"`)

	m.write("site.hcl", siteText[:len(siteText)/2])
	m.eventuallyLogs("a change is not served: what was good stays in force")
	m.eventually(first, 200, `"domain":"other.example"`)

	m.write("site.hcl", siteText)
	m.eventually(first, 200, `"domain":"home.example"`)
	require.Equal(t, 1, strings.Count(m.logged(), "a change is not served"), "a problem is logged once")

	m.secret(second)
	m.eventually(second, 200, "")
	m.eventually(first, 401, "E301")

	// Keys: both are good in the overlap.
	old, err := keys.Mint(m.o.Dir, "own", "base", time.Hour, time.Now())
	require.NoError(t, err)
	_, err = keys.Rotate(m.o.Dir, time.Now())
	require.NoError(t, err)
	m.eventuallyLogs("signing keys changed")
	m.eventually(old.Token, 200, `"token":"`)
	_, body = m.get(old.Token)
	var sent struct{ Token string }
	require.NoError(t, json.Unmarshal([]byte(body), &sent))
	_, err = keys.DropOld(m.o.Dir)
	require.NoError(t, err)
	m.eventually(old.Token, 401, "E301")
	m.eventually(sent.Token, 200, "")

	// The policies of the site are part of it.
	require.NoError(t, os.Mkdir(filepath.Join(m.o.Site.Dir, "policy"), 0o700))
	m.write("policy/x.rego", "package homestak.auth\ndeny contains \"closed\" if input.identity == \"own\"\n")
	m.eventually(second, 403, "E302")
	m.stop()
	require.Equal(t, []string{"READY=1", "STOPPING=1"}, m.notices)
}

// A file of secrets may be a link, as of a secret that is mounted: what it leads to is followed, whether the link or
// its target changes.
func TestLinkedSecretsAreFollowed(t *testing.T) {
	m := newMachine(t)
	link, dir := m.o.Site.Secrets, t.TempDir()
	one, other := filepath.Join(dir, "one"), filepath.Join(dir, "other")
	write := func(name, token string) {
		require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, secretsText, token), 0o600))
	}
	write(one, first)
	write(other, third)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(one, link))
	m.start()
	status, _ := m.get(first)
	require.Equal(t, 200, status)
	write(one, second)
	m.eventually(second, 200, "")
	require.NoError(t, os.Symlink(other, link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
	m.eventually(third, 200, "")
	require.NoError(t, os.Remove(other))
	m.eventuallyLogs("a change is not served: what was good stays in force")
	m.eventually(third, 200, "")
}

// An age identity that comes later decrypts what could not be decrypted before.
func TestNewIdentityIsNoticed(t *testing.T) {
	m := newMachine(t)
	secret, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted, err := sopstest.Encrypt(fmt.Sprintf(secretsText, first), sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(m.o.Site.Secrets, encrypted, 0o600))
	home := t.TempDir()
	m.o.Site.Keys.Env = func(name string) string { return map[string]string{"HOME": home}[name] }
	m.o.Found = func(l diag.List) { require.False(t, l.HasErrors()) }
	m.start()
	status, _ := m.get(first)
	require.Equal(t, 401, status, "nobody knows the token here")
	dir := filepath.Join(home, ".config", "sops", "age")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "keys.txt"), []byte(secret+"\n"), 0o600))
	m.eventually(first, 200, "")
	require.NotContains(t, m.logged(), secret)
}

// SIGHUP means now.
func TestHangup(t *testing.T) {
	m := newMachine(t)
	m.o.poll = time.Hour
	m.start()
	m.write("site.hcl", strings.Replace(siteText, "home.example", "other.example", 1))
	m.hangup <- os.Interrupt
	m.hangup <- os.Interrupt // the first one is done
	_, body := m.get(first)
	require.Contains(t, body, `"domain":"other.example"`)
	m.stop()
	require.Len(t, m.notices, 6)
	require.True(t, strings.HasPrefix(m.notices[1], "RELOADING=1\nMONOTONIC_USEC="))
	require.Equal(t, "READY=1", m.notices[2])
}

// A notification of a push and the operator's request mean now, too, and are needed by nobody else.
func TestAsked(t *testing.T) {
	m := newMachine(t)
	m.o.poll = time.Hour
	m.start()
	access, err := keys.ReadAccess(keys.Files{Dir: m.o.Dir}, []string{"gitlab"})
	require.NoError(t, err)
	for domain, ask := range map[string]struct{ path, name, value string }{
		"pushed.example":   {"/hook/gitlab", "X-Gitlab-Token", string(access.Hook("gitlab"))},
		"operator.example": {"/reconcile", "Authorization", "Bearer " + string(access.Operator)},
	} {
		m.write("site.hcl", strings.Replace(siteText, "home.example", domain, 1))
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+m.at.Addr.String()+ask.path, strings.NewReader(domain))
		if ask.name == "Authorization" {
			r.Body, r.ContentLength = http.NoBody, 0
		}
		require.NoError(t, err)
		r.Header.Set(ask.name, ask.value)
		got, err := m.client.Do(r)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		require.Equal(t, 202, got.StatusCode)
		m.eventually(first, 200, `"domain":"`+domain+`"`)
	}
	for _, key := range [][]byte{access.Read, access.Operator, access.Hook("gitlab")} {
		require.NotContains(t, m.logged(), string(key))
	}
}

// A key that was replaced counts without a restart; one that is not usable changes nothing.
func TestKeysAreFollowed(t *testing.T) {
	m := newMachine(t)
	m.start()
	ask := func(key string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+m.at.Addr.String()+"/status", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		got, err := m.client.Do(r)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		return got.StatusCode
	}
	name := filepath.Join(m.o.Dir, keys.ReadFile)
	was, err := os.ReadFile(name)
	require.NoError(t, err)
	old := strings.TrimSpace(string(was))
	require.Equal(t, 200, ask(old))
	require.NoError(t, os.WriteFile(name, []byte("short"), 0o600))
	m.eventuallyLogs("a key is one line")
	require.Equal(t, 200, ask(old))
	require.NoError(t, os.WriteFile(name, []byte("canary-of-the-new-read-key\n"), 0o600))
	m.eventuallyLogs("keys of readers, operators or hooks changed")
	require.Eventually(t, func() bool { return ask("canary-of-the-new-read-key") == 200 }, 5*time.Minute, 10*time.Millisecond)
	require.Equal(t, 401, ask(old))
}

// A commit is what git says, and is served once it is there as a whole.
func TestCommits(t *testing.T) {
	m := newMachine(t)
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-C", m.o.Site.Dir}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "one")
	m.start()
	require.Equal(t, git("rev-parse", "HEAD"), m.at.Commit)
	git("commit", "-q", "--allow-empty", "-m", "two")
	m.eventuallyLogs("serving another version\" commit=" + git("rev-parse", "HEAD"))
	m.write("site.hcl", strings.Replace(siteText, "home.example", "other.example", 1))
	git("commit", "-qam", "three")
	m.eventuallyLogs("serving another version\" commit=" + git("rev-parse", "HEAD"))
	m.eventually(first, 200, `"domain":"other.example"`)
	git("reset", "-q", "--hard", "HEAD~1")
	m.eventually(first, 200, `"domain":"home.example"`)
}

// A restart keeps the pins and the keys: nobody notices.
func TestRestart(t *testing.T) {
	m := newMachine(t)
	m.start()
	minted, err := keys.Mint(m.o.Dir, "own", "base", time.Hour, time.Now())
	require.NoError(t, err)
	was := m.at
	m.stop()
	m.start()
	require.Equal(t, was.Pins, m.at.Pins)
	status, _ := m.get(minted.Token)
	require.Equal(t, 200, status)
}

func TestStartRefuses(t *testing.T) {
	for want, change := range map[string]func(m *machine){
		"the site in":                    func(m *machine) { m.write("site.hcl", "site {") },
		"name the folder of a site":      func(m *machine) { m.o.Site.Dir = "/none" },
		"choose another address":         func(m *machine) { m.o.Listen = "nowhere:x" },
		keys.FileName + " is not usable": func(m *machine) { m.spoil(keys.FileName) },
		keys.ReadFile + " is not usable": func(m *machine) { m.spoil(keys.ReadFile) },
		keys.CertFile + " is not usable": func(m *machine) { m.spoil(keys.CertFile) },
		"--cert FILE --key FILE":         func(m *machine) { m.o.CertFile = "x" },
		"the announcement is not taken": func(m *machine) {
			m.o.Ready = func(Announce) error { return errors.New("the announcement is not taken") }
		},
	} {
		t.Run(want, func(t *testing.T) {
			m := newMachine(t)
			m.o.Found = func(diag.List) {}
			change(m)
			require.ErrorContains(t, Run(t.Context(), m.o, nil), want)
			if want == "the site in" {
				_, invalid := errors.AsType[*site.InvalidError](Run(t.Context(), m.o, nil))
				require.True(t, invalid)
			}
		})
	}
}

func (m *machine) spoil(name string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(m.o.Dir, 0o700))
	require.NoError(m.t, os.WriteFile(filepath.Join(m.o.Dir, name), []byte("x"), 0o600))
}

// A folder is loaded when it has changed and nobody writes to it any more.
func TestWatched(t *testing.T) {
	a, b, c := []byte("a"), []byte("b"), []byte("c")
	w := watched{served: a}
	require.False(t, w.changed(a))
	require.False(t, w.changed(b))
	require.False(t, w.changed(c), "somebody is writing")
	require.True(t, w.changed(c))
	require.True(t, w.changed(c), "until it is loaded")
	w.loaded(c)
	require.False(t, w.changed(c))
	require.False(t, w.changed(b))
	require.False(t, w.changed(c))
	require.False(t, w.changed(b), "a change that was undone does not count")
}
