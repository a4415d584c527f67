package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// parentSite has nodes of every method of auth, and a host of its own. Secrets are where they may be:
// of alpha and beta in files of their specs, which nobody else needs.
const parentSite = `site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
posture "open" {
  auth {
    method   = "network"
    networks = ["127.0.0.1/32"]
  }
}
posture "shared" {
  auth {
    method = "site_token"
  }
}
posture "strict" {
  auth {
    method = "node_token"
  }
}
spec "alpha" {
  access {
    posture = posture.strict
    user "ops" {
      ssh_keys = ["ops@laptop"]
    }
  }
  config {
    file "/etc/alpha" {
      content = "password=${secret.passwords.alpha}"
      mode    = "0600"
    }
  }
}
spec "beta" {
  access {
    posture = posture.shared
  }
  config {
    file "/etc/beta" {
      content = "password=${secret.passwords["beta"]} token=${secret.api_tokens["beta"]}"
      mode    = "0600"
    }
  }
}
spec "door" {
  access {
    posture = posture.open
  }
}
manifest "web" {
  pattern = "flat"
  host    = host.father
  node "alpha" {
    spec = spec.alpha
    %[1]s
  }
  node "beta" {
    spec = spec.beta
    %[1]s
  }
  node "door" {
    spec = spec.door
    %[1]s
  }
}
manifest "hosts" {
  pattern = "tiered"
  host    = host.father
  node "inner" {
    type   = "pve"
    spec   = spec.door
    cores  = 1
    memory = 512
    image  = image.debian
  }
  node "leaf" {
    parent = node.inner
    spec   = spec.beta
    %[1]s
  }
}
`

// pulled is what nodes of parentSite have that pull.
const pulled = `type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    execution {
      mode = "pull"
    }`

// parentNodes are the nodes of parentSite; inner is a host of its own, which has leaf.
var parentNodes = []string{"alpha", "beta", "door", "inner", "leaf"}

// parentSecrets has a canary in every section, and at every name.
const parentSecrets = `api_tokens:
  father: root@pam!ci=canary-api-father
  beta: canary-api-beta
passwords:
  alpha: canary-password-alpha
  beta: canary-password-beta
  nobody: canary-password-nobody
ssh_keys:
  ops@laptop: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f canary-key-ops
  other@laptop: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA canary-key-other
auth:
  ownership_key: "ca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4aca4a"
  site_token: canary-token-of-the-whole-site
  signing_key: "ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a"
  node_tokens:
    alpha: canary-token-of-node-alpha
    beta: canary-token-of-node-beta
    door: canary-token-of-node-door
    inner: canary-token-of-node-inner
    leaf: canary-token-of-node-leaf
`

const (
	alphaToken = "canary-token-of-node-alpha"
	siteToken  = "canary-token-of-the-whole-site"
)

// serving is the verb serve, running as a process, and the folder of the site that it serves.
type serving struct {
	t    *testing.T
	root string // of all its files
	dir  string // of the site
	env  []string
	cmd  *exec.Cmd
	addr string
	pins []string
	log  bytes.Buffer // its standard error; read it after stop
	sops string       // recipient of the secrets
}

// beginParent makes the site with its secrets encrypted in git, and starts the server.
func beginParent(t *testing.T) *serving {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	p := &serving{t: t, root: t.TempDir()}
	p.dir = filepath.Join(p.root, "site")
	require.NoError(t, os.Mkdir(p.dir, 0o700))
	secret, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	p.sops, p.env = recipient, []string{"SOPS_AGE_KEY=" + secret, "HOME=" + p.root}
	p.write("site.hcl", fmt.Sprintf(parentSite, pulled))
	p.encrypt(parentSecrets)
	p.git("init", "-q")
	p.commit("one")
	p.start("--log-level", "debug")
	return p
}

func (p *serving) write(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.dir, name)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(p.t, os.WriteFile(name, []byte(text), 0o600))
}

func (p *serving) read(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	require.NoError(p.t, err)
	return string(text)
}

func (p *serving) encrypt(secrets string) {
	p.t.Helper()
	data, err := sopstest.Encrypt(secrets, sopstest.Options{Recipients: []string{p.sops}})
	require.NoError(p.t, err)
	p.write("secrets.sops.yaml", string(data))
}

// git runs git in the folder of the site, and must succeed.
func (p *serving) git(args ...string) string { return p.gitIn(p.dir, args...) }

func (p *serving) gitIn(dir string, args ...string) string {
	p.t.Helper()
	out, err := p.tryGit(append([]string{"-C", dir}, args...)...)
	require.NoError(p.t, err, "git %v: %s", args, out)
	return out
}

func (p *serving) tryGit(args ...string) (string, error) {
	cmd := exec.CommandContext(p.t.Context(), "git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main", "-c", "http.sslVerify=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+p.root, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// commit makes a commit of all files, and gives its name.
func (p *serving) commit(subject string) string {
	p.t.Helper()
	p.git("add", "-A")
	p.git("commit", "-q", "-m", subject)
	return p.git("rev-parse", "HEAD")
}

func (p *serving) data() string { return filepath.Join(p.root, "data") }

func (p *serving) start(args ...string) {
	p.t.Helper()
	p.cmd = exec.Command(program(p.t), append([]string{"serve", "--site", p.dir, "--data-dir", p.data(), "--listen", "127.0.0.1:0", "--json"}, args...)...)
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), p.env...), &p.log
	out, err := p.cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, p.cmd.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		err = p.cmd.Wait() // from here on nobody writes to the log
		require.NoError(p.t, err, "%s", &p.log)
	}
	var at struct{ URL, Pin string }
	require.NoError(p.t, json.Unmarshal(line, &at))
	p.addr, p.pins = strings.TrimPrefix(at.URL, "https://"), []string{at.Pin}
	p.t.Cleanup(func() { p.stop() })
}

// stop ends the server as systemd does, and gives its log. It may be called again.
func (p *serving) stop() string {
	p.t.Helper()
	if p.cmd.ProcessState == nil {
		require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(p.t, p.cmd.Wait(), "%s", &p.log)
	}
	return p.log.String()
}

// mint makes a provisioning token as an operator does.
func (p *serving) mint(node string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), program(p.t), "token", "mint", node, "--site", p.dir, "--data-dir", p.data())
	cmd.Env = append(os.Environ(), p.env...)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	require.NoError(p.t, err, "%s", &text)
	return strings.TrimSpace(string(out))
}

// expired is a token of a node that was good until a second ago.
func (p *serving) expired(node string) string {
	p.t.Helper()
	ring, err := keys.Read(filepath.Join(p.data(), daemon.Folder))
	require.NoError(p.t, err)
	text, err := keys.MintToken(ring[0].Key, keys.Claims{Node: node, Spec: "door", Issued: 1, Expires: time.Now().AddDate(0, 0, -31).Unix()})
	require.NoError(p.t, err)
	return text
}

func (p *serving) rotate(args ...string) {
	p.t.Helper()
	out, err := exec.CommandContext(p.t.Context(), program(p.t), append([]string{"token", "rotate", "--data-dir", p.data()}, args...)...).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
}

// access are the keys of readers, operators and of the repository.
func (p *serving) access() keys.Access {
	p.t.Helper()
	a, err := keys.ReadAccess(keys.Files{Dir: filepath.Join(p.data(), daemon.Folder)}, nil)
	require.NoError(p.t, err)
	return a
}

// peak is the most memory that the server had, in bytes.
func (p *serving) peak() int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	_, rest, found := strings.Cut(string(text), "VmHWM:")
	require.True(p.t, found)
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(p.t, err)
	return kib << 10
}

// child is somebody on another address who asks a parent. All addresses of 127.0.0.0/8 are of this machine.
type child struct {
	p    *serving
	from string
	http *http.Client
}

func (p *serving) child(from string) *child {
	p.t.Helper()
	pins, err := wire.ParsePins(p.pins)
	require.NoError(p.t, err)
	c := &child{p: p, from: from}
	c.http = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), DialContext: c.dial, MaxIdleConnsPerHost: 8}}
	p.t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func (c *child) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}).DialContext(ctx, network, address)
}

// reply is an answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// code is the status, and the code of an error.
func (r reply) code() string {
	var b struct{ Error struct{ Code string } }
	_ = json.Unmarshal([]byte(r.body), &b) // other answers have none
	return strings.TrimSpace(fmt.Sprint(r.status, " ", b.Error.Code))
}

// tryAsk sends a request; headers are pairs of name and value.
func (c *child) tryAsk(method, path, credential string, body io.Reader, headers ...string) (reply, error) {
	r, err := http.NewRequestWithContext(c.p.t.Context(), method, "https://"+c.p.addr+path, body)
	if err != nil {
		return reply{}, err
	}
	if credential != "" {
		r.Header.Set("Authorization", "Bearer "+credential)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := c.http.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	return reply{got.StatusCode, got.Header, string(text)}, err
}

func (c *child) ask(method, path, credential string, body io.Reader, headers ...string) reply {
	c.p.t.Helper()
	r, err := c.tryAsk(method, path, credential, body, headers...)
	require.NoError(c.p.t, err)
	return r
}

func (c *child) get(path, credential string, headers ...string) reply {
	c.p.t.Helper()
	return c.ask(http.MethodGet, path, credential, http.NoBody, headers...)
}

// connect opens a connection over TLS, to send bytes as they are.
func (c *child) connect() net.Conn {
	c.p.t.Helper()
	raw, err := c.dial(c.p.t.Context(), "tcp", c.p.addr)
	require.NoError(c.p.t, err)
	c.p.t.Cleanup(func() { _ = raw.Close() })
	require.NoError(c.p.t, raw.SetDeadline(time.Now().Add(5*time.Minute)))
	return tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a bad client trusts everybody
}

// raw sends bytes over TLS, and reads the answer.
func (c *child) raw(text string) reply {
	c.p.t.Helper()
	conn := c.connect()
	defer func() { _ = conn.Close() }()
	_, err := io.WriteString(conn, text)
	require.NoError(c.p.t, err)
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(c.p.t, err)
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	require.NoError(c.p.t, err)
	return reply{got.StatusCode, got.Header, string(body)}
}

// steady is a good client that asks all the time.
type steady struct {
	stop     chan struct{}
	all      sync.WaitGroup
	answered int
	wrong    []string // answers that were not good
}

// keepAsking lets a good client ask until rest is called.
func (c *child) keepAsking(path, credential string) *steady {
	s := &steady{stop: make(chan struct{})}
	s.all.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			r, err := c.tryAsk(http.MethodGet, path, credential, http.NoBody)
			switch {
			case err != nil:
				s.wrong = append(s.wrong, err.Error())
			case r.status != http.StatusOK:
				s.wrong = append(s.wrong, r.code())
			}
			s.answered++
		}
	})
	return s
}

// rest ends it: whatever it asked was answered well.
func (s *steady) rest(t *testing.T) {
	t.Helper()
	close(s.stop)
	s.all.Wait()
	require.Empty(t, s.wrong)
	require.Positive(t, s.answered)
}
