package specserve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	siteToken = "5e0c9c5a1d-canary-token-of-the-site"
	siteNode  = "7f2d1c0b9a-canary-token-of-node-site"
	ownToken  = "8a3b5d7c2f-canary-token-of-node-own"
	netToken  = "1b4e6f8a9c-canary-token-of-node-net"
)

// site has a node for each method of auth, named after it: net, site and own. Each has a file with a
// secret. Any is allowed from any network.
func site() *model.Site {
	s := &model.Site{
		Name: "home", Domain: "home.example", Postures: map[string]*model.Posture{}, Specs: map[string]*model.Spec{},
		Secrets: &model.Secrets{Values: map[string]map[string]string{
			"auth": {"site_token": siteToken, "node_tokens.site": siteNode, "node_tokens.own": ownToken, "node_tokens.net": netToken},
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
	*specserve.Server
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

// serve starts a server. Whatever a test does with it, no secret is in its log.
func serve(t *testing.T, limits specserve.Limits) *served { return serveProgram(t, limits, nil) }

// serveProgram is serve with a program for new nodes.
func serveProgram(t *testing.T, limits specserve.Limits, p *specserve.Program) *served {
	t.Helper()
	return serveOptions(t, limits, p, func(*specserve.Options) {})
}

// serveOptions is serveProgram with other options.
func serveOptions(t *testing.T, limits specserve.Limits, p *specserve.Program, change func(*specserve.Options)) *served {
	t.Helper()
	s := &served{t: t, log: &logged{}, asked: make(chan struct{}, 100), dir: filepath.Join(t.TempDir(), "server"), keys: keys.Keys{keys.NewKey(), keys.NewKey()}}
	s.now.Store(1_800_000_000)
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: s.dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	s.pins = certificate.Pins()
	s.access, err = keys.EnsureAccess(keys.Files{Dir: s.dir}, keys.HookProviders())
	require.NoError(t, err)
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	s.set = set
	s.reports = wire.NewReportStore()
	o := specserve.Options{
		Reports: s.reports,
		Version: "1.2.3", Program: p, Spool: t.TempDir(), TLS: certificate.TLS(), Limits: limits, Now: func() time.Time { return time.Unix(s.now.Load(), 0) },
		Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Check: func() { s.asked <- struct{}{} },
	}
	change(&o)
	s.Server = specserve.New(o)
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
	c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: site, Commit: commit, Policies: s.set})
	require.Empty(s.t, found)
	s.Publish(specserve.View{Catalog: c, Keys: s.keys, Access: s.access, Pins: s.pins})
}

func start(t *testing.T) *served {
	t.Helper()
	s := serve(t, unlimited())
	s.publish("3f2c1a9", site())
	return s
}

// mint makes a provisioning token that is good for an hour.
func (s *served) mint(k keys.Key, node string) string {
	s.t.Helper()
	text, err := keys.MintToken(k, keys.Claims{Node: node, Spec: "base", Issued: s.now.Load(), Expires: s.now.Load() + 3600})
	require.NoError(s.t, err)
	return text
}

// answer is what came back.
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
	s := serve(t, specserve.Limits{})
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
	s := serve(t, unlimited())
	secret := s.access.Hook("gitea")
	require.Equal(t, 401, s.ask("GET", "/status", bearer(string(s.access.Read))...).status, "no key is known yet")
	require.Equal(t, 401, s.send("POST", "/hook/gitea", strings.NewReader(push), "X-Gitea-Signature", signature(secret, push)).status)
	s.reports.Put(wire.Report{Identity: "own", At: time.Unix(s.now.Load(), 0)}, time.Unix(s.now.Load(), 0))
	s.Publish(specserve.View{Keys: s.keys, Access: s.access, Pins: s.pins})
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
	s := start(t)
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
	s := start(t)
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

	never, err := keys.MintToken(s.keys[1], keys.Claims{Node: "own", Spec: "base", Issued: 1})
	require.NoError(t, err)
	claims, ok = renewed(never)
	require.True(t, ok)
	require.Zero(t, claims.Expires)
}

// What a caller may fetch is what it sees.
func TestSpecs(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		name    string
		headers []string
		want    string
	}{
		{"from a network", nil, `{"specs":["net"]}`},
		{"site's token", bearer(siteToken), `{"specs":["net","site"]}`},
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
	s := start(t)
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
	s := serve(t, unlimited())
	versions := [2]specserve.View{}
	for i, name := range []string{"even", "odd"} {
		changed := site()
		changed.Domain = name + ".example"
		c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: changed, Commit: name, Policies: s.set})
		require.Empty(t, found)
		versions[i] = specserve.View{Catalog: c, Keys: s.keys, Access: s.access, Pins: []string{name}}
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
