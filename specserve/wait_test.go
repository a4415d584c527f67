package specserve

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// waiting is a server whose node, own, waits.
type waiting struct {
	*Server
	t     *testing.T
	token string
	view  View
}

func newWaiting(t *testing.T, l Limits) *waiting {
	t.Helper()
	c, token := tinyCatalog(t)
	w := &waiting{New(Options{Log: discard(), Limits: l}), t, token, View{Catalog: c, Access: keys.Access{Operator: []byte("operator")}, Pins: []string{"a", "b"}}}
	w.Publish(w.view)
	return w
}

// moved has another spec for the node, or none.
func (w *waiting) moved(name string) View {
	w.t.Helper()
	set, found := policy.Compile(w.t.Context(), policy.Options{})
	require.Empty(w.t, found)
	c, found := MakeCatalog(CatalogInput{Policies: set, Site: &model.Site{
		Domain:    "other.example",
		Postures:  map[string]*model.Posture{"prod": {Name: "prod", Auth: &model.Auth{Method: "node_token"}}},
		Specs:     map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Posture: "prod"}}},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father", Nodes: []*model.Node{{Name: name, Mode: model.ModePull, Spec: "base"}}}},
	}})
	require.Empty(w.t, found)
	next := w.view
	next.Catalog = c
	return next
}

// asked is a request and how it ended.
type asked struct {
	*httptest.ResponseRecorder
	took  time.Duration
	ended chan struct{}
}

func (a *asked) done() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// ask sends a request of its own goroutine; synctest.Wait says when there is nothing left to do.
func (w *waiting) ask(ctx context.Context, method, path, token string, headers ...string) *asked {
	out := &asked{ResponseRecorder: httptest.NewRecorder(), ended: make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, method, "https://x"+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	began := time.Now()
	go func() {
		w.ServeHTTP(out, r)
		out.took = time.Since(began)
		close(out.ended)
	}()
	synctest.Wait()
	return out
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		wait := func(headers ...string) *asked { return w.ask(t.Context(), "GET", "/wait/own", w.token, headers...) }

		// Nothing happens.
		got := wait()
		require.False(t, got.done())
		<-got.ended
		require.Equal(t, 55*time.Second, got.took)
		require.Equal(t, 204, got.Code)
		require.Empty(t, got.Body.String())

		// The same spec is published again, and then another one.
		got = wait()
		<-time.After(10 * time.Second)
		w.Publish(w.view)
		synctest.Wait()
		require.False(t, got.done())
		next := w.moved("own")
		w.Publish(next)
		<-got.ended
		require.Equal(t, 10*time.Second, got.took)
		require.Equal(t, 200, got.Code)
		require.JSONEq(t, `{"status":"spec"}`, got.Body.String())

		// A node that says which spec it has misses nothing.
		tag := w.ask(t.Context(), "GET", "/spec/own", w.token).Header().Get("Etag")
		require.Empty(t, tag, "its token left the site")
		w.Publish(w.view)
		tag = w.ask(t.Context(), "GET", "/spec/own", w.token).Header().Get("Etag")
		require.NotEmpty(t, tag)
		got = wait("If-None-Match", `"of-before"`)
		<-got.ended
		require.JSONEq(t, `{"status":"spec"}`, got.Body.String())
		got = wait("If-None-Match", tag)
		require.False(t, got.done())

		// The operator wants all nodes, or one, to check themselves.
		for _, path := range []string{"/reconcile/own", "/reconcile"} {
			got = wait()
			require.Equal(t, 202, w.ask(t.Context(), "POST", path, "operator").Code)
			<-got.ended
			require.JSONEq(t, `{"status":"reconcile"}`, got.Body.String())
		}
		require.Equal(t, 404, w.ask(t.Context(), "POST", "/reconcile/other", "operator").Code)

		// The node leaves the site.
		got = wait()
		w.Publish(w.moved("other"))
		<-got.ended
		require.Equal(t, 404, got.Code)

		require.Empty(t, w.waiting.all)
		require.Empty(t, w.waiting.by)
	})
}

// Whom the operator means is woken, whatever children report of it.
func TestNoReportCapturesAWake(t *testing.T) {
	w := newWaiting(t, Limits{})
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	nodes := []*model.Node{{Name: "own", Type: "vm", Mode: model.ModePull}, {Name: "annex", Type: "pve"}, {Name: "inner", Type: "pve"}}
	pushed := &model.Node{Name: "pushed", Type: "vm", Mode: model.ModePush, Spec: "base"}
	for _, n := range nodes {
		n.Spec = "base"
	}
	c, found := MakeCatalog(CatalogInput{Policies: set, Site: &model.Site{
		Specs:     map[string]*model.Spec{"base": {Name: "base"}},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father", Nodes: append(nodes, pushed)}},
	}})
	require.Empty(t, found)
	w.Publish(View{Catalog: c})
	at := time.Now()
	put := func(identity string, nodes ...wire.ReportNode) {
		r := wire.Report{Identity: identity, At: at, Nodes: nodes}
		require.True(t, w.reports.Put(r, at))
	}
	// annex says that it has a node of this server, and that one of inner is far below itself.
	put("annex", wire.ReportNode{Name: "own", Parent: "annex"}, wire.ReportNode{Name: "inner", Parent: "annex"}, wire.ReportNode{Name: "store", Parent: "annex"}, wire.ReportNode{Name: "app", Parent: "store"})
	put("inner", wire.ReportNode{Name: "app", Parent: "inner"})
	all := map[string]*waiter{}
	for _, n := range nodes {
		all[n.Name] = w.waiting.enter(n.Name, w.o.Limits)
	}
	for node, woken := range map[string]string{"own": "own", "annex": "annex", "inner": "inner", "app": "inner", "store": "annex"} {
		require.Equal(t, wire.AskedChecking, w.Wake(node), node)
		for name, one := range all {
			require.Equal(t, name == woken, len(one.reconcile) == 1, "%s for %s", name, node)
		}
		<-all[woken].reconcile
		q, _ := w.waiting.answer(all[woken])
		require.Equal(t, woken != node, slices.Contains(q.below, node), "%s hears of %s", woken, node)
	}
	lost := func(node string) {
		require.Equal(t, wire.AskedUnknown, w.Wake(node), node)
	}
	lost("nobody")
	// Nor does a report of a child that is not served any more.
	put("gone", wire.ReportNode{Name: "lost", Parent: "gone"})
	lost("lost")
	// A node in mode push does not wait.
	require.Equal(t, wire.AskedPushed, w.Wake("pushed"))

	// While the child does not wait it is kept for it, once for each node and of so many nodes.
	w.waiting.leave(all["inner"])
	below := []wire.ReportNode{{Name: "app", Parent: "inner"}}
	for i := range 2 * mostBelow {
		below = append(below, wire.ReportNode{Name: fmt.Sprintf("app-%d", i), Parent: "inner"})
	}
	put("inner", below...)
	for range 2 {
		for _, n := range below {
			require.Equal(t, wire.AskedKept, w.Wake(n.Name), n.Name)
		}
	}
	require.Len(t, w.waiting.kept, 1)
	again := w.waiting.enter("inner", w.o.Limits)
	<-again.reconcile
	q, _ := w.waiting.answer(again)
	require.Len(t, q.below, mostBelow)
	require.Equal(t, "app", q.below[0])
	require.Empty(t, w.waiting.kept)
}

// A request of an operator for a node that does not wait now is kept until it waits again, and the answer says so.
func TestAWakeBetweenTwoPollsIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		wait := func() *asked { return w.ask(t.Context(), "GET", "/wait/own", w.token) }
		ask := func(status string) {
			t.Helper()
			got := w.ask(t.Context(), "POST", "/reconcile/own", "operator")
			require.Equal(t, 202, got.Code)
			require.JSONEq(t, `{"status":"`+status+`"}`, got.Body.String())
		}
		poll := wait()
		<-poll.ended
		require.Equal(t, 204, poll.Code)
		ask("kept")
		ask("kept")
		poll = wait()
		require.True(t, poll.done(), "it does not wait for what happened before")
		require.JSONEq(t, `{"status":"reconcile"}`, poll.Body.String())
		poll = wait()
		require.False(t, poll.done(), "once is enough")
		ask("checking")
		require.True(t, poll.done())

		// Its connection breaks as it is asked.
		ctx, cancel := context.WithCancel(t.Context())
		poll = w.ask(ctx, "GET", "/wait/own", w.token)
		for one := range w.waiting.all {
			w.waiting.mutex.Lock()
			one.asked = &inquiry{} // and the end of the connection is noticed first
			w.waiting.mutex.Unlock()
		}
		cancel()
		<-poll.ended
		poll = wait()
		require.True(t, poll.done())

		// A node that leaves the site is forgotten.
		ask("kept")
		w.Publish(w.moved("other"))
		require.Empty(t, w.waiting.kept)
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		gone, cancel := context.WithCancel(t.Context())
		got := w.ask(gone, "GET", "/wait/own", w.token)
		cancel()
		<-got.ended
		require.True(t, got.done(), "the node went away")
		got = w.ask(t.Context(), "GET", "/wait/own", w.token)
		close(w.ending)
		<-got.ended
		require.True(t, got.done())
		require.Equal(t, 204, got.Code)
		require.Empty(t, w.waiting.all)
	})
}

func TestWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		first := w.ask(t.Context(), "GET", "/wait/own", w.token)
		w.ask(t.Context(), "GET", "/wait/own", w.token)
		got := w.ask(t.Context(), "GET", "/wait/own", w.token)
		require.Equal(t, 429, got.Code)
		require.Equal(t, "14", got.Header().Get("Retry-After"))
		require.False(t, first.done())
		<-time.After(time.Minute)
		require.False(t, w.ask(t.Context(), "GET", "/wait/own", w.token).done())
		<-time.After(time.Minute)

		for _, c := range []struct {
			path, token string
			status      int
		}{
			{"/wait/own", "x", 401}, {"/wait/other", w.token, 403},
		} {
			require.Equal(t, c.status, w.ask(t.Context(), "GET", c.path, c.token).Code)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := Usual()
		l.Waiters = 1
		w := newWaiting(t, l)
		w.ask(t.Context(), "GET", "/wait/own", w.token)
		require.Equal(t, 429, w.ask(t.Context(), "GET", "/wait/own", w.token).Code)
		<-time.After(time.Minute)
	})
}

// A revocation ends the request of a node that waits at once.
func TestS8ARevocationEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		dir := t.TempDir()
		ring, err := keys.Folder(dir).Ensure(time.Now())
		require.NoError(t, err)
		minted, err := keys.Folder(dir).Mint("own", "base", 0, time.Now())
		require.NoError(t, err)
		w.view.Keys = ring.Tokens()
		w.view.Book, err = keys.Folder(dir).OpenBook()
		require.NoError(t, err)
		w.Publish(w.view)
		revoked := w.ask(t.Context(), "GET", "/wait/own", minted.Token)
		other := w.ask(t.Context(), "GET", "/wait/own", w.token)
		require.False(t, revoked.done())
		_, err = keys.Folder(dir).Revoke("own", time.Now())
		require.NoError(t, err)
		w.Publish(w.view) // as the server does once it has noticed it
		<-revoked.ended
		require.Zero(t, revoked.took)
		require.Equal(t, 401, revoked.Code)
		require.Contains(t, revoked.Body.String(), "E301")
		require.False(t, other.done(), "a token of the site is its own matter")
		<-other.ended
	})
}
