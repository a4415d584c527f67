package proxmox_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// world is a site in memory, with what only the tests here do to it.
type world struct {
	*proxmoxtest.World

	run *storyRun // nil: no request is meant to go wrong
}

func newWorld(t *testing.T, c pve.Config) *world {
	t.Helper()
	return &world{World: proxmoxtest.New(t, c)}
}

// way is how a request goes wrong.
type way struct {
	status int  // in place of PVE's; -1 if the connection breaks
	crash  bool // whether the agent dies there, so that another one starts over
	effect bool // whether its work is done all the same; then only those that write are counted
}

// storyRun is one run of a story, in which at most one request goes wrong.
//
// The agent keeps nothing between two passes. So a run with a fault leaves out the work of
// the passes before it: it sends again what they wrote in the run without a fault, at the
// same times, and requires that this makes the same host. What they read, and what the
// driver makes of it, is nearly all that a pass costs.
type storyRun struct {
	way
	at      int64  // the request that goes wrong, counted from 1; 0 for none
	healthy []pass // of the run without a fault; nil in that one

	quiet  atomic.Bool // while it is set requests are neither counted nor broken
	replay atomic.Bool // so too while passes are replayed
	seen   tally
	die    atomic.Pointer[context.CancelFunc] // ends the pass that runs

	passes []pass // that took place or were replayed

	mu      sync.Mutex // guards what follows: requests come from many goroutines
	asked   []string   // every request that may go wrong, of the run without a fault
	ordered []string   // of these, those that write
	writes  []write    // of the pass that runs
	records bool       // whether they are recorded
	began   time.Time
}

// pass is what is known of a pass of the run without a fault.
type pass struct {
	host   pve.Snapshot // before it
	until  counts       // requests when it ended
	counts              // its own requests
	writes []write
	took   time.Duration
	done   bool // whether nothing was left to do
}

// write is a request that is no GET.
type write struct {
	after   time.Duration // since the pass began
	request *http.Request
	body    []byte
}

// world is the site in memory of the run, on a host of its own.
func (r *storyRun) world(t *testing.T, c pve.Config) *world {
	t.Helper()
	c.Fault = r.fault
	w := newWorld(t, c)
	w.run = r
	w.Sees = r.record
	return w
}

// fault is asked of each request by the host.
func (r *storyRun) fault(req *http.Request) (status int, effect bool) {
	if r.quiet.Load() || r.replay.Load() {
		return 0, false
	}
	if r.healthy == nil {
		r.keep(req)
	}
	if !r.seen.is(req, r.at, r.effect) {
		return 0, false
	}
	if r.crash {
		(*r.die.Load())()
	}
	return r.status, r.effect
}

// keep remembers that a request was there to go wrong.
func (r *storyRun) keep(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := req.Method + " " + req.URL.Path
	r.asked = append(r.asked, line)
	if req.Method != http.MethodGet {
		r.ordered = append(r.ordered, line)
	}
}

// places are the requests that go wrong one after the other, counted from 1: every step'th
// from the first on. In a row of the same request, as the polls of a task are, the driver
// cannot distinguish one in the middle from the one before it, so of a row these are the first,
// the second and the last, unless HOMESTAK_FAULTS=all wants each.
func (r *storyRun) places(effect bool, first, step int) []int64 {
	asked := r.asked
	if effect {
		asked = r.ordered
	}
	same := func(i, j int) bool { return i >= 0 && j < len(asked) && asked[i] == asked[j] }
	var at []int64
	n := 0
	for i := range asked {
		if !everyFault() && same(i-2, i) && same(i-1, i) && same(i, i+1) {
			continue
		}
		if n++; n >= first && (n-first)%step == 0 {
			at = append(at, int64(i+1))
		}
	}
	return at
}

// record keeps a request that writes.
func (r *storyRun) record(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.records || req.Method == http.MethodGet {
		return
	}
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	r.writes = append(r.writes, write{time.Since(r.began), req.Clone(context.Background()), body})
}

// first is the first pass that a run with a fault at a place has to make itself.
func first(healthy []pass, at int64, effect bool) int {
	for i, p := range healthy {
		if p.until.of(effect) >= at {
			return i
		}
	}
	return len(healthy)
}

// pass observes, plans and carries out, or replays that. It may fail or die on the way.
func (w *world) pass() (done bool) {
	w.T.Helper()
	r := w.run
	if r == nil {
		return w.take(w.T.Context())
	}
	n := len(r.passes)
	switch begin := first(r.healthy, r.at, r.effect); {
	case n < begin:
		p := r.healthy[n]
		w.replay(p)
		r.seen.add(p.counts)
		r.passes = append(r.passes, p)
		return p.done
	case n == begin && n < len(r.healthy):
		w.requireSameHost(r.healthy[n].host)
	}

	ctx, die := context.WithCancel(w.T.Context())
	defer die()
	r.die.Store(&die)
	var p pass
	if r.healthy == nil {
		p.host = w.Host.Snapshot()
	}
	before := r.seen.now()
	r.mu.Lock()
	r.began, r.writes, r.records = time.Now(), nil, r.healthy == nil
	r.mu.Unlock()
	p.done = w.take(ctx)
	r.mu.Lock()
	p.writes, p.took, r.records = r.writes, time.Since(r.began), false
	r.mu.Unlock()
	p.until = r.seen.now()
	p.counts = counts{p.until.all - before.all, p.until.writes - before.writes}
	r.passes = append(r.passes, p)
	return p.done
}

// take makes a pass.
func (w *world) take(ctx context.Context) (done bool) {
	w.T.Helper()
	want, _ := w.Site.Want("father")
	have, err := w.Driver.Observe(ctx, want)
	if err != nil || ctx.Err() != nil {
		return false
	}
	p := w.PlanFor(want, have)
	w.RunUntil(ctx, p)
	return len(p.Steps) == 0 && len(p.Unknown) == 0 && !p.Findings.HasErrors()
}

// replay does to the host what a pass did.
func (w *world) replay(p pass) {
	w.T.Helper()
	w.run.replay.Store(true)
	defer w.run.replay.Store(false)
	began := time.Now()
	for _, one := range p.writes {
		time.Sleep(one.after - time.Since(began))
		req := one.request.Clone(w.T.Context())
		req.Body = io.NopCloser(bytes.NewReader(one.body))
		if w.Sees != nil {
			w.Sees(req)
		}
		res, err := w.Host.RoundTrip(req)
		require.NoError(w.T, err)
		require.NoError(w.T, res.Body.Close())
	}
	time.Sleep(p.took - time.Since(began))
}

// requireSameHost requires that the host is what it was in the run without a fault.
func (w *world) requireSameHost(was pve.Snapshot) {
	w.T.Helper()
	is := w.Host.Snapshot()
	require.Equal(w.T, was.Guests, is.Guests)
	require.Equal(w.T, was.Volumes, is.Volumes)
	require.Equal(w.T, was.Pools, is.Pools)
	require.Equal(w.T, was.Tasks, is.Tasks)
	require.Equal(w.T, was.Sampled, is.Sampled)
}

// settle runs passes until nothing is left to do. Any of them may fail or die.
func settle(w *world) {
	w.T.Helper()
	for range 8 {
		if w.pass() {
			return
		}
		w.Reopen()
		time.Sleep(time.Minute)
	}
	w.Converged()
}
