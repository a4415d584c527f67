package client

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// above is a parent in memory. Its fields are changed under the mutex: requests come side by side.
type above struct {
	mutex   sync.Mutex
	t       *testing.T
	server  *http.Server
	pin     wire.Pin
	network machine.Net
	away    bool
	reports []time.Duration // since the beginning
	tokens  []string        // that reports came with
	commit  string
	token   string // that is renewed; "" for none
	leaving bool
	lost    bool   // it knows no key of the child
	keyless bool   // it knows that the child has no key
	minted  string // the token that it gives the child in its file; "" for the first
	wake    chan string
	hasty   bool // it answers each long poll at once
	polls   int
	began   time.Time
}

func newAbove(t *testing.T) *above {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &above{t: t, pin: wire.PinOf(leaf), wake: make(chan string), commit: strings.Repeat("a", 40), began: time.Now()}
	a.server = &http.Server{Handler: a, TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, ReadHeaderTimeout: time.Hour, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	ln, err := a.network.Listen(parentAt, parentAt)
	require.NoError(t, err)
	go func() { _ = a.server.ServeTLS(ln, "", "") }()
	return a
}

// parentAt is where it listens.
var parentAt = netip.MustParseAddrPort("192.0.2.1:44443")

func (a *above) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a.mutex.Lock()
	away := a.away
	a.mutex.Unlock()
	if away {
		return nil, os.ErrDeadlineExceeded
	}
	return a.network.Dial(ctx, parentAt, parentAt)
}

// ServeHTTP implements http.Handler.
func (a *above) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what := strings.Split(r.URL.Path, "/")[1]
	if what == "wait" {
		a.mutex.Lock()
		a.polls++
		hasty := a.hasty
		a.mutex.Unlock()
		if hasty {
			_, _ = w.Write([]byte(`{"status":"reconcile"}`))
			return
		}
		select {
		case status := <-a.wake:
			status, node, _ := strings.Cut(status, " ")
			_, _ = fmt.Fprintf(w, `{"status":%q,"nodes":[%q]}`, status, node)
		case <-time.After(55 * time.Second):
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
		return
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if what == "report" {
		a.reports = append(a.reports, time.Since(a.began).Round(time.Second))
		a.tokens = append(a.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if tag := `"` + a.commit + `"`; r.Header.Get("If-None-Match") == tag && a.token == "" {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Etag", `"`+a.commit+`"`)
	document := map[string]any{"version": 1, "identity": "inner", "commit": a.commit, "leaving": a.leaving, "pins": []string{a.pin.String()}, "token": a.token}
	switch {
	case a.keyless:
		document["secrets"] = map[string]any{"passwords": map[string]any{"app": nil}, "auth": map[string]any{"ownership_key": nil, "ownership_keys.inner": nil}}
	case !a.leaving && a.lost:
		document["secrets"] = map[string]any{"passwords": map[string]any{"app": nil, "new": nil}, "auth": map[string]any{"ownership_key": nil}}
	case !a.leaving:
		document["secrets"] = map[string]any{"passwords": map[string]any{"app": "canary", "other": nil}, "auth": map[string]any{"ownership_key": nil, "ownership_keys.inner": "first of inner", "ownership_keys.leaf": "of leaf"}}
	case a.lost:
		document["secrets"] = map[string]any{"auth": map[string]any{"ownership_key": nil}}
	default:
		document["secrets"] = map[string]any{"auth": map[string]any{"ownership_keys.inner": "of inner"}}
	}
	a.token = ""
	_ = json.NewEncoder(w).Encode(document)
}

func (a *above) set(change func()) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	change()
}

func (a *above) counted() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return len(a.reports)
}

// child is an uplink that runs.
type child struct {
	*Uplink
	above  *above
	file   string
	checks chan struct{}
	woken  chan string
	stop   func()
}

func (a *above) given() wire.Parent {
	return wire.Parent{Identity: "inner", Server: "https://192.0.2.10:44443", Pins: []wire.Pin{a.pin, {1}}, Token: cmp.Or(a.minted, "first.token")}
}

func (a *above) child(file string) *child {
	a.t.Helper()
	c := &child{above: a, file: file, checks: make(chan struct{}, 100), woken: make(chan string, 100)}
	var err error
	c.Uplink, err = OpenUplink(UplinkOptions{
		Given: a.given(), File: file, Agent: "test", Every: time.Minute, Log: slog.New(slog.DiscardHandler),
		Report: func() ([]byte, error) { return []byte("{}"), nil }, Check: func() { c.checks <- struct{}{} }, Wake: func(node string) { c.woken <- node }, Dial: a.dial,
	})
	require.NoError(a.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	c.stop = func() { cancel(); <-ended }
	return c
}

func (a *above) end() {
	_ = a.server.Close()
	<-time.After(time.Minute) // TLS takes seconds to say goodbye to a pipe without a reader
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A report comes after every pass, and when there was none for a minute; a parent that is away for hours is
// asked now and then, and nothing else changes.
func TestReports(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		c := a.child(file)
		defer c.stop()
		pass(10 * time.Second)
		require.Equal(t, 1, a.counted(), "one at the start")
		c.PassEnded()
		c.PassEnded()
		pass(time.Second)
		require.Equal(t, 2, a.counted(), "one after passes that ended together")
		pass(10 * time.Minute)
		quiet := a.counted() - 2
		require.InDelta(t, 10, quiet, 2.5, "one a minute, a fifth more or less")
		require.NoError(t, c.State().Err)

		a.set(func() { a.away = true })
		pass(6 * time.Hour)
		before := a.counted()
		s := c.State()
		require.Error(t, s.Err)
		require.WithinDuration(t, time.Now().Add(-6*time.Hour), s.Since, 2*time.Minute)
		require.Len(t, c.checks, 1, "nothing is checked for that; the one is for the first configuration")
		a.set(func() { a.away = false })
		pass(3 * time.Minute)
		require.Greater(t, a.counted(), before)
		require.NoError(t, c.State().Err)
		require.True(t, c.State().Since.IsZero())
	})
}

// A parent that answers each long poll at once is not asked in a loop, and is still heard soon.
func TestHastyParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		a.hasty = true
		c := a.child(file)
		defer c.stop()
		pass(time.Minute)
		a.mutex.Lock()
		polls := a.polls
		a.mutex.Unlock()
		require.GreaterOrEqual(t, polls, 20)
		require.LessOrEqual(t, polls, 40, "no more than one in two seconds, give or take a fifth")
		a.set(func() { a.hasty = false })
		pass(5 * time.Second)
		for len(c.checks) > 0 {
			<-c.checks
		}
		pass(20 * time.Second)
		began := time.Now()
		a.wake <- "reconcile app"
		<-c.checks
		require.Equal(t, "app", <-c.woken, "a node further down is asked in turn")
		require.Zero(t, time.Since(began), "after a poll that lasted, nothing waits")
	})
}

// TestS1KeysOutliveTheParent: a child left the site, and its parent lost its data: it knows the keys of the child no more, and enters
// it with new credentials. The child still has its keys, with which it empties its host, and no other secret.
func TestS1KeysOutliveTheParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		c := a.child(file)
		synctest.Wait()
		require.Equal(t, "of leaf", *c.Config().Secrets["auth"]["ownership_keys.leaf"])
		c.stop()
		a.set(func() { a.leaving, a.lost, a.minted, a.commit = true, true, "minted.token", strings.Repeat("b", 40) })
		before, err := OpenUplink(UplinkOptions{Given: a.given(), File: file, Every: time.Minute})
		require.NoError(t, err)
		require.Nil(t, before.Config())
		c = a.child(file)
		synctest.Wait()
		c.stop()
		inner, leaf := "first of inner", "of leaf"
		require.Equal(t, map[string]map[string]*string{"auth": {"ownership_key": nil, "ownership_keys.inner": &inner, "ownership_keys.leaf": &leaf}}, c.Config().Secrets)
		again, err := OpenUplink(UplinkOptions{Given: a.given(), File: file, Every: time.Minute})
		require.NoError(t, err)
		require.Equal(t, &leaf, again.Config().Secrets["auth"]["ownership_keys.leaf"])
	})
}

// TestS1KeysOutliveASlowRepository: a commit withdraws a child. Its parent has the secrets of that commit already, which lack those
// of the child, and still works from the commit before, since the repository does not answer. The child keeps what it has, and can
// empty its host when the parent has the commit too. A parent that knows the child again can withdraw a secret.
func TestS1KeysOutliveASlowRepository(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		answer := func(commit string, lost, leaving bool) map[string]map[string]*string {
			a.set(func() { a.commit, a.lost, a.leaving = strings.Repeat(commit, 40), lost, leaving })
			c := a.child(file)
			synctest.Wait()
			c.stop()
			return c.Config().Secrets
		}
		app, inner, second, leaf := "canary", "first of inner", "of inner", "of leaf"
		auth := map[string]*string{"ownership_key": nil, "ownership_keys.inner": &inner, "ownership_keys.leaf": &leaf}
		require.Equal(t, map[string]map[string]*string{"passwords": {"app": &app, "other": nil}, "auth": auth}, answer("a", false, false))
		kept := map[string]map[string]*string{"passwords": {"app": &app, "other": nil, "new": nil}, "auth": auth}
		require.Equal(t, kept, answer("b", true, false))
		require.Equal(t, kept, answer("c", true, true))
		delete(auth, "ownership_key")
		auth["ownership_keys.inner"] = &second
		require.Equal(t, kept, answer("d", false, true))
		require.Equal(t, map[string]*string{"app": &app, "other": nil}, answer("e", false, false)["passwords"])
	})
}

// TestS1AChildWithoutAKeyKeepsNoSecret: the parent has derived keys, and none for this child. The child keeps its ownership keys,
// and no secret that was withdrawn.
func TestS1AChildWithoutAKeyKeepsNoSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		answer := func(commit string, keyless bool) map[string]map[string]*string {
			a.set(func() { a.commit, a.keyless = strings.Repeat(commit, 40), keyless })
			c := a.child(file)
			synctest.Wait()
			c.stop()
			return c.Config().Secrets
		}
		require.Equal(t, "canary", *answer("a", false)["passwords"]["app"])
		inner, leaf := "first of inner", "of leaf"
		require.Equal(t, map[string]map[string]*string{
			"passwords": {"app": nil}, "auth": {"ownership_key": nil, "ownership_keys.inner": &inner, "ownership_keys.leaf": &leaf},
		}, answer("b", true))
	})
}

// A new commit and a wish of the operator wake the child at once. What is renewed is kept, mode 0600, and
// counts after a restart, until the administrator writes something else.
func TestWaitAndKeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parent.json")
	synctest.Test(t, func(t *testing.T) {
		a := newAbove(t)
		defer a.end()
		c := a.child(file)
		synctest.Wait()
		require.Len(t, c.checks, 1, "the first configuration")
		<-c.checks
		require.Equal(t, "canary", *c.Config().Secrets["passwords"]["app"])
		a.wake <- "reconcile"
		synctest.Wait()
		require.Len(t, c.checks, 1)
		<-c.checks
		pass(2 * time.Minute)
		require.Empty(t, c.checks, "nothing is new")
		a.set(func() { a.commit, a.token = strings.Repeat("b", 40), "second.token" })
		a.wake <- "config"
		synctest.Wait()
		require.Len(t, c.checks, 1)
		require.Equal(t, strings.Repeat("b", 40), c.Config().Commit)
		require.Equal(t, "second.token", c.Parent().Token)
		require.Equal(t, []wire.Pin{a.pin}, c.Parent().Pins)
		require.Empty(t, c.Config().Token)
		c.PassEnded()
		pass(10 * time.Second)
		require.Equal(t, "second.token", a.tokens[len(a.tokens)-1])

		// A child that leaves keeps the secrets that it has.
		a.set(func() { a.commit, a.leaving = strings.Repeat("c", 40), true })
		a.wake <- "config"
		synctest.Wait()
		require.True(t, c.Config().Removed)
		require.Equal(t, "canary", *c.Config().Secrets["passwords"]["app"])
		keys := map[string]string{}
		for name, key := range c.Config().Secrets["auth"] {
			keys[name] = *key
		}
		require.Equal(t, map[string]string{"ownership_keys.leaf": "of leaf", "ownership_keys.inner": "of inner"}, keys, "what it is given, and what its own children need")
		c.stop()

		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		again := a.child(file)
		require.Equal(t, "second.token", again.Parent().Token)
		synctest.Wait()
		require.True(t, again.Config().Removed)
		again.stop()
		alone, err := OpenUplink(UplinkOptions{Given: a.given(), File: file, Every: time.Minute})
		require.NoError(t, err)
		require.False(t, alone.Config().Removed, "that has to be heard, and not remembered")
		require.Equal(t, "canary", *alone.Config().Secrets["passwords"]["app"])

		other := a.given()
		other.Token = "third.token"
		replaced, err := OpenUplink(UplinkOptions{Given: other, File: file, Every: time.Minute})
		require.NoError(t, err)
		require.Equal(t, "third.token", replaced.Parent().Token, "the administrator gave it another one")
		require.Nil(t, replaced.Config())
	})
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err := OpenUplink(UplinkOptions{Given: wire.Parent{Identity: "inner", Server: "https://192.0.2.10:44443", Pins: []wire.Pin{{1}}}, File: file})
	require.ErrorContains(t, err, "remove it: the agent then asks its parent")
}
