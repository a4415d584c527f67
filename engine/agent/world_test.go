package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// repo is a repository of sites. A branch is a list of commits, the newest last.
type repo struct {
	mu      sync.Mutex
	branch  []model.Commit
	fetched map[string]model.Commit // the local copy
	sites   map[string]engine.Desired
	down    error
	heads   int
	head    string // what the branch points to, "" for its end
	kept    []string
	before  func(ctx context.Context, call string) // of every call, may panic or block
}

func newRepo() *repo {
	return &repo{fetched: map[string]model.Commit{}, sites: map[string]engine.Desired{}}
}

// push puts a commit on top of the branch; trailers are "Key: value".
func (r *repo) push(id string, d engine.Desired, trailers ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := model.Commit{ID: id, Subject: "about " + id, Author: model.Person{Name: "Ada"}, Trailers: map[string]string{}}
	for _, t := range trailers {
		key, value, _ := strings.Cut(t, ": ")
		c.Trailers[key] = value
	}
	r.branch, r.sites[id] = append(r.branch, c), d
}

// rewrite throws the branch away, as a forced push does.
func (r *repo) rewrite(id string, d engine.Desired, trailers ...string) {
	r.mu.Lock()
	r.branch = nil
	r.mu.Unlock()
	r.push(id, d, trailers...)
}

func (r *repo) fault(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

func (r *repo) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heads
}

func (r *repo) call(ctx context.Context, what string) {
	r.mu.Lock()
	if before := r.before; before != nil {
		r.mu.Unlock()
		before(ctx, what)
		r.mu.Lock()
	}
}

func (r *repo) Head(ctx context.Context) (model.Commit, error) {
	r.call(ctx, "head")
	defer r.mu.Unlock()
	r.heads++
	switch {
	case ctx.Err() != nil:
		return model.Commit{}, ctx.Err()
	case r.down != nil:
		return model.Commit{}, r.down
	case len(r.branch) == 0:
		return model.Commit{}, errors.New("the branch is empty")
	}
	for _, c := range r.branch {
		r.fetched[c.ID] = c
	}
	if c, ok := r.fetched[r.head]; ok {
		return c, nil
	}
	return r.branch[len(r.branch)-1], nil
}

func (r *repo) Commit(ctx context.Context, id string) (model.Commit, error) {
	r.call(ctx, "commit")
	defer r.mu.Unlock()
	c, ok := r.fetched[id]
	if !ok {
		return model.Commit{}, fmt.Errorf("no commit %s", id)
	}
	return c, nil
}

func (r *repo) Since(ctx context.Context, from, to string) ([]model.Commit, error) {
	r.call(ctx, "since")
	defer r.mu.Unlock()
	at := func(id string) int {
		return slices.IndexFunc(r.branch, func(c model.Commit) bool { return c.ID == id })
	}
	if at(from) < 0 || at(to) < at(from) {
		return nil, model.ErrUnrelated
	}
	out := slices.Clone(r.branch[at(from)+1 : at(to)+1])
	slices.Reverse(out)
	return out, nil
}

func (r *repo) Keep(ids ...string) error {
	r.call(context.Background(), "keep")
	defer r.mu.Unlock()
	r.kept = ids
	return nil
}

func (r *repo) load(ctx context.Context, c model.Commit) engine.Desired {
	r.call(ctx, "load")
	defer r.mu.Unlock()
	d, ok := r.sites[c.ID]
	if !ok {
		panic("load of a commit that was never fetched: " + c.ID)
	}
	d.Commit = c.ID
	return d
}

// eye is a host that counts how often it is observed.
type eye struct {
	*enginetest.Host
	mu    sync.Mutex
	looks int
	look  func(ctx context.Context) // before every observation
}

func (e *eye) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	e.mu.Lock()
	e.looks++
	look := e.look
	e.mu.Unlock()
	if look != nil {
		look(ctx)
	}
	return e.Host.Observe(ctx, w)
}

// world is all that an agent of these tests lives in.
type world struct {
	t       *testing.T
	repo    *repo
	host    *eye
	dir     string
	log     *enginetest.Log
	options func(*Options)

	shut  atomic.Bool // what denied commits ask
	agent *Agent
	halt  chan struct{}
	ended chan error
}

// live runs a story in a bubble of its own time.
func live(t *testing.T, story func(w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, repo: newRepo(), host: &eye{Host: &enginetest.Host{Holds: model.State{}}}, dir: dir, log: &enginetest.Log{}}
		defer w.end()
		story(w)
	})
}

func (w *world) new() *Agent {
	w.t.Helper()
	l, err := ledger.Open(w.dir)
	require.NoError(w.t, err)
	o := Options{
		Identity: "father", Program: "1.0", URL: "https://git.example/site.git", Branch: "main",
		Source: w.repo, Load: w.repo.load, Ledger: l,
		Open: func(engine.Desired, *model.Host) (engine.Driver, error) { return w.host, nil },
		Log:  slog.New(slog.NewTextHandler(w.log, nil)),
	}
	if w.options != nil {
		w.options(&o)
	}
	a, err := New(o)
	require.NoError(w.t, err)
	return a
}

// start runs an agent until end.
func (w *world) start() *Agent {
	w.t.Helper()
	w.agent, w.halt, w.ended = w.new(), make(chan struct{}), make(chan error, 1)
	go func(a *Agent, halt chan struct{}, ended chan error) {
		ended <- a.Run(context.Background(), halt)
	}(w.agent, w.halt, w.ended)
	synctest.Wait()
	return w.agent
}

func (w *world) end() {
	w.t.Helper()
	if w.halt != nil {
		close(w.halt)
		require.NoError(w.t, <-w.ended)
		w.halt = nil
	}
}

// pass lets time pass, and waits until everybody waits again.
func (w *world) pass(d time.Duration) Status {
	<-time.After(d)
	synctest.Wait()
	return w.agent.Status()
}

// look asks for a look, and waits until everybody waits again.
func (w *world) look() Status {
	w.agent.CheckNow()
	synctest.Wait()
	return w.agent.Status()
}

func (w *world) receipts() []ledger.Receipt {
	w.t.Helper()
	list, err := w.ledger().Last(0, nil)
	require.NoError(w.t, err)
	return list
}

// ledger is how another process sees it.
func (w *world) ledger() *ledger.Ledger { return ledger.Read(w.dir) }

func (w *world) state() ledger.State {
	w.t.Helper()
	s, err := w.ledger().State()
	require.NoError(w.t, err)
	return s
}

// holds names the guests of the host with their sizes.
func (w *world) holds() string {
	w.host.Mu.Lock()
	defer w.host.Mu.Unlock()
	var out []string
	for _, a := range w.host.Holds.Addresses() {
		if a.Kind == "box" {
			out = append(out, fmt.Sprintf("%s=%d", a.Name, w.host.Holds[a].Spec.(*enginetest.Box).Size))
		}
	}
	return strings.Join(out, " ")
}

// set changes how the repository and the host behave, between two of their calls.
func (w *world) set(change func()) {
	for _, mu := range []*sync.Mutex{&w.repo.mu, &w.host.mu, &w.host.Mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	change()
}

// byHand changes the host behind the agent's back.
func (w *world) byHand(change func(s model.State)) {
	w.host.Mu.Lock()
	defer w.host.Mu.Unlock()
	change(w.host.Holds)
}

func (w *world) looks() int {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	return w.host.looks
}

// boxes is a commit that wants boxes of these sizes.
func boxes(sizes map[string]int) engine.Desired { return engine.Desired{Site: enginetest.Site(sizes)} }
