package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func siteOf(nodes ...*model.Node) *model.Site {
	return &model.Site{
		Name:      "home",
		Hosts:     map[string]*model.Host{"father": {Name: "father", API: "https://192.0.2.10:8006"}},
		Specs:     map[string]*model.Spec{"base": {Name: "base"}},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father", Nodes: nodes}},
	}
}

func vm(name string) *model.Node { return &model.Node{Name: name, Type: "vm", Spec: "base"} }

// running is a server that runs until the test ends.
type running struct {
	*Server
	t    *testing.T
	dir  string
	set  *policy.Set
	stop func()
}

func start(t *testing.T, listen string) *running {
	t.Helper()
	return startIn(t, filepath.Join(t.TempDir(), "server"), listen)
}

// startIn starts one with the folder of an earlier one.
func startIn(t *testing.T, dir, listen string, edits ...func(*Server)) *running {
	t.Helper()
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	r := &running{t: t, dir: dir, set: set, Server: NewServer(ServerOptions{
		Options: specserve.Options{Identity: "father", Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Check: func() {}, Status: func() any { return "status" }},
		Listen:  listen, Access: keys.Files{Dir: dir},
	})}
	ctx, cancel := context.WithCancel(t.Context())
	r.RetryAfter(10 * time.Millisecond)
	for _, edit := range edits {
		edit(r.Server)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = func() { cancel(); <-ended }
	t.Cleanup(r.stop)
	return r
}

func (r *running) inForce(id string, s *model.Site) {
	r.InForce(ServedCommit{
		ID: id, Site: s, Policies: r.set,
		Needs:    func() (map[string][]string, error) { return nil, nil },
		Snapshot: func() (*serve.Snapshot, string, error) { return nil, "this test has none", nil },
	})
}

// until waits for a state.
func (r *running) until(is func(State) bool) State {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return is(r.State()) }, 5*time.Minute, 5*time.Millisecond)
	return r.State()
}

func (r *running) get(path, token string) (int, string) {
	r.t.Helper()
	return r.ask(http.MethodGet, path, token, http.NoBody)
}

func (r *running) ask(method, path, token string, body io.Reader) (int, string) {
	r.t.Helper()
	return r.askAt(r.State().Address, method, path, token, body)
}

func (r *running) askAt(address, method, path, token string, body io.Reader) (int, string) {
	r.t.Helper()
	s := r.State()
	pins, err := wire.ParsePins(s.Pins)
	require.NoError(r.t, err)
	transport := &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), DisableKeepAlives: true}
	q, err := http.NewRequestWithContext(r.t.Context(), method, "https://"+address+path, body)
	require.NoError(r.t, err)
	q.Header.Set("Authorization", "Bearer "+token)
	got, err := transport.RoundTrip(q)
	require.NoError(r.t, err)
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	require.NoError(r.t, err)
	return got.StatusCode, string(text)
}

func listening(s State) bool { return len(s.Pins) > 0 && !strings.HasSuffix(s.Address, ":0") }

// The keys of operators count from the start, though no commit is in force, and are followed.
func TestOperatorsNeedNoCommit(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	r.until(listening)
	access, err := (keys.Files{Dir: r.dir}).ReadAccess(nil)
	require.NoError(t, err)
	status, body := r.get("/status", string(access.Read))
	require.Equal(t, 200, status, body)
	require.Equal(t, "\"status\"\n", body)
	status, _ = r.ask(http.MethodPost, "/reconcile", string(access.Operator), http.NoBody)
	require.Equal(t, 202, status)
	status, _ = r.get("/specs", "")
	require.Equal(t, 503, status)
	const other = "another-key-of-an-operator"
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "operator.key"), []byte(other+"\n"), 0o600))
	require.Eventually(t, func() bool {
		status, _ := r.ask(http.MethodPost, "/reconcile", other, http.NoBody)
		return status == 202
	}, 5*time.Minute, 100*time.Millisecond)
}

// The commit in force is served, and the next one; one that cannot be served as a whole changes nothing.
func TestCommitsInForce(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1")))
	r.until(listening)
	p, err := r.Parent("web-1", "base")
	require.NoError(t, err)
	require.Equal(t, "https://"+r.State().Address, p.Server)
	require.Equal(t, r.State().Pins, wire.PinTexts(p.Pins))
	status, body := r.get("/spec/web-1", p.Token)
	require.Equal(t, 200, status, body)

	bad := siteOf(vm("web-1"))
	bad.Specs["base"].Missing = []string{"passwords.x"}
	r.inForce(strings.Repeat("b", 40), bad)
	s := r.State()
	require.ErrorContains(t, s.Err(), "commit bbbbbbbb is not served, the previous one still is: error: secret passwords.x is not known here")
	require.False(t, s.Since.IsZero())
	require.Equal(t, strings.Repeat("a", 40), s.Commit)
	status, _ = r.get("/spec/web-1", p.Token)
	require.Equal(t, 200, status)

	r.inForce(strings.Repeat("c", 40), siteOf(vm("web-1"), vm("web-2")))
	s = r.State()
	require.NoError(t, s.Err())
	require.True(t, s.Since.IsZero())
	require.Equal(t, 2, s.Nodes)
	p2, err := r.Parent("web-2", "base")
	require.NoError(t, err)
	status, _ = r.get("/spec/web-2", p2.Token)
	require.Equal(t, 200, status)
}

// Nothing is done for a commit that is served already, but what failed is tried again.
func TestSameCommit(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	s, asked := siteOf(vm("web-1")), 0
	c := ServedCommit{ID: strings.Repeat("a", 40), Site: s, Policies: r.set, Snapshot: func() (*serve.Snapshot, string, error) {
		asked++
		if asked == 1 {
			return nil, "", errors.New("the disk is full")
		}
		return nil, "none", nil
	}}
	r.InForce(c)
	require.ErrorContains(t, r.State().Err(), "the repository of the site is not served: the disk is full")
	require.Equal(t, c.ID, r.State().Commit, "specs are served nevertheless")
	r.InForce(c)
	require.NoError(t, r.State().Err())
	r.InForce(c)
	require.Equal(t, 2, asked)
	c.LastGood = c.ID
	r.InForce(c)
	r.InForce(c)
	require.Equal(t, 3, asked, "the repository is shown at another commit, too")
	_, err := r.Parent("web-1", "")
	require.Error(t, err)
}

// A port that is in use is a finding; the server comes when the port is free. What was published before
// is served then.
func TestPortInUse(t *testing.T) {
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := start(t, other.Addr().String())
	s := r.until(func(s State) bool { return s.Err() != nil })
	require.ErrorContains(t, s.Err(), "address already in use")
	require.False(t, s.Since.IsZero())
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1")))
	_, err = r.Parent("web-1", "base")
	require.ErrorIs(t, err, ErrNotServing)
	require.Equal(t, 1, r.State().Nodes)
	require.NoError(t, other.Close())
	s = r.until(listening)
	require.NoError(t, s.Err())
	_, err = r.Parent("web-1", "base")
	require.NoError(t, err)
}

// A rotated key and a replaced one are noticed while it runs, and a start finds what the last one made.
func TestKeys(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1")))
	pins := r.until(listening).Pins
	access, err := (keys.Files{Dir: r.dir}).ReadAccess(nil)
	require.NoError(t, err)
	status, body := r.get("/status", string(access.Read))
	require.Equal(t, 200, status)
	require.JSONEq(t, `"status"`, body)
	p, err := r.Parent("web-1", "base")
	require.NoError(t, err)
	_, err = keys.Folder(r.dir).Rotate(time.Now())
	require.NoError(t, err)
	_, err = keys.Folder(r.dir).Rotate(time.Now())
	require.NoError(t, err)
	require.Eventually(t, func() bool { status, _ := r.get("/spec/web-1", p.Token); return status == 401 }, 5*time.Minute, 50*time.Millisecond)
	p, err = r.Parent("web-1", "base")
	require.NoError(t, err)
	require.Eventually(t, func() bool { status, _ := r.get("/spec/web-1", p.Token); return status == 200 }, 5*time.Minute, 50*time.Millisecond)
	require.Equal(t, pins, r.State().Pins)
	r.stop()
	_, err = r.Parent("web-1", "base")
	require.ErrorIs(t, err, ErrNotServing, "the server does not listen any more")
}

// Where nodes reach the server is what listen says, or the site, or the host that the agent runs on.
func TestAddress(t *testing.T) {
	r := start(t, "0.0.0.0:0")
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1")))
	port := func() string { _, port, _ := net.SplitHostPort(r.until(listening).Address); return port }
	port()
	_, err := r.Parent("web-1", "base")
	require.ErrorContains(t, err, "set server_url in the site")
	s := siteOf(vm("web-1"))
	s.Hosts["father"].API = "https://localhost:8006"
	r.inForce(strings.Repeat("b", 40), s)
	p, err := r.Parent("web-1", "base")
	require.NoError(t, err)
	require.Equal(t, "https://localhost:"+port(), p.Server)
	s = siteOf(vm("web-1"))
	s.ServerURL = "https://gitops.home.example:8443/"
	r.inForce(strings.Repeat("c", 40), s)
	p, err = r.Parent("web-1", "base")
	require.NoError(t, err)
	require.Equal(t, "https://gitops.home.example:8443", p.Server)
}

func TestTree(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1"), &model.Node{Name: "inner", Type: "pve", Spec: "base"}))
	now := time.Now()
	own := wire.Report{Version: 1, Identity: "father", At: now, Phase: wire.PhaseRun, Ready: true, Nodes: []wire.ReportNode{
		{Name: "inner", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true}, {Name: "web-1", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true},
	}}
	tree := r.Tree(own, now)
	text, err := json.Marshal(tree.Nodes)
	require.NoError(t, err)
	require.Contains(t, string(text), `"type":"pve"`)
	require.Equal(t, "has not reported yet", tree.Nodes[0].Error)
	require.False(t, tree.Ready)
	require.True(t, tree.Nodes[1].Ready, "a node that is pushed to reports nothing")
}

// Reports of nodes are known after a restart, but not that a child is empty: its guest is destroyed on that word.
func TestReportsAreKept(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	child := &model.Node{Name: "inner", Type: "pve", Spec: "base"}
	empty := func(r *running) bool {
		return slices.ContainsFunc(r.Reports(), func(r wire.ReceivedReport) bool { return r.Identity == "inner" && r.Empty })
	}
	r.inForce(strings.Repeat("a", 40), siteOf(vm("web-1"), child))
	r.until(listening)
	for _, node := range []string{"web-1", "inner"} {
		p, err := r.Parent(node, "base")
		require.NoError(t, err)
		body, err := json.Marshal(wire.Report{
			Version: wire.ReportVersion, Identity: node, Agent: "1", Commit: strings.Repeat("a", 40), At: time.Now(), Phase: wire.PhaseRun, Ready: true, Empty: node == "inner",
		})
		require.NoError(t, err)
		status, text := r.ask(http.MethodPost, "/report/"+node, p.Token, bytes.NewReader(body))
		require.Equal(t, 202, status, text)
	}
	require.True(t, empty(r))
	r.stop()

	again := startIn(t, r.dir, "127.0.0.1:0")
	again.inForce(strings.Repeat("a", 40), siteOf(vm("web-1"), child))
	again.until(listening)
	saw, err := again.Reported("web-1")
	require.NoError(t, err)
	require.Contains(t, saw, "it reported that it is ready")
	require.True(t, again.HasReported("inner"))
	require.False(t, empty(again))
}

// A resolver that does not answer delays only a request for the address, and only for a moment. Meanwhile its last answer counts.
func TestASlowResolverDelaysNoRequest(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan net.Conn)
	r := startIn(t, filepath.Join(t.TempDir(), "server"), "0.0.0.0:0", func(s *Server) {
		s.DialAbove("https://father.example:44443", func(ctx context.Context, _, address string) (net.Conn, error) {
			require.Equal(t, "father.example:44443", address)
			_, bounded := ctx.Deadline()
			require.True(t, bounded)
			asked <- struct{}{}
			return <-answer, nil
		})
	})
	child := siteOf(vm("app"))
	child.Hosts["father"] = &model.Host{Name: "father", Local: true, Bridge: "no-such-bridge"}
	r.inForce("c1", child)
	r.until(func(s State) bool { return len(s.Pins) > 0 && s.Commit == "c1" })
	known := make(chan string, 2)
	for range 2 {
		go func() {
			p, err := r.Known()
			known <- fmt.Sprint(p.Server, err)
		}()
	}
	<-asked
	_, port, err := net.SplitHostPort(r.State().Address)
	require.NoError(t, err)
	code, _ := r.askAt("127.0.0.1:"+port, http.MethodGet, "/health", "", http.NoBody)
	require.Equal(t, http.StatusOK, code)
	require.ErrorContains(t, r.Accepts("app", "no token"), "token", "it uses what the server owns")
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	answer <- addressed{near}
	for range 2 {
		require.Equal(t, "https://192.0.2.77:"+port+"<nil>", <-known, "one question is enough for both")
	}
}

// addressed is a connection from an address.
type addressed struct{ net.Conn }

func (addressed) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 77), Port: 4711} }

// A revocation counts at once and over a restart, shows in the tree, and makes the node one that the next pass gives a token.
func TestS8RevokedWhileServing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	r := startIn(t, dir, "127.0.0.1:0")
	serving := func() {
		r.until(listening)
		r.inForce("4444444444444444444444444444444444444444", siteOf(vm("web-1"), vm("web-2")))
	}
	serving()
	given := map[string]string{}
	for _, name := range []string{"web-1", "web-2"} {
		p, err := r.Parent(name, "base")
		require.NoError(t, err)
		given[name] = p.Token
		body, err := json.Marshal(wire.Report{Version: wire.ReportVersion, Identity: name, Agent: "1", At: time.Now(), Phase: wire.PhaseRun, Ready: true})
		require.NoError(t, err)
		status, text := r.ask(http.MethodPost, "/report/"+name, p.Token, bytes.NewReader(body))
		require.Equal(t, 202, status, text)
		require.True(t, r.HasReported(name))
	}
	tree := func(node string) wire.ReportNode {
		own := wire.Report{Version: 1, Identity: "father", Phase: wire.PhaseRun, At: time.Now()}
		for name := range given {
			own.Nodes = append(own.Nodes, wire.ReportNode{Name: name, Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true})
		}
		for _, n := range r.Tree(own, time.Now()).Nodes {
			if n.Name == node {
				return n
			}
		}
		return wire.ReportNode{}
	}
	require.True(t, tree("web-1").Ready)

	_, err := keys.Folder(dir).Revoke("web-1", time.Now())
	require.NoError(t, err)
	for range 2 {
		status, body := r.get("/spec/web-1", given["web-1"])
		require.Equal(t, 401, status, body)
		require.ErrorContains(t, r.Accepts("web-1", given["web-1"]), "the token was revoked")
		require.NoError(t, r.Accepts("web-2", given["web-2"]))
		r.CheckNow()
		require.False(t, r.HasReported("web-1"), "its report was from before")
		require.True(t, r.HasReported("web-2"))
		require.Contains(t, tree("web-1").Error, "its tokens were revoked at")
		require.False(t, tree("web-1").Ready)
		require.True(t, tree("web-2").Ready)
		r.stop()
		r = startIn(t, dir, "127.0.0.1:0")
		serving()
	}
	p, err := r.Parent("web-1", "base")
	require.NoError(t, err)
	status, body := r.get("/spec/web-1", p.Token)
	require.Equal(t, 200, status, body)
	require.True(t, tree("web-1").Ready)
}

// A revocation is something new, also when a request noticed it first; a token that was minted is not.
func TestS8ARevocationIsNoticed(t *testing.T) {
	dir := t.TempDir()
	k, err := openCredentials(credentialsOptions{Access: keys.Files{Dir: dir}, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	k.Check()
	require.False(t, k.Check())
	minted, err := keys.Folder(dir).Mint("web-1", "base", time.Hour, time.Now())
	require.NoError(t, err)
	require.False(t, k.Check(), "no task waits for that")
	_, err = keys.Folder(dir).Revoke("web-1", time.Now())
	require.NoError(t, err)
	_, err = k.Ring().Tokens().VerifyBy(k.Book(), minted.Token, "web-1", time.Now())
	require.ErrorContains(t, err, "revoked")
	require.True(t, k.Check())
	require.False(t, k.Check())
}
