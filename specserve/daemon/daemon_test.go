package daemon

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
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

// write replaces a file of the site at once: a file that the daemon sees empty for a moment is a problem of its own.
func (m *machine) write(name, text string) {
	m.t.Helper()
	file := filepath.Join(m.o.Site.Dir, name)
	require.NoError(m.t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(m.t, os.Rename(file+".new", file))
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

// Any change on the disk is served without a restart; an invalid one changes nothing.
func TestFilesAreFollowed(t *testing.T) {
	m := newMachine(t)
	m.start()
	status, body := m.get(first)
	require.Equal(t, 200, status)
	require.Contains(t, body, `"domain":"home.example"`)

	m.write("site.hcl", strings.Replace(siteText, "home.example", "other.example", 1))
	m.eventually(first, 200, `"domain":"other.example"`)

	m.write("site.hcl", siteText[:len(siteText)/2])
	m.eventuallyLogs("a change is not served: the last good version stays in force")
	m.eventually(first, 200, `"domain":"other.example"`)

	m.write("site.hcl", siteText)
	m.eventually(first, 200, `"domain":"home.example"`)
	require.Equal(t, 1, strings.Count(m.logged(), "a change is not served"), "a problem is logged once")

	m.secret(second)
	m.eventually(second, 200, "")
	m.eventually(first, 401, "E301")

	// Keys: both are good in the overlap.
	old, err := keys.Folder(m.o.Dir).Mint("own", "base", time.Hour, time.Now())
	require.NoError(t, err)
	_, err = keys.Folder(m.o.Dir).Rotate(time.Now())
	require.NoError(t, err)
	m.eventuallyLogs("signing keys changed")
	m.eventually(old.Token, 200, `"token":"`)
	_, body = m.get(old.Token)
	var sent struct{ Token string }
	require.NoError(t, json.Unmarshal([]byte(body), &sent))
	_, err = keys.Folder(m.o.Dir).DropOld()
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
	m.eventuallyLogs("a change is not served: the last good version stays in force")
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
	require.Equal(t, 401, status, "the token is unknown here")
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

// A push notification and the operator's request start a check at once, too, and the program works without them.
func TestAsked(t *testing.T) {
	m := newMachine(t)
	m.o.poll = time.Hour
	m.start()
	access, err := (keys.Files{Dir: m.o.Dir}).ReadAccess([]keys.Provider{"gitlab"})
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
	name := filepath.Join(m.o.Dir, "read.key")
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
		return m.inSite(args...)
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

// A restart keeps the pins and the keys, so clients do not notice it.
func TestRestart(t *testing.T) {
	m := newMachine(t)
	m.start()
	minted, err := keys.Folder(m.o.Dir).Mint("own", "base", time.Hour, time.Now())
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
		"the site in":                func(m *machine) { m.write("site.hcl", "site {") },
		"name the folder of a site":  func(m *machine) { m.o.Site.Dir = "/none" },
		"choose another address":     func(m *machine) { m.o.Listen = "nowhere:x" },
		"signing.json is not usable": func(m *machine) { m.spoil("signing.json") },
		"read.key is not usable":     func(m *machine) { m.spoil("read.key") },
		"server.pem is not usable":   func(m *machine) { m.spoil("server.pem") },
		"--cert FILE --key FILE":     func(m *machine) { m.o.CertFile = "x" },
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

// A folder is loaded when it has changed and is no longer written to.
func TestWatched(t *testing.T) {
	a, b, c := []byte("a"), []byte("b"), []byte("c")
	w := watched{served: a}
	require.False(t, w.changed(a))
	require.False(t, w.changed(b))
	require.False(t, w.changed(c), "a write is going on")
	require.True(t, w.changed(c))
	require.True(t, w.changed(c), "until it is loaded")
	w.loaded(c)
	require.False(t, w.changed(c))
	require.False(t, w.changed(b))
	require.False(t, w.changed(c))
	require.False(t, w.changed(b), "a change that was undone does not count")
}

// The variables that make the test program a server.
const (
	serveEnv   = "HOMESTAK_TEST_SERVE"   // folder of site.hcl and secrets.yaml
	socketsEnv = "HOMESTAK_TEST_SOCKETS" // how many sockets it was given
)

func TestMain(m *testing.M) {
	dir := os.Getenv(serveEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	if n := os.Getenv(socketsEnv); n != "" { // the process itself knows its number, as systemd does
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		_ = os.Setenv("LISTEN_FDS", n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := Run(ctx, Options{
		Site: site.FolderOptions{Kinds: proxmox.Kinds(), Dir: filepath.Join(dir, "site"), Secrets: filepath.Join(dir, "secrets.yaml")},
		Dir:  filepath.Join(dir, "data"), Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), Limits: patient(),
		Found: func(diag.List) {},
		Ready: func(at Announce) error {
			return json.NewEncoder(os.Stdout).Encode(map[string]any{"addr": at.Addr.String(), "pins": at.Pins})
		},
	}, nil)
	stop()
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a server in a process of its own.
type child struct {
	cmd    *exec.Cmd
	errors bytes.Buffer
	Addr   string
	Pins   []string
	took   time.Duration // until it served
}

func spawn(t *testing.T, dir string, change func(*exec.Cmd)) (*child, error) {
	t.Helper()
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), serveEnv+"="+dir)
	c.cmd.Stderr = &c.errors
	if change != nil {
		change(c.cmd)
	}
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, c.cmd.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		err := c.cmd.Wait() // errors is complete from here on
		return nil, fmt.Errorf("%w: %s", err, &c.errors)
	}
	require.NoError(t, json.Unmarshal(line, c))
	require.Equal(t, 200, c.health(t))
	c.took = time.Since(began)
	return c, nil
}

func (c *child) client(t *testing.T) *http.Client {
	t.Helper()
	pins, err := wire.ParsePins(c.Pins)
	require.NoError(t, err)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), DisableKeepAlives: true}, Timeout: 5 * time.Minute}
}

func (c *child) health(t *testing.T) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.Addr+"/health", http.NoBody)
	require.NoError(t, err)
	got, err := c.client(t).Do(r)
	require.NoError(t, err)
	require.NoError(t, got.Body.Close())
	return got.StatusCode
}

// folder is what a server needs.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "site"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site", "site.hcl"), []byte(siteText), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secrets.yaml"), []byte(strings.Replace(secretsText, "%s", first, 1)), 0o600))
	return dir
}

// A killed server starts again with the same keys, whenever it was killed.
func TestAKilledServerKeepsItsKeys(t *testing.T) {
	dir := folder(t)
	var was []string
	for i := range 4 {
		c, err := spawn(t, dir, nil)
		require.NoError(t, err)
		if i > 0 {
			require.Equal(t, was, c.Pins)
			require.Less(t, c.took, 5*time.Minute, "it does not hang; make bench holds it against the second that is the goal")
			t.Logf("serves again after %v", c.took)
		}
		was = c.Pins
		require.NoError(t, c.cmd.Process.Kill())
		require.Error(t, c.cmd.Wait())
	}
}

// SIGTERM under load, with silent clients and slow ones: it ends within two seconds, and every answer that began is complete.
func TestTerminatedUnderLoad(t *testing.T) {
	c, err := spawn(t, folder(t), nil)
	require.NoError(t, err)
	for range 50 {
		silent, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.Addr)
		require.NoError(t, err)
		defer func() { _ = silent.Close() }()
	}
	var answered, broken atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", c.Addr)
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, "GET /spec/own HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+first+"\r\nConnection: close\r\n\r\n")
				got, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil {
					_, err = io.Copy(io.Discard, got.Body)
					_ = got.Body.Close()
					if answered.Add(1); err != nil {
						broken.Add(1)
					}
				}
				_ = conn.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return answered.Load() > 100 }, 5*time.Minute, time.Millisecond)
	began := time.Now()
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.cmd.Wait(), "exit code 0")
	took := time.Since(began)
	require.Less(t, took, time.Minute, "it does not hang")
	clients.Wait()
	if took < specserve.Usual().Shutdown { // on a slow machine what takes longer is cut off, as TestShutdownTakesItsTime says
		require.Zero(t, broken.Load())
	}
	t.Logf("ended after %v; %d requests answered", took, answered.Load())
}

// The service manager may open the port, and is notified (sd_notify(3), sd_listen_fds(3)).
func TestServiceManager(t *testing.T) {
	dir := folder(t)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tcp, ok := ln.(*net.TCPListener)
	require.True(t, ok)
	socket, err := tcp.File()
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())

	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "n"), Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = notices.Close() }()
	c, err := spawn(t, dir, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, socketsEnv+"=1", "NOTIFY_SOCKET="+filepath.Join(dir, "n"))
		cmd.ExtraFiles = []*os.File{socket}
	})
	require.NoError(t, err)
	require.Equal(t, addr, c.Addr)
	next := func() string {
		t.Helper()
		text := make([]byte, 1000)
		for {
			require.NoError(t, notices.SetReadDeadline(time.Now().Add(5*time.Minute)))
			n, err := notices.Read(text)
			require.NoError(t, err)
			if got := string(text[:n]); got != "WATCHDOG=1" {
				return got
			}
		}
	}
	require.Equal(t, "READY=1", next())
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "STOPPING=1", next())
	require.NoError(t, c.cmd.Wait())

	_, err = spawn(t, dir, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, socketsEnv+"=2")
		cmd.ExtraFiles = []*os.File{socket, socket}
	})
	require.ErrorContains(t, err, "passes 2 sockets")
}

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
	cmd := sourcetest.Git(m.t.Context(), "", args...)
	cmd.Env = append(cmd.Env, "GIT_SSL_NO_VERIFY=1")
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
	access, err := (keys.Files{Dir: m.o.Dir}).ReadAccess(nil)
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
	minted, err := keys.Folder(m.o.Dir).Mint(node, "base", time.Hour, time.Now())
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

	// A copy that was removed is created again, with the next commit.
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

// A client without access does not get the repository, and git asks for a password.
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
	require.NoError(t, os.WriteFile(helper, []byte("#!/bin/sh\necho username=git\nprintf password=; cat '"+filepath.Join(m.o.Dir, "repository.key")+"'\n"), 0o700))
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
	require.NoError(t, os.WriteFile(filepath.Join(m.o.Dir, "repository.key"), []byte(strings.Repeat("0f", 32)), 0o600))
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

// The cost of a check while nothing changes; the server makes one each second or two.
func BenchmarkState(b *testing.B) {
	for b.Loop() {
		_, err := stateOf("../../examples/site", "", nil)
		require.NoError(b, err)
	}
}
