package specserve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	tokenOfSite = "5e0c9c5a1d-canary-token-of-the-site"
	siteNode    = "7f2d1c0b9a-canary-token-of-node-site"
	ownToken    = "8a3b5d7c2f-canary-token-of-node-own"
	netToken    = "1b4e6f8a9c-canary-token-of-node-net"
)

// site has a node for each method of auth, named after it: net, site and own. Each has a file with a
// secret. Any is allowed from any network.
func site() *model.Site {
	s := &model.Site{
		Name: "home", Domain: "home.example", Postures: map[string]*model.Posture{}, Specs: map[string]*model.Spec{},
		Secrets: &model.Secrets{Values: map[string]map[string]string{
			"auth": {"site_token": tokenOfSite, "node_tokens.site": siteNode, "node_tokens.own": ownToken, "node_tokens.net": netToken},
		}},
	}
	m := &model.Manifest{Name: "web", Host: "father"}
	for name, auth := range map[string]*model.Auth{
		"net": {Method: "network", Networks: []string{"127.0.0.1/32"}}, "site": {Method: "site_token"}, "own": {Method: "node_token"},
	} {
		s.Postures[name] = &model.Posture{Name: name, Auth: auth}
		s.Specs[name] = &model.Spec{Name: name, Access: &model.Access{Posture: name}, Config: &model.Config{
			Files: []model.File{{Path: "/etc/secret", Content: "canary-secret-of-" + name, Mode: "0600"}},
		}}
		m.Nodes = append(m.Nodes, &model.Node{Name: name, Spec: name, Type: "vm"})
	}
	s.Manifests = map[string]*model.Manifest{
		"web":    m,
		"frozen": {Name: "frozen", Host: "father", Suspend: true, Nodes: []*model.Node{{Name: "cold", Spec: "net", Type: "vm"}}},
	}
	return s
}

// served is a server that answers on a port of this machine.
type served struct {
	*Server
	t      *testing.T
	addr   string
	keys   keys.Keys
	pins   []string
	now    atomic.Int64 // Unix seconds
	log    *logged
	set    *policy.Set
	client *http.Client
	stop   func() error
	access keys.Access
	dir    string        // of its keys
	asked  chan struct{} // calls of Check

	reports *wire.ReportStore
}

// logged is the log of a server.
type logged struct {
	mutex sync.Mutex // requests log from many goroutines
	text  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

// serveLimits starts a server. Whatever a test does with it, no secret is in its log.
func serveLimits(t *testing.T, limits Limits) *served { return serveProgram(t, limits, nil) }

// serveProgram is serveLimits with a program for new nodes.
func serveProgram(t *testing.T, limits Limits, p *Program) *served {
	t.Helper()
	return serveOptions(t, limits, p, func(*Options) {})
}

// serveOptions is serveProgram with other options.
func serveOptions(t *testing.T, limits Limits, p *Program, change func(*Options)) *served {
	t.Helper()
	s := &served{t: t, log: &logged{}, asked: make(chan struct{}, 100), dir: filepath.Join(t.TempDir(), "server"), keys: keys.Keys{keys.NewKey(), keys.NewKey()}}
	s.now.Store(1_800_000_000)
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: s.dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	s.pins = certificate.Pins()
	s.access, err = (keys.Files{Dir: s.dir}).EnsureAccess(keys.HookProviders())
	require.NoError(t, err)
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	s.set = set
	s.reports = &wire.ReportStore{}
	o := Options{
		Reports: s.reports,
		Version: "1.2.3", Program: p, Spool: t.TempDir(), TLS: certificate.TLS(), Limits: limits, Now: func() time.Time { return time.Unix(s.now.Load(), 0) },
		Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Check: func() { s.asked <- struct{}{} },
	}
	change(&o)
	s.Server = New(o)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-done })
	pins, err := wire.ParsePins(s.pins)
	require.NoError(t, err)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), ForceAttemptHTTP2: true}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		require.NoError(t, s.stop())
		require.NotContains(t, s.log.String(), "canary")
		for _, key := range [][]byte{s.access.Read, s.access.Operator, s.access.Hook("generic")} {
			require.NotContains(t, s.log.String(), string(key))
		}
		for _, k := range s.keys {
			require.NotContains(t, s.log.String(), k.Text())
		}
	})
	return s
}

// publish makes a site the one that is served.
func (s *served) publish(commit string, site *model.Site) {
	s.t.Helper()
	c, found := MakeCatalog(CatalogInput{Site: site, Commit: commit, Policies: s.set})
	require.Empty(s.t, found)
	s.Publish(View{Catalog: c, Keys: s.keys, Access: s.access, Pins: s.pins})
}

func started(t *testing.T) *served {
	t.Helper()
	s := serveLimits(t, unlimited())
	s.publish("3f2c1a9", site())
	return s
}

// mint makes a provisioning token that is good for an hour.
func (s *served) mint(k keys.Key, node string) string {
	s.t.Helper()
	text, err := k.MintToken(keys.Claims{Node: node, Spec: "base", Issued: s.now.Load(), Expires: s.now.Load() + 3600})
	require.NoError(s.t, err)
	return text
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

// code is that of the error in the body.
func (a answer) code() string {
	var b struct {
		Error struct{ Code, Message, Hint string }
	}
	if json.Unmarshal([]byte(a.body), &b) != nil {
		return ""
	}
	return b.Error.Code
}

// ask sends a request; the headers are pairs of name and value.
func (s *served) ask(method, path string, headers ...string) answer {
	s.t.Helper()
	return s.send(method, path, http.NoBody, headers...)
}

// send sends a request with a body.
func (s *served) send(method, path string, content io.Reader, headers ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+s.addr+path, content)
	require.NoError(s.t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	got, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, 2, got.ProtoMajor)
	return answer{got.StatusCode, got.Header, string(body)}
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

func TestHealth(t *testing.T) {
	s := serveLimits(t, Limits{})
	require.JSONEq(t, `{"status":"starting","version":"1.2.3","commit":"","uptime_seconds":0}`, s.ask("GET", "/health").body)
	got := s.ask("GET", "/spec/own", bearer(ownToken)...)
	require.Equal(t, 503, got.status)
	require.Equal(t, "E500", got.code())
	require.Equal(t, "5", got.header.Get("Retry-After"))
	s.publish("3f2c1a9", site())
	s.now.Add(61)
	got = s.ask("GET", "/health")
	require.Equal(t, 200, got.status)
	require.JSONEq(t, `{"status":"ok","version":"1.2.3","commit":"3f2c1a9","uptime_seconds":61}`, got.body)
}

// Operators and notifications of pushes are answered before there is a commit to serve: that is when they are
// needed most.
func TestBeforeTheFirstCommit(t *testing.T) {
	s := serveLimits(t, unlimited())
	secret := s.access.Hook("gitea")
	require.Equal(t, 401, s.ask("GET", "/status", bearer(string(s.access.Read))...).status, "no key is known yet")
	require.Equal(t, 401, s.send("POST", "/hook/gitea", strings.NewReader(push), "X-Gitea-Signature", signature(secret, push)).status)
	s.reports.Put(wire.Report{Identity: "own", At: time.Unix(s.now.Load(), 0)}, time.Unix(s.now.Load(), 0))
	s.Publish(View{Keys: s.keys, Access: s.access, Pins: s.pins})
	for _, c := range []struct {
		method, path string
		key          []byte
		status       int
	}{
		{"GET", "/health", nil, 200},
		{"GET", "/status", s.access.Read, 200},
		{"GET", "/metrics", s.access.Read, 200},
		{"GET", "/events", s.access.Read, 404}, // this server is not that of an agent
		{"POST", "/reconcile", s.access.Operator, 202},
		{"POST", "/reconcile/own", s.access.Operator, 503},
		{"GET", "/status", s.access.Operator[:20], 401},
		{"GET", "/specs", nil, 503},
		{"GET", "/config/own", nil, 503},
		{"GET", "/wait/own", nil, 503},
		{"GET", "/site.git/info/refs", s.access.Repository, 503},
	} {
		got := s.ask(c.method, c.path, bearer(string(c.key))...)
		require.Equal(t, c.status, got.status, "%s %s: %s", c.method, c.path, got.body)
		require.Equal(t, c.status == 503, got.header.Get("Retry-After") != "", c.path)
	}
	<-s.asked
	require.Equal(t, 503, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(s.mint(s.keys[0], "own"))...).status)
	require.Equal(t, 202, s.send("POST", "/hook/gitea", strings.NewReader(push), "X-Gitea-Signature", signature(secret, push)).status)
	<-s.asked
	require.Len(t, s.status().Nodes, 1, "what was reported before a restart stays until it is known which nodes there are")
	s.publish("3f2c1a9", &model.Site{})
	require.Empty(t, s.status().Nodes)
}

func TestSpec(t *testing.T) {
	s := started(t)
	got := s.ask("GET", "/spec/own", bearer(ownToken)...)
	require.Equal(t, 200, got.status)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.Equal(t, "private, no-cache", got.header.Get("Cache-Control"))
	require.Contains(t, got.body, `"hostname":"own"`)
	require.Contains(t, got.body, "canary-secret-of-own")
	require.Equal(t, 1, strings.Count(got.body, "canary"))
	require.Contains(t, got.body, `"pins":["`+s.pins[0]+`","`+s.pins[1]+`"]`)
	require.NotContains(t, got.body, `"token"`)

	// The same document again is not sent.
	tag := got.header.Get("Etag")
	require.Regexp(t, `^"[0-9a-f]{64}"$`, tag)
	for _, match := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
		same := s.ask("GET", "/spec/own", append(bearer(ownToken), "If-None-Match", match)...)
		require.Equal(t, 304, same.status)
		require.Empty(t, same.body)
		require.Equal(t, tag, same.header.Get("Etag"))
	}
	require.Equal(t, 200, s.ask("GET", "/spec/own", append(bearer(ownToken), "If-None-Match", strings.ToUpper(tag))...).status)
	require.Equal(t, 401, s.ask("GET", "/spec/own", "If-None-Match", tag).status, "who may not have it does not learn that it is the same")

	head := s.ask("HEAD", "/spec/own", bearer(ownToken)...)
	require.Equal(t, 200, head.status)
	require.Empty(t, head.body)
	for _, name := range []string{"Etag", "Content-Type", "Content-Length", "Cache-Control", "Vary"} {
		require.Equal(t, got.header.Get(name), head.header.Get(name), name)
	}

	// YAML is another representation, and so has another tag.
	for accept, want := range map[string]string{
		"application/yaml": "application/yaml", "text/yaml": "application/yaml", "application/json;q=0.5, application/yaml": "application/yaml",
		"application/yaml;q=0.5, application/json": "application/json", "*/*": "application/json", "text/html": "application/json",
		"application/yaml;q=0": "application/json", "application/yaml;q=x, ;": "application/json",
	} {
		require.Equal(t, want, s.ask("GET", "/spec/own", append(bearer(ownToken), "Accept", accept)...).header.Get("Content-Type"), accept)
	}
	yaml := s.ask("GET", "/spec/own", append(bearer(ownToken), "Accept", "application/yaml")...)
	require.Contains(t, yaml.body, "\nidentity:\n  hostname: own\n")
	require.Equal(t, strings.TrimSuffix(tag, `"`)+`-yaml"`, yaml.header.Get("Etag"))
	require.Equal(t, 200, s.ask("GET", "/spec/own", append(bearer(ownToken), "Accept", "application/yaml", "If-None-Match", tag)...).status)

	// A new commit with the same spec changes nothing; another spec and new pins do.
	s.publish("b", site())
	require.Equal(t, tag, s.ask("GET", "/spec/own", bearer(ownToken)...).header.Get("Etag"))
	changed := site()
	changed.Domain = "other.example"
	s.publish("c", changed)
	require.Equal(t, 200, s.ask("GET", "/spec/own", append(bearer(ownToken), "If-None-Match", tag)...).status)
	s.pins = []string{s.pins[1], s.pins[0]}
	s.publish("d", site())
	require.Equal(t, 200, s.ask("GET", "/spec/own", append(bearer(ownToken), "If-None-Match", tag)...).status)
}

// A node gets a new token with its spec when its own is past half its life, or of the older key.
func TestTokensAreRenewed(t *testing.T) {
	s := started(t)
	renewed := func(text string) (keys.Claims, bool) {
		t.Helper()
		first := s.ask("GET", "/spec/own", bearer(text)...)
		require.Equal(t, 200, first.status)
		got := s.ask("GET", "/spec/own", append(bearer(text), "If-None-Match", first.header.Get("Etag"))...)
		if got.status == 304 {
			return keys.Claims{}, false
		}
		require.Equal(t, 200, got.status, "a 304 cannot carry a token")
		require.Equal(t, first.header.Get("Etag"), got.header.Get("Etag"), "a new token is not a new spec")
		require.Equal(t, "no-store", got.header.Get("Cache-Control"))
		var sent struct{ Token string }
		require.NoError(t, json.Unmarshal([]byte(got.body), &sent))
		claims, err := s.keys.Verify(sent.Token, "own", time.Unix(s.now.Load(), 0))
		require.NoError(t, err)
		require.Equal(t, s.keys[0].ID, claims.Key)
		require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(sent.Token)...).status)
		return claims, true
	}
	text := s.mint(s.keys[0], "own")
	_, ok := renewed(text)
	require.False(t, ok)
	s.now.Add(1799)
	_, ok = renewed(text)
	require.False(t, ok)
	s.now.Add(1)
	claims, ok := renewed(text)
	require.True(t, ok)
	require.Equal(t, keys.Claims{Version: 1, Node: "own", Spec: "own", Issued: s.now.Load(), Expires: s.now.Load() + 3600, Key: s.keys[0].ID}, claims)
	_, ok = renewed(s.mint(s.keys[1], "own"))
	require.True(t, ok)

	never, err := s.keys[1].MintToken(keys.Claims{Node: "own", Spec: "base", Issued: 1})
	require.NoError(t, err)
	claims, ok = renewed(never)
	require.True(t, ok)
	require.Zero(t, claims.Expires)
}

// A caller sees exactly the specs that it may fetch.
func TestSpecs(t *testing.T) {
	s := started(t)
	for _, c := range []struct {
		name    string
		headers []string
		want    string
	}{
		{"from a network", nil, `{"specs":["net"]}`},
		{"site's token", bearer(tokenOfSite), `{"specs":["net","site"]}`},
		{"own token", bearer(ownToken), `{"specs":["own"]}`},
		{"provisioning token", bearer(s.mint(s.keys[0], "site")), `{"specs":["site"]}`},
		{"of a node that is gone", bearer(s.mint(s.keys[0], "gone")), `{"specs":[]}`},
	} {
		got := s.ask("GET", "/specs", c.headers...)
		require.Equal(t, 200, got.status, c.name)
		require.Equal(t, c.want+"\n", got.body, c.name)
	}
	require.Equal(t, "E301", s.ask("GET", "/specs", bearer("wrong")...).code())
	closed := site()
	closed.Postures["net"].Auth.Networks = []string{"192.0.2.0/24"}
	s.publish("b", closed)
	require.Equal(t, "E300", s.ask("GET", "/specs").code())
	closed.Manifests = nil
	s.publish("c", closed)
	require.Equal(t, "E300", s.ask("GET", "/specs").code())
}

// The rules of the site decide, and may say more than the shipped ones.
func TestSiteExtendsAuth(t *testing.T) {
	s := started(t)
	set, found := policy.Compile(t.Context(), policy.Options{Site: rules(`package homestak.auth
allow if {
	input.identity == "site"
	net.cidr_contains("127.0.0.0/8", input.remote)
}
deny contains {"message": "canary of a rule", "code": 403} if input.identity == "own"
`)})
	require.Empty(t, found)
	s.set = set
	s.publish("a", site())
	require.Equal(t, 200, s.ask("GET", "/spec/site").status)
	got := s.ask("GET", "/spec/own", bearer(s.mint(s.keys[0], "own"))...)
	require.Equal(t, 403, got.status)
	require.Equal(t, "E302", got.code())
	require.NotContains(t, got.body, "canary", "why is for the log")
	require.Contains(t, s.log.String(), "of a rule")
	for _, credential := range []string{s.mint(s.keys[0], "own"), ownToken} {
		for _, path := range []string{"/spec/own", "/config/own", "/wait/own", "/agent/linux-amd64", "/site.git/info/refs?service=git-upload-pack"} {
			require.Equal(t, 403, s.ask("GET", path, bearer(credential)...).status, path)
		}
		require.Equal(t, 403, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(credential)...).status)
	}
	s.log.text.Reset()
}

// A request sees one version, however often another is published.
func TestOneVersionPerRequest(t *testing.T) {
	s := serveLimits(t, unlimited())
	versions := [2]View{}
	for i, name := range []string{"even", "odd"} {
		changed := site()
		changed.Domain = name + ".example"
		c, found := MakeCatalog(CatalogInput{Site: changed, Commit: name, Policies: s.set})
		require.Empty(t, found)
		versions[i] = View{Catalog: c, Keys: s.keys, Access: s.access, Pins: []string{name}}
	}
	s.Publish(versions[0])
	ctx, cancel := context.WithCancel(t.Context())
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s.Publish(versions[i%2])
		}
	})
	seen := map[bool]int{}
	for range 300 {
		got := s.ask("GET", "/spec/own", bearer(ownToken)...)
		require.Equal(t, 200, got.status)
		odd := strings.Contains(got.body, `"domain":"odd.example"`)
		require.Equal(t, odd, strings.Contains(got.body, `"pins":["odd"]`))
		seen[odd]++
	}
	cancel()
	swapping.Wait()
	require.Len(t, seen, 2)
}

// fast is a rate that no test reaches.
var fast = Rate{Every: time.Nanosecond, Burst: 1_000_000}

func unlimited() Limits {
	l := Usual()
	l.Refusals, l.RefusalsPerNode = fast, fast
	return l
}

func rules(text string) fs.FS {
	return fstest.MapFS{"policy/x.rego": {Data: []byte(text)}}
}

// The whole table: what each method says to each credential, from a network that the posture allows
// and from another one. The same table is in policy/shipped/auth_test.rego.
func TestAuth(t *testing.T) {
	s := serveLimits(t, unlimited())
	expired, err := s.keys[0].MintToken(keys.Claims{Node: "own", Spec: "base", Issued: 1, Expires: 2})
	require.NoError(t, err)
	dropped := keys.NewKey()
	const ok, none, bad, other, late = "200 ", "401 E300", "401 E301", "403 E302", "401 E303"
	for _, c := range []struct {
		credential string
		header     func(node string) []string
		want       map[string]string // by method; the first one counts for all that are missing
	}{
		{"none", func(string) []string { return nil }, map[string]string{"net inside": ok, "": none}},
		{"wrong", func(string) []string { return bearer("wrong") }, map[string]string{"": bad}},
		{"malformed", func(string) []string { return []string{"Authorization", "Basic eDp5"} }, map[string]string{"": none}},
		{"malformed, two segments", func(string) []string { return bearer("wrong.!") }, map[string]string{"": none}},
		{"malformed, three segments", func(string) []string { return bearer(s.mint(s.keys[0], "own") + ".x") }, map[string]string{"": none}},
		{"malformed, not a token", func(string) []string { return bearer("e30.e30") }, map[string]string{"": bad}},
		{"no token", func(string) []string { return []string{"Authorization", "Bearer "} }, map[string]string{"": none}},
		{"two", func(string) []string { return append(bearer(tokenOfSite), bearer(tokenOfSite)...) }, map[string]string{"": none}},
		{"site's token", func(string) []string { return bearer(tokenOfSite) }, map[string]string{"own inside": other, "own outside": other, "": ok}},
		{"node's token", func(node string) []string {
			return bearer(map[string]string{"net": netToken, "site": siteNode, "own": ownToken}[node])
		}, map[string]string{"site inside": other, "site outside": other, "": ok}},
		{"other node's token", func(node string) []string {
			return bearer(map[string]string{"net": ownToken, "site": netToken, "own": netToken}[node])
		}, map[string]string{"": other}},
		{"provisioning", func(node string) []string { return bearer(s.mint(s.keys[0], node)) }, map[string]string{"": ok}},
		{"provisioning, small letters", func(node string) []string {
			return []string{"authorization", "bearer " + s.mint(s.keys[0], node)}
		}, map[string]string{"": ok}},
		{"provisioning, older key", func(node string) []string { return bearer(s.mint(s.keys[1], node)) }, map[string]string{"": ok}},
		{"provisioning, dropped key", func(node string) []string { return bearer(s.mint(dropped, node)) }, map[string]string{"": bad}},
		{"provisioning, other node", func(node string) []string { return bearer(s.mint(s.keys[0], node+"x")) }, map[string]string{"": other}},
		{"provisioning, expired", func(string) []string { return bearer(expired) }, map[string]string{"": late}},
	} {
		for _, network := range []string{"inside", "outside"} {
			changed := site()
			if network == "outside" {
				changed.Postures["net"].Auth.Networks = []string{"192.0.2.0/24"}
			}
			s.publish(network, changed)
			for _, node := range []string{"net", "site", "own"} {
				want, exact := c.want[node+" "+network]
				if !exact {
					want = c.want[""]
				}
				got := s.ask("GET", "/spec/"+node, c.header(node)...)
				require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s to %s from %s: %s", c.credential, node, network, got.body)
				require.Equal(t, got.status == 401, got.header.Get("WWW-Authenticate") != "")
				if got.status != 200 {
					require.NotContains(t, got.body, "canary")
				}
			}
		}
	}
	require.Equal(t, `Bearer realm="homestak-gitops", error="invalid_token"`, s.ask("GET", "/spec/own", bearer("wrong")...).header.Get("WWW-Authenticate"))
	require.Equal(t, `Bearer realm="homestak-gitops"`, s.ask("GET", "/spec/own").header.Get("WWW-Authenticate"))
}

// badToken is how a token that opens nothing is answered: one that was meant as a provisioning token, with
// two segments, is malformed if it cannot be taken apart, and any other one is not valid.
func badToken(text string) string {
	if _, err := keys.InspectToken(text); err != nil && strings.Contains(text, ".") {
		return "401 E300"
	}
	return "401 E301"
}

// A token with any one byte changed opens nothing, under every method.
func TestTamperedToken(t *testing.T) {
	s := serveLimits(t, unlimited())
	s.publish("a", site())
	for _, node := range []string{"net", "site", "own"} {
		text := s.mint(s.keys[0], node)
		require.Equal(t, 200, s.ask("GET", "/spec/"+node, bearer(text)...).status)
		for i := range len(text) {
			for _, b := range []byte{'A', '.', '=', text[i] ^ 1} {
				if b == text[i] || b < '!' || b > '~' {
					continue
				}
				got := s.ask("GET", "/spec/"+node, bearer(text[:i]+string(b)+text[i+1:])...)
				require.Equal(t, badToken(text[:i]+string(b)+text[i+1:]), fmt.Sprint(got.status, " ", got.code()), "byte %d is %q", i, b)
			}
		}
		for _, changed := range []string{text[:len(text)-1], text + "A", text + ".", "." + text, text + "." + text, strings.ToUpper(text)} {
			got := s.ask("GET", "/spec/"+node, bearer(changed)...)
			require.Equal(t, badToken(changed), fmt.Sprint(got.status, " ", got.code()), changed)
		}
	}
	// Another payload under a signature that is genuine.
	_, signature, _ := strings.Cut(s.mint(s.keys[0], "net"), ".")
	payload := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":1,"n":"own","s":"base","iat":1,"kid":%q}`, s.keys[0].ID))
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(payload+"."+signature)...).code())
}

// A client without access to a spec does not learn whether there is one.
func TestUnknownNodes(t *testing.T) {
	s := started(t)
	for _, c := range []struct{ node, want string }{
		{"nobody", "401 E300"}, {"cold", "401 E300"}, {"own", "401 E300"},
	} {
		got := s.ask("GET", "/spec/"+c.node)
		require.Equal(t, c.want, fmt.Sprint(got.status, " ", got.code()))
		require.Equal(t, s.ask("GET", "/spec/own").body, got.body)
	}
	require.Equal(t, "E302", s.ask("GET", "/spec/nobody", bearer(tokenOfSite)...).code())
	got := s.ask("GET", "/spec/nobody", bearer(s.mint(s.keys[0], "nobody"))...)
	require.Equal(t, 404, got.status)
	require.Equal(t, "E200", got.code())
	got = s.ask("GET", "/spec/cold", bearer(s.mint(s.keys[0], "cold"))...)
	require.Equal(t, 404, got.status)
	require.Contains(t, got.body, "manifest frozen is suspended")
}

// Keys and secrets count from the moment that they are published, and the old ones no longer.
func TestRotation(t *testing.T) {
	s := started(t)
	old := s.mint(s.keys[0], "own")
	next := keys.NewKey()
	s.keys = keys.Keys{next, s.keys[0]}
	s.publish("a", site())
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(old)...).status, "both are good in the overlap")
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(s.mint(next, "own"))...).status)
	s.keys = keys.Keys{next}
	changed := site()
	changed.Secrets.Values["auth"]["node_tokens.own"] = siteNode + "2"
	s.publish("a", changed)
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(old)...).code())
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(ownToken)...).code())
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(siteNode+"2")...).status)
}

// inMemory is a listener in memory, and connects to it.
func inMemory(t *testing.T) (ln net.Listener, dial func() net.Conn) {
	t.Helper()
	at, network := netip.MustParseAddrPort("192.0.2.1:44443"), new(machine.Net)
	ln, err := network.Listen(at, at)
	require.NoError(t, err)
	return ln, func() net.Conn {
		conn, err := network.Dial(t.Context(), at, at)
		require.NoError(t, err)
		return conn
	}
}

// Clients that say nothing, or too slowly, are cut off at the deadlines, to the second.
func TestDeadlines(t *testing.T) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(t.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	// speak begins a conversation over TLS, and gives the connection to go on with.
	speak := func(text string) func(*testing.T, net.Conn) io.Writer {
		return func(t *testing.T, c net.Conn) io.Writer {
			t.Helper()
			client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
			require.NoError(t, client.HandshakeContext(t.Context()))
			_, err := io.WriteString(client, text)
			require.NoError(t, err)
			return client
		}
	}
	for name, c := range map[string]struct {
		begin   func(*testing.T, net.Conn) io.Writer
		trickle bool
		after   time.Duration
	}{
		"silent":           {func(_ *testing.T, c net.Conn) io.Writer { return c }, false, 10 * time.Second},
		"silent after TLS": {speak(""), false, 10 * time.Second},
		"half a header":    {speak("GET /health HTTP/1.1\r\nHost: x\r\n"), false, 10 * time.Second},
		"trickling header": {speak("GET /health HTTP/1.1\r\nHost: x\r\nX: "), true, 10 * time.Second},
		"half a body":      {speak("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), false, 20 * time.Second},
		"trickling body":   {speak("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), true, 20 * time.Second},
		"idle between two": {speak("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), false, 5 * time.Second},
		"idle, verified":   {speak("POST /reconcile HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\n\r\n"), false, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln, dial := inMemory(t)
				s := New(Options{TLS: certificate.TLS(), Log: slog.New(slog.DiscardHandler)})
				s.Publish(View{Access: keys.Access{Operator: []byte("operator")}})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				conn := dial()
				began := time.Now()
				to := c.begin(t, conn)
				ended, stop := make(chan struct{}), make(chan struct{})
				go func() { _, _ = io.Copy(io.Discard, conn); close(ended) }()
				go func() {
					defer close(stop)
					tick := time.NewTicker(100 * time.Millisecond)
					defer tick.Stop()
					for c.trickle {
						select {
						case <-tick.C:
							if _, err := io.WriteString(to, "1"); err != nil {
								return
							}
						case <-ended:
							return
						}
					}
				}()
				<-ended
				<-stop
				require.Equal(t, c.after, time.Since(began).Truncate(time.Second))
				require.NoError(t, conn.Close())
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// Silent clients hardly delay the end, and a request under way has until the limit.
func TestShutdownTakesItsTime(t *testing.T) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(t.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		after, longest time.Duration // when the request under way is complete, and the end
	}{
		"nothing under way": {0, 900 * time.Millisecond},
		"a slow request":    {1400 * time.Millisecond, 1500 * time.Millisecond},
		"one too slow":      {time.Minute, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln, dial := inMemory(t)
				s := New(Options{TLS: certificate.TLS(), Log: slog.New(slog.DiscardHandler)})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				silent := dial()
				defer func() { _ = silent.Close() }()
				slow := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				defer func() { _ = slow.Close() }()
				require.NoError(t, slow.HandshakeContext(t.Context()))
				if c.after > 0 {
					_, err := io.WriteString(slow, "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
					require.NoError(t, err)
				}
				synctest.Wait()
				began := time.Now()
				cancel()
				if c.after > 0 {
					defer time.AfterFunc(c.after, func() { _, _ = io.WriteString(slow, "0\r\n\r\n") }).Stop()
					got, err := http.ReadResponse(bufio.NewReader(slow), nil)
					if err == nil {
						_ = got.Body.Close()
					}
					require.Equal(t, c.after < c.longest, err == nil && got.StatusCode == http.StatusOK)
				} else {
					_, _ = io.Copy(io.Discard, slow)
				}
				require.NoError(t, <-done)
				require.LessOrEqual(t, time.Since(began), c.longest)
			})
		})
	}
}

// Twenty addresses with as many connections as one may have, each idle after an answer, do not keep a node out: neither
// over the connection that it has, nor over new ones, while they come and when all are there.
func TestS4IdleConnections(t *testing.T) {
	const addresses = 20
	l := unlimited()
	l.IdleUnverified = time.Hour // only by giving way to others
	var files syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if most := int(min(files.Cur, 1<<20)/(2*addresses)) - 20; most < l.ConnectionsPerClient { // two files for each connection
		l.Connections, l.Unverified = l.Connections*most/l.ConnectionsPerClient, l.Unverified*most/l.ConnectionsPerClient
		l.ConnectionsPerClient = most
	}
	s := serveLimits(t, l)
	s.publish("a", site())
	right := s.mint(s.keys[0], "own")
	pins, err := wire.ParsePins(s.pins)
	require.NoError(t, err)
	node := func() *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), ForceAttemptHTTP2: true}}
	}
	ask := func(c *http.Client) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+"/spec/own", http.NoBody)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+right)
		got, err := c.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		if got.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", got.StatusCode)
		}
		return err
	}
	stays := node()
	defer stays.CloseIdleConnections()
	require.NoError(t, ask(stays))
	var took []time.Duration
	served := func() error {
		began := time.Now()
		comes := node()
		defer comes.CloseIdleConnections()
		err := ask(comes)
		took = append(took, time.Since(began))
		if err == nil {
			err = ask(stays)
		}
		return err
	}

	var flood sync.WaitGroup
	for i := range addresses {
		flood.Go(func() {
			d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
			for range l.ConnectionsPerClient {
				c, err := d.DialContext(t.Context(), "tcp", s.addr)
				if err != nil {
					continue // it was closed at once
				}
				t.Cleanup(func() { _ = c.Close() })
				if _, err = io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil {
					_, _ = c.Read(make([]byte, 1024))
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { flood.Wait(); close(all) }()
	figures := func(when string) {
		slices.Sort(took)
		t.Logf("%s, %d addresses × %d: %d new connections of the node, p50 %v, the slowest %v", when, addresses, l.ConnectionsPerClient, len(took), took[len(took)/2], took[len(took)-1])
		took = nil
	}
	for during := true; during; {
		select {
		case <-all:
			during = false
		default:
		}
		require.NoError(t, served())
	}
	figures("while they come")
	for range 100 {
		require.NoError(t, served())
	}
	figures("when all are there")
}

func TestText(t *testing.T) {
	passes := NewCounter("passes_total", "Passes.", "outcome")
	took := NewHistogram("took_seconds", "How long.", []float64{0.1, 2.5})
	r := NewRegistry(took, passes, CurrentFigures(func(add func(string, string, float64, ...string)) {
		add("ready", "Whether.", 0, "node", "\"quoted\" \\ and\nnext \xff")
		add("ready", "Whether.", 1.5, "node", "a")
	}))
	passes.Add(1, "done")
	took.Observe(2.5)
	took.Observe(3)
	text, err := r.Text()
	require.NoError(t, err)
	require.Equal(t, `# HELP passes_total Passes.
# TYPE passes_total counter
passes_total{outcome="done"} 1
# HELP ready Whether.
# TYPE ready gauge
ready{node="\"quoted\" \\ and\nnext ?"} 0
ready{node="a"} 1.5
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{le="0.1"} 0
took_seconds_bucket{le="2.5"} 1
took_seconds_bucket{le="+Inf"} 2
took_seconds_sum 5.5
took_seconds_count 2
`, string(text))

	other, err := NewRegistry().Text()
	require.NoError(t, err)
	require.Empty(t, other, "registries share nothing")
}

// A figure that contradicts another one is an error, and no text that Prometheus would refuse.
func TestContradictions(t *testing.T) {
	for name, now := range map[string]CurrentFigures{
		"twice":        func(add func(string, string, float64, ...string)) { add("x", "X.", 1); add("x", "X.", 2) },
		"other labels": func(add func(string, string, float64, ...string)) { add("x", "X.", 1, "a", "b"); add("x", "X.", 2) },
	} {
		_, err := NewRegistry(now).Text()
		require.Error(t, err, name)
	}
	require.Panics(t, func() { NewRegistry(NewCounter("x", "X."), NewCounter("x", "X.")) })
}

// signature is the HMAC-SHA256 of a text, in hex.
func signature(secret []byte, text string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

const push = `{"ref":"refs/heads/main"}`

func TestHook(t *testing.T) {
	s := started(t)
	secret := s.access.Hook
	at := strconv.FormatInt(s.now.Load(), 10)
	late := strconv.FormatInt(s.now.Load()-301, 10)
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		answer           string // its status, or its code
		checks           bool
	}{
		{"github", "/hook/github", push, []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push), "X-Github-Event", "push", "X-Github-Delivery", "1"}, 202, "checking", true},
		{"github again", "/hook/github", push, []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push), "X-Github-Event", "push", "X-Github-Delivery", "1"}, 200, "was here before", false},
		{"github ping", "/hook/github", "{}", []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), "{}"), "X-Github-Event", "ping"}, 200, "not about a push", false},
		{"gitea", "/hook/gitea", push, []string{"X-Gitea-Signature", signature(secret("gitea"), push), "X-Gitea-Event", "push"}, 202, "checking", true},
		{"forgejo", "/hook/forgejo", push, []string{"X-Forgejo-Signature", signature(secret("forgejo"), push)}, 202, "checking", true},
		{"gitlab", "/hook/gitlab", push, []string{"X-Gitlab-Token", string(secret("gitlab")), "X-Gitlab-Event", "Push Hook"}, 202, "checking", true},
		{"generic", "/hook/generic", push, []string{"X-Homestak-Timestamp", at, "X-Homestak-Signature", signature(secret("generic"), at+"."+push)}, 202, "checking", true},
		{"too late", "/hook/generic", push, []string{"X-Homestak-Timestamp", late, "X-Homestak-Signature", signature(secret("generic"), late+"."+push)}, 401, "E303", false},
		{"not signed", "/hook/github", push, nil, 401, "E300", false},
		{"not signed, gitlab", "/hook/gitlab", push, nil, 401, "E300", false},
		{"of another body", "/hook/github", push + " ", []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push)}, 401, "E301", false},
		{"by another secret", "/hook/gitea", push, []string{"X-Gitea-Signature", signature([]byte("canary"), push)}, 401, "E301", false},
		{"an unknown token", "/hook/gitlab", push, []string{"X-Gitlab-Token", "canary"}, 401, "E301", false},
		{"the operator key", "/hook/github", push, bearer(string(s.access.Operator)), 401, "E300", false},
		{"unknown", "/hook/bitbucket", push, nil, 404, "E100", false},
		{"none", "/hook/", push, nil, 404, "E100", false},
		{"below", "/hook/github/x", push, nil, 404, "E100", false},
	} {
		got := s.send("POST", c.path, strings.NewReader(c.body), c.headers...)
		require.Equal(t, c.status, got.status, c.name)
		if c.status < 300 {
			require.Equal(t, `{"status":"`+c.answer+`"}`+"\n", got.body, c.name)
		} else {
			require.Equal(t, c.answer, got.code(), c.name)
		}
		require.Equal(t, c.checks, len(s.asked) == 1, c.name)
		if c.checks {
			<-s.asked
		}
	}
	for _, provider := range keys.HookProviders() {
		got := s.ask("GET", "/hook/"+string(provider))
		require.Equal(t, 405, got.status)
		require.Equal(t, "POST", got.header.Get("Allow"))
	}
}

// A signature of one provider counts for that provider alone: each has its own secret, and the one in hook.key, which once
// was for all, is only the generic one's.
func TestS7EachProviderHasASecretOfItsOwn(t *testing.T) {
	s := serveLimits(t, unlimited())
	s.publish("3f2c1a9", site())
	n := 0
	send := func(provider keys.Provider, secret []byte) answer {
		n++ // each body is another one, so that none is a repetition
		body, at := fmt.Sprintf(`{"n":%d}`, n), strconv.FormatInt(s.now.Load(), 10)
		return s.send("POST", "/hook/"+string(provider), strings.NewReader(body), map[string][]string{
			"github": {"X-Hub-Signature-256", "sha256=" + signature(secret, body)}, "gitea": {"X-Gitea-Signature", signature(secret, body)},
			"forgejo": {"X-Forgejo-Signature", signature(secret, body)}, "gitlab": {"X-Gitlab-Token", string(secret)},
			"generic": {"X-Homestak-Timestamp", at, "X-Homestak-Signature", signature(secret, at+"."+body)},
		}[string(provider)]...)
	}
	for _, of := range keys.HookProviders() {
		for _, provider := range keys.HookProviders() {
			got := send(provider, s.access.Hook(of))
			if of == provider {
				require.Equal(t, 202, got.status, provider)
				continue
			}
			require.Equal(t, "E301", got.code(), "the secret of %s at %s", of, provider)
			require.Contains(t, got.body, provider.File())
		}
	}
	// GitHub's scheme accepts no body signed by the generic one.
	body, at := push, strconv.FormatInt(s.now.Load(), 10)
	got := s.send("POST", "/hook/github", strings.NewReader(at+"."+body), "X-Hub-Signature-256", "sha256="+signature(s.access.Hook("generic"), at+"."+body))
	require.Equal(t, "E301", got.code())

	// A secret that two providers have counts for neither, and the answer says so.
	before := s.access
	common, err := os.ReadFile(filepath.Join(s.dir, keys.Generic.File()))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, keys.Provider("github").File()), common, 0o600))
	s.access, err = (keys.Files{Dir: s.dir}).ReadAccess(keys.HookProviders())
	require.NoError(t, err)
	s.publish("3f2c1a9", site())
	for _, provider := range []keys.Provider{"github", keys.Generic} {
		got := send(provider, bytes.TrimSpace(common))
		require.Equal(t, "E301", got.code(), provider)
		require.Contains(t, got.body, "counts for neither")
	}
	require.Equal(t, 202, send("gitea", s.access.Hook("gitea")).status)
	s.access = before
}

// A request for a check may wait for the end of the agent's pass: for longer than any other request
// may take, and not beyond the end of the server.
func TestReconcileMayWait(t *testing.T) {
	t.Parallel()
	folder := started(t)
	require.Equal(t, 202, folder.ask("POST", "/reconcile?wait", bearer(string(folder.access.Operator))...).status, "there are no passes")
	l := unlimited()
	// A handshake takes a second on a machine that is busy enough.
	l.Read, l.Write, l.Wait, l.Streams = 3*time.Second, 3*time.Second, 4*time.Second, 1
	asked, pass := make(chan struct{}), make(chan error)
	s := serveOptions(t, l, nil, func(o *Options) {
		o.Identity = "father"
		o.Reconcile = func(ctx context.Context) (any, error) {
			asked <- struct{}{}
			select {
			case err := <-pass:
				return map[string]int{"made": 1}, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	s.publish("3f2c1a9", site())
	key := bearer(string(s.access.Operator))
	ask := func(path string) chan answer {
		got := make(chan answer, 1)
		go func() {
			defer close(got) // also if the request fails
			got <- s.ask("POST", path, key...)
		}()
		select {
		case <-asked:
		case a := <-got:
			t.Fatalf("POST %s asks for no pass: %d %s", path, a.status, a.body)
		}
		return got
	}
	for _, path := range []string{"/reconcile?wait", "/reconcile/father?wait"} {
		got := ask(path)
		require.Equal(t, 429, s.ask("POST", "/reconcile?wait", key...).status, "they are bounded")
		require.Equal(t, 204, s.ask("GET", "/wait/own", bearer(ownToken)...).status, "which takes longer than other requests may")
		require.Empty(t, got)
		pass <- nil
		answer := <-got
		require.Equal(t, 200, answer.status)
		require.JSONEq(t, `{"made":1}`, answer.body)
	}
	require.Equal(t, 401, s.ask("POST", "/reconcile?wait", bearer(string(s.access.Read))...).status)
	require.Empty(t, s.asked, "the pass is the check")
	require.Equal(t, 202, s.ask("POST", "/reconcile", key...).status)
	<-s.asked
	got := ask("/reconcile?wait")
	require.NoError(t, s.stop())
	require.Equal(t, "E500", (<-got).code())
}
