package specserve

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// queued starts a server whose node own has a task.
func queued(t *testing.T) (*served, *tasks.Queue, wire.Task) {
	t.Helper()
	var queue *tasks.Queue
	s := serveOptions(t, unlimited(), nil, func(o *Options) {
		var err error
		queue, err = tasks.Open(tasks.Options{Dir: t.TempDir(), Now: o.Now})
		require.NoError(t, err)
		o.Queue = queue
	})
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: s.dir, Log: discard()})
	require.NoError(t, err)
	s.publish("3f2c1a9", site())
	view := *s.view.Load()
	view.Signer = certificate.Key()
	s.Publish(view)
	asked := wire.Task{
		ID: wire.NewTaskID(), Kind: wire.TaskRun, For: "own", Node: "own", Command: []string{"uptime"}, Timeout: 60,
		Expires: time.Unix(s.now.Load(), 0).Add(time.Hour).UTC(), By: "ann@desk",
	}
	require.NoError(t, queue.Put(asked))
	return s, queue, asked
}

func document(t *testing.T, v any) *strings.Reader {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return strings.NewReader(string(text))
}

// Only the node itself reads and answers its queue.
func TestQueueOfANode(t *testing.T) {
	s, queue, asked := queued(t)
	pins, err := wire.ParsePins(s.pins)
	require.NoError(t, err)
	own, net := bearer(s.mint(s.keys[0], "own")), bearer(s.mint(s.keys[0], "net"))
	result := wire.TaskResult{ID: asked.ID, Outcome: wire.TaskDone, Output: "up\n"}
	for _, others := range [][]string{nil, net, bearer(tokenOfSite), bearer(string(s.access.Operator)), bearer(string(s.access.Read))} {
		require.Contains(t, []int{401, 403}, s.ask("GET", "/queue/own", others...).status)
		require.Contains(t, []int{401, 403}, s.send("POST", "/queue/own", document(t, result), others...).status)
	}
	require.True(t, queue.News("own"), "none of them took it")
	got := s.ask("GET", "/queue/net", net...)
	require.JSONEq(t, `{"version":1,"tasks":[]}`, got.body)

	got = s.ask("GET", "/queue/own", own...)
	list, err := wire.ReadTasks([]byte(got.body), pins, "own")
	require.NoError(t, err)
	require.Equal(t, []wire.Task{asked}, list)
	_, err = wire.ReadTasks([]byte(got.body), pins, "net")
	require.ErrorContains(t, err, `a task is for "own"`, "a copy is worth nothing to another node")

	got = s.send("POST", "/queue/net", document(t, result), net...)
	require.Equal(t, 202, got.status)
	require.JSONEq(t, `{"status":"forgotten"}`, got.body, "it is not its task")
	for range 2 {
		got = s.send("POST", "/queue/own", document(t, result), own...)
		require.JSONEq(t, `{"status":"kept"}`, got.body)
	}
	r, err := queue.Await(t.Context(), "own", asked.ID)
	require.NoError(t, err)
	require.Equal(t, "up\n", r.Output)

	require.Equal(t, 422, s.send("POST", "/queue/own", strings.NewReader(`{"id":"x"}`), own...).status)
	require.Equal(t, 422, s.send("POST", "/queue/own", strings.NewReader(`{"id":"x",`), own...).status, "no JSON")
	result.Output = strings.Repeat("x", wire.MaxTaskOutput+1)
	require.Equal(t, 422, s.send("POST", "/queue/own", document(t, result), own...).status)
	result.Output = strings.Repeat("x", maxLeafResult)
	require.Equal(t, 413, s.send("POST", "/queue/own", document(t, result), own...).status)
	require.Equal(t, "GET, HEAD, POST", s.ask("PUT", "/queue/own", own...).header.Get("Allow"))
}

// A task wakes the node that it is for, if that takes tasks.
func TestATaskWakesItsNode(t *testing.T) {
	queue, err := tasks.Open(tasks.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, Limits{})
		w.o.Queue = queue
		got, older := w.ask(t.Context(), "GET", "/wait/own?queue", w.token), w.ask(t.Context(), "GET", "/wait/own", w.token)
		time.Sleep(10 * time.Second)
		require.NoError(t, queue.Put(wire.Task{ID: wire.NewTaskID(), Kind: wire.TaskPlan, For: "own", Node: "own", Expires: time.Now().Add(time.Hour)}))
		w.Announce("other")
		synctest.Wait()
		require.False(t, got.done())
		w.Announce("own")
		<-got.ended
		require.Equal(t, 10*time.Second, got.took)
		require.JSONEq(t, `{"status":"queue"}`, got.Body.String())
		<-older.ended
		require.Equal(t, http.StatusNoContent, older.Code, "its program does not know tasks")
	})
}

// A task is one only with the signature of the parent.
func TestSignedTasks(t *testing.T) {
	asked := wire.Task{ID: wire.NewTaskID(), Kind: wire.TaskPlan, For: "web-1", Node: "web-1", Expires: time.Date(2026, 11, 27, 1, 0, 0, 0, time.UTC), By: "father"}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for _, key := range []crypto.Signer{ec, rs, ed} {
		signed, err := asked.Sign(key)
		require.NoError(t, err)
		pins := []wire.Pin{{1}, sha256.Sum256(signed.Key)}
		got, err := signed.Open(pins, "web-1")
		require.NoError(t, err)
		require.Equal(t, asked, got)
		_, err = signed.Open(pins[:1], "web-1")
		require.ErrorContains(t, err, "not that of the parent")
		for _, part := range []*[]byte{&signed.Task, &signed.Signature} {
			(*part)[len(*part)/2] ^= 1
			_, err = signed.Open(pins, "web-1")
			require.ErrorContains(t, err, "the signature of a task is not valid")
			(*part)[len(*part)/2] ^= 1
		}
	}
}

// A task for a node goes to the child that has it in the site, whatever another one reports.
func TestNextIsByTheSite(t *testing.T) {
	inner := &model.Node{Name: "inner", Type: model.PVEType}
	m := &model.Manifest{Name: "branch", Host: "branch-7", Nodes: []*model.Node{inner, {Name: "web-3", Type: "vm"}, {Name: "leaf", Type: "vm", Parent: "inner"}}}
	inner.Manifest = m
	site := &model.Site{Hosts: map[string]*model.Host{
		"hub": {Name: "hub"}, "a-branch": {Name: "a-branch", Parent: "hub"}, "branch-7": {Name: "branch-7", Parent: "hub"}, "deep": {Name: "deep", Parent: "branch-7"},
	}, Manifests: map[string]*model.Manifest{"branch": m}}
	s := New(Options{Identity: "hub", Log: discard()})
	nodes := map[string]*Node{"a-branch": {Name: "a-branch", Child: true, Host: true}, "branch-7": {Name: "branch-7", Child: true, Host: true}}
	s.Publish(View{Catalog: &Catalog{in: CatalogInput{Site: site, Agent: "hub"}, nodes: nodes}})
	report := wire.Report{Version: wire.ReportVersion, Identity: "a-branch", At: time.Now()}
	for _, name := range []string{"web-3", "leaf", "inner", "deep", "gone", "hub"} {
		report.Nodes = append(report.Nodes, wire.ReportNode{Name: name, Type: "vm", Parent: "a-branch"})
	}
	require.True(t, s.reports.Put(report, time.Now()))
	for name, n := range map[string]*Node{"push": {}, "pull": {Run: &spec.Run{}}, "config": {Run: &spec.Run{}, Entered: true}, "run": {Run: &spec.Run{Pushed: true}}} {
		n.Name, nodes[name] = name, n
		child, entered := s.Next(name)
		require.Equal(t, []any{name, name == "push" || name == "config"}, []any{child, entered})
		require.Equal(t, name == "push" || name == "run", s.Wake(name) == wire.AskedPushed, name)
	}
	for name, want := range map[string]string{
		"web-3": "branch-7", "leaf": "branch-7", "inner": "branch-7", "deep": "branch-7", "branch-7": "branch-7", "a-branch": "a-branch",
		"hub": "", "gone": "a-branch", "nowhere": "",
	} {
		child, _ := s.Next(name)
		require.Equal(t, want, child, name)
	}
}
