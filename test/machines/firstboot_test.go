package machines_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// cloudDebian is what a cloud image of Debian has, as far as a first boot is concerned.
func cloudDebian() nspawn.Rootfs {
	return nspawn.Rootfs{Packages: nspawn.Image, Ready: "HOMESTAK_CLOUD_ROOTFS"}
}

// serverAddress is where the parent of a machine listens, in the machine's own network.
const serverAddress = "127.0.0.1:44443"

// server is a parent: it serves one spec and the program, over HTTPS and to the right token only.
type server struct {
	t   *testing.T
	dir string // of the program

	mu    sync.Mutex
	certs []tls.Certificate // the one in use, and the next one
	pins  []wire.Pin        // of them
	keys  keys.Keys
	spec  *spec.Spec
	log   []string // requests and what became of them
	at    net.Listener
	ended chan struct{}
}

func newServer(t *testing.T, s *spec.Spec, dir string) *server {
	t.Helper()
	p := &server{t: t, spec: s, dir: dir, keys: keys.Keys{keys.NewKey()}}
	for range 2 {
		p.addKey()
	}
	return p
}

func (p *server) addKey() {
	c, of := keyPair(p.t)
	p.certs, p.pins = append(p.certs, c), append(p.pins, of)
}

// mint makes a token of the node by the key that signs now.
func (p *server) mint() string {
	text, err := p.keys[0].MintToken(keys.Claims{Node: "edge", Spec: "test", Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix()})
	require.NoError(p.t, err)
	return text
}

func keyPair(t *testing.T) (tls.Certificate, wire.Pin) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano())}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, wire.PinOf(leaf)
}

// child is what a new node knows of this server.
func (p *server) child() wire.Parent {
	return wire.Parent{Identity: "edge", Server: "https://" + serverAddress, Pins: p.pins, Token: p.mint()}
}

// start serves a machine until stop.
func (p *server) start(m *nspawn.Machine) {
	p.t.Helper()
	p.at, p.ended = m.Listen(serverAddress), make(chan struct{})
	h := &http.Server{Handler: p, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	at := tls.NewListener(p.at, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return &p.certs[0], nil
	}})
	ended := p.ended
	go func() {
		defer close(ended)
		_ = h.Serve(at) // until it is closed
	}()
	p.t.Cleanup(p.stop)
}

func (p *server) stop() {
	_ = p.at.Close() // twice is possible
	<-p.ended
}

// set changes what is served.
func (p *server) set(edit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit()
}

// asked is how many requests there were since the last call of requests.
func (p *server) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.log)
}

// requests lists what was asked since the last call.
func (p *server) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log
	p.log = nil
	return log
}

func (p *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	status, body := p.answer(w, r)
	if !strings.HasPrefix(r.URL.Path, "/queue/") { // it has none, as a parent of an earlier version
		p.log = append(p.log, fmt.Sprintf("%s %d", r.URL.Path, status))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (p *server) answer(w http.ResponseWriter, r *http.Request) (int, []byte) {
	claims, err := p.keys.Verify(wire.Token(r.Header), "edge", time.Now())
	if err != nil {
		e := &wire.Error{Code: wire.CodeOf(err)}
		return e.Status(), e.Body()
	}
	program, err := os.ReadFile(filepath.Join(p.dir, "homestak-gitops"))
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	switch r.URL.Path {
	case wire.ReportPath.Of("edge"):
		if _, err := wire.ReadReport(r.Body, "edge", time.Now()); err != nil {
			return http.StatusUnprocessableEntity, nil
		}
		return http.StatusAccepted, nil
	case wire.AgentPath.Of("linux-" + runtime.GOARCH):
		return http.StatusOK, program
	case wire.SpecPath.Of("edge"):
		sum := sha256.Sum256(program)
		answer := wire.Spec{Spec: p.spec, Pins: wire.PinTexts(p.pins), Agent: map[string]string{"linux-" + runtime.GOARCH: hex.EncodeToString(sum[:])}}
		tagged, _ := json.Marshal(answer)
		tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(tagged)))
		w.Header().Set("ETag", tag)
		if p.keys.Due(claims, time.Now()) {
			answer.Token = p.mint()
		} else if r.Header.Get("If-None-Match") == tag {
			return http.StatusNotModified, nil
		}
		b, _ := json.Marshal(answer)
		return http.StatusOK, b
	}
	return http.StatusNotFound, (&wire.Error{Code: wire.CodeNoEndpoint}).Body()
}

// seeded boots a machine with cloud-init and a seed in the folder where NoCloud finds it.
func seeded(t *testing.T, userData string, more ...nspawn.Bind) *world {
	t.Helper()
	seed := t.TempDir()
	require.NoError(t, os.Chmod(seed, 0o700))
	write(t, filepath.Join(seed, "user-data"), userData, 0o600)
	write(t, filepath.Join(seed, "meta-data"), `{"instance-id": "homestak-test", "local-hostname": "edge"}`, 0o600)
	// Nothing here needs a network, so apt keeps the repository of the test.
	settings := filepath.Join(t.TempDir(), "99-test.cfg")
	write(t, settings, "apt:\n  preserve_sources_list: true\nlocale: false\nnetwork:\n  config: disabled\n", 0o644)
	sources := filepath.Join(t.TempDir(), "sources.list")
	write(t, sources, "deb [trusted=yes] file:/srv/apt ./\n", 0o644)
	return beginFrom(t, cloudDebian(), append(more,
		nspawn.Bind{From: seed, To: "/var/lib/cloud/seed/nocloud"}, nspawn.Bind{From: settings, To: "/etc/cloud/cloud.cfg.d/99-test.cfg"},
		nspawn.Bind{From: sources, To: "/etc/apt/sources.list"})...)
}

// pullSpec is the spec with everything in it, as a node in mode pull gets it. Its repository is that of the machine.
func pullSpec(t *testing.T, interval int) *spec.Spec {
	t.Helper()
	s := parse(t, whole)
	s.Config.Repositories = nil
	s.Run = &spec.Run{Trigger: "schedule", Interval: interval}
	document, err := json.Marshal(s)
	require.NoError(t, err)
	s, err = spec.Read(document)
	require.NoError(t, err)
	return s
}

// has reports whether a line of shell succeeds.
func (w *world) has(line string) bool {
	_, code := w.Try("sh", "-c", line)
	return code == 0
}

// config reads a file of state.
func config[T any](w *world, name string) T {
	w.t.Helper()
	var doc T
	require.NoError(w.t, json.Unmarshal([]byte(w.Run0("cat "+node.DefaultFolder+"/"+name)), &doc))
	return doc
}

const (
	pullNow   = "systemctl start homestak-gitops-pull.service"
	firstUnit = "/etc/systemd/system/homestak-gitops-firstboot.service"
)

// A new node in mode pull: it boots, gets the program, fetches its spec with its token, and becomes
// what a push makes of it. What the site says as user_data is done as well. Then keys, tokens, the
// spec and the mode change, and while the parent is away the spec stays in force.
func TestST01ST19ANewNodePullsItsSpec(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	p := newServer(t, pullSpec(t, 3600), program(t))
	first := p.child()
	userData, err := client.FirstBootUserData(first, "#cloud-config\nruncmd: [[touch, /run/site-was-here]]\nwrite_files: [{path: /run/site-file, content: ü}]\n")
	require.NoError(t, err)
	w := seeded(t, userData)
	p.start(w.Machine)
	w.Until("the first boot is done", func() bool {
		return w.has("[ -e "+node.DefaultFolder+"/config-complete.json ] && [ ! -e "+firstUnit+" ] && ! systemctl is-active --quiet homestak-gitops-pull.service") && p.asked() == 6
	})
	require.Equal(t, []string{"/spec/edge 200", "/agent/linux-" + runtime.GOARCH + " 200", "/spec/edge 200", "/report/edge 202", "/spec/edge 304", "/report/edge 202"}, p.requests(), "the last one is that of the timer, which starts when it is made")
	require.Equal(t, "edge", config[node.Complete](w, "config-complete.json").Node)
	require.True(t, w.has("[ -e /run/site-was-here ] && [ \"$(cat /run/site-file)\" = ü ]"), "user_data of the site")
	require.Contains(t, w.Run0("cloud-init status --long"), "status: done")
	require.Equal(t, "600 root root", w.Run0("stat -c '%a %U %G' "+wire.ParentFile))
	require.Equal(t, "running", w.Run0("systemctl is-system-running --wait"))

	pushed := seeded(t, "#cloud-config\n{}\n")
	pushed.Run0("cloud-init status --wait")
	s := pullSpec(t, 0)
	s.Run = nil
	pushed.apply(s)
	same(t, withoutPull(pushed), withoutPull(w), "pulled beside pushed")

	t.Log("keys of TLS and tokens are rotated")
	old := first.Token
	p.set(func() {
		p.addKey()
		p.certs, p.pins = p.certs[1:], p.pins[1:]
		p.keys = keys.Keys{keys.NewKey(), p.keys[0]}
	})
	w.Run0(pullNow)
	p.set(func() { p.keys = p.keys[:1] })
	w.Run0(pullNow)
	require.Equal(t, []string{"/spec/edge 200", "/report/edge 202", "/spec/edge 304", "/report/edge 202"}, p.requests())
	now, err := wire.ReadParent([]byte(w.Run0("cat " + wire.ParentFile)))
	require.NoError(t, err)
	require.Equal(t, p.pins, now.Pins)
	require.NotEqual(t, old, now.Token)
	w.touchedNothing(pullNow)
	for _, canary := range []string{old, now.Token} {
		w.keepsToItself(canary)
	}

	t.Log("the parent refuses the node")
	mine := p.keys
	p.set(func() { p.keys = keys.Keys{keys.NewKey()} })
	w.Run0("echo changed >/etc/motd")
	require.False(t, w.has(pullNow))
	require.Equal(t, "welcome", w.Run0("cat /etc/motd"), "the spec that is here stays in force")
	require.Equal(t, "E301", config[node.Failed](w, "config-failed.json").Code)
	p.set(func() { p.keys = mine })

	t.Log("the parent is away")
	p.stop()
	w.Run0("rm /etc/motd; systemctl stop hs-daemon")
	require.False(t, w.has(pullNow), "the exit code says that the parent did not answer")
	require.Equal(t, "welcome", w.Run0("cat /etc/motd"))
	require.True(t, w.has("systemctl is-active --quiet hs-daemon"))
	failed := config[node.Failed](w, "config-failed.json")
	require.Equal(t, "E501", failed.Code)
	require.Equal(t, 2, failed.Attempts)
	require.Contains(t, failed.Message, "after 5 attempts")
	require.True(t, w.has("[ -e "+node.DefaultFolder+"/config-complete.json ]"))

	t.Log("it is back, with another spec")
	p.start(w.Machine)
	p.requests()
	p.set(func() {
		p.spec = pullSpec(t, 600)
		p.spec.Config.Files[1].Content = "moved\n"
	})
	w.Run0(pullNow)
	require.Equal(t, []string{"/spec/edge 200", "/report/edge 202"}, p.requests())
	require.Equal(t, "moved", w.Run0("cat /etc/motd"))
	require.False(t, w.has("[ -e "+node.DefaultFolder+"/config-failed.json ]"))
	require.Contains(t, w.Run0("cat "+node.DefaultFolder+"/spec.prev.json"), "welcome")
	require.Equal(t, "10min", w.Run0("systemctl show -p TimersMonotonic --value homestak-gitops-pull.timer | grep -o 'OnUnitInactiveUSec=[^ ]*' | cut -d= -f2"))

	t.Log("its mode is push from now on")
	p.set(func() { p.spec.Run = nil })
	w.Run0(pullNow)
	require.Empty(t, w.Run0("systemctl list-unit-files --no-legend 'homestak-gitops-pull*'; ls /etc/systemd/system | grep pull || :"))
}

// withoutPull is the snapshot without what a node in mode pull has for that, and without what
// cloud-init makes differently each time.
func withoutPull(w *world) string {
	only := regexp.MustCompile(`/opt/homestak|/etc/homestak-gitops|/usr/local/bin/homestak-gitops|homestak-gitops-pull\.|(^|/)(spec|spec\.prev|fetched|config-complete)\.json|/var/lib/homestak-gitops(/tasks\.json\.lock)?( |$)|ssh_host_|90-cloud-init-users$|# Created by cloud-init`)
	kept := []string{}
	for line := range strings.Lines(w.snapshot()) {
		if !only.MatchString(strings.TrimSpace(line)) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// touchedNothing requires that a run writes no file, and logs nothing.
func (w *world) touchedNothing(line string) {
	w.t.Helper()
	cursor := w.Run0("journalctl --quiet --no-pager --lines=0 --show-cursor | sed 's/^-- cursor: //'")
	w.Run0("touch /var/since")
	w.Run0(line)
	require.Empty(w.t, w.written(cursor))
}

// keepsToItself requires that a secret is in no file that others than root may read, and in no log.
func (w *world) keepsToItself(secret string) {
	w.t.Helper()
	w.write("/run/canary", secret)
	require.Empty(w.t, w.Run0("journalctl | grep -cFf /run/canary | grep -v '^0$' || :"))
	require.Empty(w.t, w.Run0(`for f in $(grep -rlFf /run/canary /etc /var /home /root /tmp /run /srv /usr/local 2>/dev/null); do
  d=$f; shut=
  while [ "$d" != / ]; do case $(stat -c %a "$d") in *00) shut=1;; esac; d=$(dirname "$d"); done
  [ -n "$shut" ] || echo "$f"
done`))
	w.Run0("rm /run/canary")
}

// The user-data of a new node is valid by cloud-init's own rules.
func TestST01UserDataIsValid(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	p := newServer(t, pullSpec(t, 60), t.TempDir())
	text, err := client.FirstBootUserData(p.child(), "")
	require.NoError(t, err)
	w := beginFrom(t, cloudDebian())
	w.write("/root/user-data", text)
	require.Contains(t, w.Run0("cloud-init schema --config-file /root/user-data 2>&1"), "Valid cloud-config")
	w.write("/root/bad", strings.Replace(text, `"permissions"`, `"permission"`, 1))
	require.False(t, w.has("cloud-init schema --config-file /root/bad"), "the check finds nothing")
}

// program builds the program, for machines that apply their spec themselves.
func program(t *testing.T) string {
	t.Helper()
	path, err := released.Path(t.Context(), t.TempDir())
	require.NoError(t, err)
	return filepath.Dir(path)
}

// A spec that is pushed, and the same one that the machine fetches from its parent and applies
// itself, make the same machine. The second time nothing is written, the machine is read by one
// command, and nothing of it is shown to others.
func TestST01ST02PushAndPullAreEqual(t *testing.T) {
	nspawn.Need(t)
	dir := program(t)
	pushed := begin(t)
	pulled := pushed.sibling(t, nspawn.Rootfs.Boot, nspawn.Bind{From: dir, To: "/mnt/homestak"})
	s := pushed.whole()
	pushed.over = pushed.login() // as a push enters it
	pushed.apply(s)

	document, err := json.Marshal(s)
	require.NoError(t, err)
	pulled.Write("/mnt/spec.json", 0o600, string(document))
	const apply = "/mnt/homestak/homestak-gitops config apply"
	require.Contains(t, pulled.Run0(apply+" --spec /mnt/spec.json --dry-run"), "~ guest edge")
	require.Empty(t, pulled.Run0("ls -A "+node.DefaultFolder+" 2>/dev/null || true"), "a dry run keeps nothing")
	p := newServer(t, s, dir)
	p.start(pulled.Machine)
	pulled.Write(wire.ParentFile, 0o600, string(p.child().Document()))
	require.Contains(t, pulled.Run0(apply+" --fetch 2>&1"), "spec test is applied to edge")
	require.Equal(t, []string{"/spec/edge 200", "/report/edge 202"}, p.requests())

	// Without the user that a push enters as, and the files of pull.
	facts := func(w *world) string {
		return regexp.MustCompile(`(?m)^.*(deploy|session-).*\n`).ReplaceAllString(withoutPull(w), "")
	}
	same(t, facts(pushed), facts(pulled), "pulled beside pushed")
	for _, part := range []string{
		"package hs-tool", "unit hs-daemon.service", "ann:/home/ann:/bin/bash", "ops:ann", "shadow bob !", "/home/ann/.ssh/authorized_keys: " + keyA,
		"ann ALL=(ALL:ALL) NOPASSWD: ALL", "sshd port 2222", "net/ipv4/ip_forward:1", "name edge edge.home.example", "Europe/Berlin", "Jail list:", "/etc/homestak-test/app.conf f 640 root video",
	} {
		require.Contains(t, facts(pushed), part, "the comparison misses something")
	}
	if pushed.key != "" {
		require.Contains(t, facts(pushed), "homestak-extra.sources: URIs: file:/srv/apt/extra")
	}
	require.Equal(t, "600 root root", pulled.Run0("stat -c '%a %U %G' "+node.DefaultFolder+"/*.json | sort -u"))

	pulled.touchedNothing(apply)
	pulled.touchedNothing(apply + " --fetch")
	require.Equal(t, []string{"/spec/edge 304", "/report/edge 202"}, p.requests())
	before := pulled.runs
	changed, err := node.Node{Folder: node.Folder{Path: t.TempDir()}, Machine: way{pulled}}.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, changed)
	require.Equal(t, 1, pulled.runs-before)
	var done node.Complete
	require.NoError(t, json.Unmarshal([]byte(pulled.Run0("cat "+node.DefaultFolder+"/config-complete.json")), &done))
	require.Equal(t, "edge", done.Node)
	require.Positive(t, done.Changed)
}

const servedSite = `site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
posture "dev" {
  auth {
    method = "node_token"
  }
}
spec "base" {
  platform {
    packages = ["hs-tool"]
  }
  run {
    trigger  = "git"
    interval = "1h"
  }
}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "edge" {
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

// The server and the node are those of the program: what the files of the site say reaches the
// machine, with a token that the server minted, and so does what they say next.
func TestST01ServedSpecReachesTheNode(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t, nspawn.Bind{From: program(t), To: "/usr/local/bin"})
	w.write("/srv/site/site.hcl", servedSite)
	w.Run0("systemd-run --quiet --unit=parent homestak-gitops serve --site /srv/site --data-dir /srv/parent --listen " + serverAddress + " --json")
	var served struct{ URL, Pin string }
	w.Until("the server serves", func() bool {
		line, _, _ := strings.Cut(w.Run0("journalctl -o cat -u parent | grep '^{' || :"), "\n")
		return json.Unmarshal([]byte(line), &served) == nil
	})
	own, err := wire.ParsePin(served.Pin)
	require.NoError(t, err)
	child := wire.Parent{Identity: "edge", Server: served.URL, Pins: []wire.Pin{own}}

	w.Write(wire.ParentFile, 0o600, string(child.Document()))
	said, code := w.Try("homestak-gitops", "config", "apply", "--fetch")
	require.Equal(t, 6, code, said)
	require.Contains(t, said, "E300")
	child.Token = w.Run0("homestak-gitops token mint edge --site /srv/site --data-dir /srv/parent 2>/dev/null")
	w.Write(wire.ParentFile, 0o600, string(child.Document()))
	w.Run0("homestak-gitops config apply --fetch 2>&1")
	require.Equal(t, "edge", config[node.Complete](w, "config-complete.json").Node)
	require.Equal(t, "edge.home.example", w.Run0("hostname -f"))
	require.True(t, w.has("hs-tool"))
	now, err := wire.ReadParent([]byte(w.Run0("cat " + wire.ParentFile)))
	require.NoError(t, err)
	require.Len(t, now.Pins, 2, "the server announces its next key")
	require.Contains(t, w.Run0("journalctl -o cat -u parent"), "endpoint=/report/{identity} status=202")
	w.touchedNothing(pullNow)
	w.keepsToItself(child.Token)

	w.write("/srv/site/site.hcl", strings.Replace(servedSite, `["hs-tool"]`, `["hs-other"]`, 1))
	w.Until("the node notices the next spec without a request", func() bool {
		return w.has("hs-other && systemctl show -p ActiveState homestak-gitops-pull.service | grep -q inactive")
	})
	require.False(t, w.has("command -v hs-tool"), "what left the spec is withdrawn")
	w.Run0("systemctl stop homestak-gitops-wait.service; ! systemctl is-failed --quiet homestak-gitops-wait.service")
}

// A new node gets the program from a real server: the one that the server runs. Its first boot waits
// until the server is there.
func TestST01ServedProgramReachesTheNewNode(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	server := filepath.Join(t.TempDir(), "server")
	_, err := keys.Folder(server).Ensure(time.Now())
	require.NoError(t, err)
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: server, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	pins, err := wire.ParsePins(certificate.Pins())
	require.NoError(t, err)
	minted, err := keys.Folder(server).Mint("edge", "base", time.Hour, time.Now())
	require.NoError(t, err)
	userData, err := client.FirstBootUserData(wire.Parent{Identity: "edge", Server: "https://" + serverAddress, Pins: pins, Token: minted.Token}, "")
	require.NoError(t, err)
	w := seeded(t, userData, nspawn.Bind{From: program(t), To: "/opt/parent"}, nspawn.Bind{From: filepath.Dir(server), To: "/opt/keys"})
	w.write("/srv/site/site.hcl", servedSite)
	w.Run0("cp -a /opt/keys /srv/parent")
	w.Run0("systemd-run --quiet --unit=parent /opt/parent/homestak-gitops serve --site /srv/site --data-dir /srv/parent --listen " + serverAddress)
	w.Until("the first boot is done", func() bool {
		return w.has("[ -e " + node.DefaultFolder + "/config-complete.json ] && [ ! -e " + firstUnit + " ]")
	})
	w.Run0("cmp /opt/parent/homestak-gitops /usr/local/bin/homestak-gitops")
	require.Equal(t, "1", w.Run0("journalctl -o cat -u parent | grep -c 'endpoint=/agent/.* status=200'"), "once")
	require.True(t, w.has("hs-tool"))
	w.Until("it has reported", func() bool {
		return w.has("journalctl -o cat -u parent | grep -q 'endpoint=/report/{identity} status=202'")
	})
	key := w.Run0("cat /srv/parent/server/read.key")
	var status struct {
		Nodes []struct {
			Identity, Agent, Error string
			Ready                  bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(w.Run0("python3 -c 'import ssl,urllib.request as u; c=ssl._create_unverified_context(); print(u.urlopen(u.Request(\"https://"+serverAddress+"/status\",headers={\"Authorization\":\"Bearer "+key+"\"}),context=c).read().decode())'")), &status))
	require.Len(t, status.Nodes, 1)
	require.Equal(t, "edge", status.Nodes[0].Identity)
	require.Empty(t, status.Nodes[0].Error)
	require.True(t, status.Nodes[0].Ready)
	w.keepsToItself(minted.Token)
}
