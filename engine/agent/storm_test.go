package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// chaos is a world in which anybody does anything at any time.
type chaos struct {
	*world
	r      *rand.Rand
	ctx    context.Context
	asked  sync.WaitGroup
	held   atomic.Int32 // another process has the write lock
	paused atomic.Bool  // everything is suspended
	life   atomic.Int32 // agents so far
	n      int          // commits so far
}

// Whatever requests an agent gets, in whatever order: it changes nothing while another process has the write lock or all is
// suspended, nothing of a refused commit is applied, no request waits for ever, and in the end the host is as the newest commit
// says.
func TestAnAgentInAStorm(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			live(t, func(w *world) { (&chaos{world: w, r: rand.New(rand.NewPCG(seed, 1))}).run() })
		})
	}
}

func (c *chaos) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.ctx = ctx
	c.set(func() {
		c.host.During = func(_ context.Context, s plan.Step) error {
			switch {
			case c.held.Load() > 0:
				c.t.Errorf("%s while another process has the write lock", s.Address)
			case c.paused.Load():
				c.t.Errorf("%s while everything is suspended", s.Address)
			case strings.HasPrefix(s.Address.Name, "evil") && s.Want != nil:
				c.t.Errorf("%s of a refused commit", s.Address)
			}
			<-time.After(time.Duration(s.VMID%7+1) * 13 * time.Second)
			return nil
		}
	})
	c.push()
	c.start()
	for range 150 {
		c.anything()
		c.pass(time.Duration(c.r.IntN(40)) * time.Second)
		require.Zero(c.t, c.agent.Stuck())
	}
	// The storm is over.
	c.asked.Wait()
	c.paused.Store(false)
	for _, s := range c.agent.Status().Suspended {
		_, err := c.agent.Resume(s.Manifest)
		require.NoError(c.t, err)
	}
	c.repo.fault(nil)
	c.push()
	s := c.pass(2 * time.Hour)
	require.Equal(c.t, engine.Done, s.Last.Outcome, s.Summary)
	require.True(c.t, s.Healthy, s.Summary)
	require.Equal(c.t, fmt.Sprintf("a=%d b=2", c.n), c.holds())
}

// push is of a good commit.
func (c *chaos) push() {
	c.n++
	c.repo.push(fmt.Sprintf("good%d", c.n), boxes(map[string]int{"a": c.n, "b": 2}))
}

func (c *chaos) anything() {
	until := time.Now().Add(time.Duration(c.r.IntN(300)+1) * time.Second)
	switch c.r.IntN(12) {
	case 0:
		c.push()
	case 1:
		d := boxes(map[string]int{fmt.Sprint("evil", c.r.IntN(9)): 1})
		d.Findings = diag.List{diag.Errorf(diag.Range{}, "no good", "")}
		c.repo.push(fmt.Sprint("bad", c.r.Uint64()), d)
	case 2:
		c.repo.push(fmt.Sprint("denied", c.r.Uint64()), denied(map[string]int{"evil": 1}, diag.FromGuard, func() bool { return true }))
	case 3:
		c.n++
		c.repo.rewrite(fmt.Sprintf("good%d", c.n), boxes(map[string]int{"a": c.n, "b": 2}))
	case 4:
		c.repo.fault([]error{nil, errors.New("no route")}[c.r.IntN(2)])
	case 5:
		c.suspend(ledger.Suspension{Manifest: []string{"", "web"}[c.r.IntN(2)], Reason: "x"}, until)
	case 6:
		c.paused.Store(false) // or more may be seen than is wrong
		_, err := c.agent.Resume([]string{"", "web"}[c.r.IntN(2)])
		require.NoError(c.t, err)
	case 7:
		c.hold(until)
	case 8:
		c.beside(func(ctx context.Context) { _, _ = c.agent.Reconcile(ctx) })
	case 9:
		c.agent.CheckNow()
	case 10:
		c.byHand(func(s model.State) { delete(s, enginetest.Addr("box", "a")) })
	case 11:
		if c.held.Load() == 0 { // a hold ends with the agent; the lock file, which does not, is not here
			c.life.Add(1)
			c.end()
			c.start()
		}
	}
}

func (c *chaos) suspend(s ledger.Suspension, until time.Time) {
	if c.r.IntN(2) == 0 {
		s.Until = &until
		c.paused.Store(c.paused.Load() && s.Manifest != "") // the word before is replaced
	}
	if c.agent.Suspend(s) == nil && s.Manifest == "" && s.Until == nil {
		synctest.Wait()
		c.paused.Store(true)
	}
}

// beside does something that waits, and sometimes loses patience.
func (c *chaos) beside(f func(context.Context)) {
	ctx, cancel := context.WithTimeout(c.ctx, time.Duration(c.r.IntN(600)+1)*time.Second)
	c.asked.Go(func() { defer cancel(); f(ctx) })
}

// hold has another process take the write lock for a while, as soon as possible.
func (c *chaos) hold(until time.Time) {
	agent, life := c.agent, c.life.Load()
	c.asked.Go(func() {
		release, err := agent.Pause(c.ctx, "cli")
		if err != nil {
			return
		}
		defer release()
		if life != c.life.Load() {
			return // of an agent that is no more
		}
		c.held.Add(1)
		<-time.After(time.Until(until))
		c.held.Add(-1)
	})
}

// death comes to an agent at one of the points where it touches the world: there the
// disk is as a killed process leaves it, and from there on the agent does nothing
// any more that could be seen. Its lock is for the workers.
type death struct {
	mu    sync.Mutex
	at    int // the point; 0: never
	seen  int
	dir   string // of the ledger
	saved string // where the disk is kept as it was
	over  bool
}

// point ends the calling goroutine if the agent is dead.
func (d *death) point() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen++
	if d.seen == d.at {
		d.over = true
		err := os.CopyFS(d.saved, os.DirFS(d.dir))
		if key := filepath.Join(d.saved, "chain", "receipt.key"); err == nil { // CopyFS lets others read it
			err = os.Chmod(key, 0o600)
		}
		if err != nil {
			panic(err)
		}
	}
	if d.over {
		runtime.Goexit()
	}
}

// Enabled, Handle, WithAttrs and WithGroup make it a log: each line is a point, too.
func (*death) Enabled(context.Context, slog.Level) bool { return true }

func (d *death) Handle(context.Context, slog.Record) error { d.point(); return nil }

func (d *death) WithAttrs([]slog.Attr) slog.Handler { return d }

func (d *death) WithGroup(string) slog.Handler { return d }

// mortalHost dies before a step, or after it.
type mortalHost struct {
	*eye
	d       *death
	doubled []string
}

func (h *mortalHost) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	h.d.point()
	return h.eye.Observe(ctx, w)
}

func (h *mortalHost) Apply(ctx context.Context, s plan.Step) error {
	h.d.point()
	h.Mu.Lock()
	if s.Action == plan.Create && h.Holds[s.Address] != nil {
		h.doubled = append(h.doubled, s.Address.String())
	}
	h.Mu.Unlock()
	err := h.eye.Apply(ctx, s)
	h.d.point()
	return err
}

// story is two pushes, of which the second is denied for a while. It returns the agent that survives it; without a death it runs
// to its end.
func (w *world) story(d *death, h *mortalHost) {
	w.set(func() { w.repo.before = func(context.Context, string) { d.point() } })
	w.options = func(o *Options) {
		o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { d.point(); return h, nil }
		o.Notify = func(Status) { d.point() }
		o.Log = slog.New(d)
	}
	gone, stop := make(chan struct{}), make(chan struct{})
	a := w.new()
	go func() {
		defer close(gone)
		_ = a.Run(context.Background(), stop)
	}()
	passUnless(gone, 10*time.Minute)
	w.shut.Store(true)
	w.repo.push("c2", denied(map[string]int{"a": 2, "c": 1}, diag.FromGuard, w.shut.Load), "Allow-Deletes: 3")
	passUnless(gone, 10*time.Minute)
	w.shut.Store(false)
	passUnless(gone, 10*time.Minute)
	close(stop)
	<-gone
	synctest.Wait() // also for the workers
}

func passUnless(gone chan struct{}, d time.Duration) {
	select {
	case <-gone:
	case <-time.After(d):
	}
}

// Kill -9 anywhere, start again: it converges, and nothing is doubled.
func TestAnAgentMayDieAnywhere(t *testing.T) {
	points := 0
	for at := 0; at <= points; at++ {
		saved := filepath.Join(t.TempDir(), "saved")
		live(t, func(w *world) {
			w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
			d := &death{at: at, dir: w.dir, saved: saved}
			h := &mortalHost{eye: w.host, d: d}
			w.story(d, h)
			if at == 0 {
				points = d.seen
				require.Greater(t, points, 60)
				require.Equal(t, "a=2 c=1", w.holds())
				return
			}
			if !d.over {
				require.Greater(t, at, points-20, "pauses vary a little, and with them the number of points")
				return
			}
			last := w.repo.branch[len(w.repo.branch)-1].ID
			if last == "c1" {
				w.repo.push("c2", boxes(map[string]int{"a": 2, "c": 1}))
			}

			w.dir, w.repo.before, h.d = saved, nil, &death{}
			w.options = func(o *Options) {
				o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return h, nil }
			}
			w.start()
			s := w.pass(time.Hour)
			require.Equal(t, "a=2 c=1", w.holds(), "killed at point %d of %d", at, points)
			require.Equal(t, "in sync at c2", s.Summary)
			require.Equal(t, "c2", s.Converged.ID)
			require.Empty(t, h.doubled)
			proof, err := w.ledger().Verify(ledger.Expect{})
			require.NoError(t, err)
			require.Empty(t, proof.Broken)
		})
	}
}

// day is what must be true, by what happened so far.
type day struct {
	*world
	dice *rand.Rand
	n    int // commits

	head    *pushed        // the newest commit
	fetched *pushed        // the newest that the agent can know
	force   map[string]int // what the agent must hold to
	blind   bool
	away    bool
}

// pushed is a commit.
type pushed struct {
	wants map[string]int // nil: it is bad
	shut  atomic.Bool    // then it is denied
}

// sizes throws up to five boxes.
func (d *day) sizes() map[string]int {
	out := map[string]int{}
	for i := range 1 + d.dice.IntN(5) {
		out[string(rune('a'+i))] = 1 + d.dice.IntN(3)
	}
	return out
}

func (d *day) name() string {
	d.n++
	return fmt.Sprintf("commit%d", d.n)
}

// event is one thing that happens in this hour.
func (d *day) event() string {
	switch d.dice.IntN(10) {
	case 0, 1:
		d.head = &pushed{wants: d.sizes()}
		d.repo.push(d.name(), boxes(d.head.wants))
		return "push"
	case 2:
		d.head = &pushed{}
		d.repo.push(d.name(), engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "no good", "")}})
		return "bad push"
	case 3:
		c := &pushed{wants: d.sizes()}
		c.shut.Store(true)
		d.head = c
		d.repo.push(d.name(), denied(c.wants, diag.FromGuard, c.shut.Load))
		return "denied push"
	case 4:
		d.head.shut.Store(false)
		return "the window opens"
	case 5:
		if d.away = !d.away; d.away {
			d.repo.fault(errors.New("no route"))
			return "the repository goes"
		}
		d.repo.fault(nil)
		return "the repository comes back"
	case 6:
		if d.blind = !d.blind; d.blind {
			d.host.Mu.Lock()
			defer d.host.Mu.Unlock()
			d.host.ObserveErr = errors.New("connection refused")
			return "the host goes"
		}
		d.host.Mu.Lock()
		defer d.host.Mu.Unlock()
		d.host.ObserveErr = nil
		return "the host comes back"
	case 7:
		until := in(2 * time.Hour)
		if err := d.agent.Suspend(ledger.Suspension{By: "ops", Until: until}); err != nil {
			return err.Error()
		}
		return "suspended"
	case 8:
		d.end()
		d.start()
		return "restart"
	default:
		d.byHand(func(h model.State) {
			for _, a := range h.Addresses() {
				if a.Kind == "box" && d.dice.IntN(2) == 0 {
					h[a].Spec.(*enginetest.Box).Size = 77
				} else if d.dice.IntN(2) == 0 {
					delete(h, a)
				}
			}
		})
		return "changes by hand"
	}
}

func text(sizes map[string]int) string {
	var out []string
	for i := range 5 {
		if name := string(rune('a' + i)); sizes[name] > 0 {
			out = append(out, fmt.Sprintf("%s=%d", name, sizes[name]))
		}
	}
	return strings.Join(out, " ")
}

// Twenty-four hours with pushes, bad ones and denied ones, faults of the repository
// and of the host, changes by hand, suspensions and restarts.
func TestADay(t *testing.T) {
	for seed := range uint64(12) {
		live(t, func(w *world) {
			d := &day{world: w, dice: rand.New(rand.NewPCG(seed, 7))}
			d.head = &pushed{wants: d.sizes()}
			w.repo.push(d.name(), boxes(d.head.wants))
			w.start()
			d.fetched, d.force = d.head, d.head.wants
			goroutines, began := runtime.NumGoroutine(), time.Now()
			var story []string
			for time.Since(began) < 24*time.Hour {
				before := w.holds()
				suspended := len(w.agent.Status().Suspended) > 0
				story = append(story, d.event())
				if story[len(story)-1] == "changes by hand" {
					before = w.holds()
				}
				s := w.pass(25 * time.Minute) // more than the longest pause of anything
				if !d.away {
					d.fetched = d.head
				}
				if c := d.fetched; !d.blind && c.wants != nil && !c.shut.Load() {
					d.force = c.wants
				}
				suspended = suspended && len(s.Suspended) > 0 || story[len(story)-1] == "suspended"
				told := fmt.Sprintf("seed %d, %s: %s", seed, strings.Join(story, ", "), s.Summary)
				switch {
				case d.blind:
					require.Equal(t, before, w.holds(), told)
					require.Contains(t, s.Summary, "connection refused", told)
				case suspended:
					require.Equal(t, before, w.holds(), told)
					require.Contains(t, s.Summary, "suspended by ops", told)
				default:
					require.Equal(t, text(d.force), w.holds(), told)
				}
				require.Equal(t, d.away, s.Repository.Failing != nil, told)
				require.Equal(t, Idle, s.State, told)
				require.Zero(t, w.agent.Stuck(), told)
			}
			require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+2, "the runtime has some of its own")
			require.Less(t, w.repo.asked(), 24*60*10/9+60)
			require.Less(t, w.looks(), 24*12*3)
			require.LessOrEqual(t, len(w.receipts()), 4*len(story))
			proof, err := w.ledger().Verify(ledger.Expect{})
			require.NoError(t, err)
			require.Empty(t, proof.Broken)
		})
	}
}

// Nothing is written and nothing grows where nothing happens.
func TestAnIdleDay(t *testing.T) {
	live(t, func(w *world) {
		sizes := map[string]int{}
		for i := range 200 {
			sizes[fmt.Sprintf("box-%d", i)] = 1
		}
		w.repo.push("c1", boxes(sizes))
		w.start()
		w.pass(time.Hour)
		memory := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, lines, state := memory(), strings.Count(w.log.String(), "\n"), w.state()
		w.pass(24 * time.Hour)
		require.Less(t, memory(), before+(1<<20))
		require.Equal(t, lines, strings.Count(w.log.String(), "\n"), "no line of log for a tick")
		require.Equal(t, state, w.state())
		require.Len(t, w.receipts(), 1)
		require.InDelta(t, 25*60, w.repo.asked(), 160)
		require.InDelta(t, 25*12, w.looks(), 3)
	})
}

// An idle check of 1,000 guests costs little beyond the pass itself, which looks and plans.
func TestAnIdleCheckIsCheap(t *testing.T) {
	live(t, func(w *world) {
		sizes := map[string]int{}
		for i := range 1000 {
			sizes[fmt.Sprintf("box-%d", i)] = 1
		}
		d := boxes(sizes)
		w.repo.push("c1", d)
		w.start()
		cost := func(f func()) (bytes uint64) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 5 {
				f()
			}
			runtime.ReadMemStats(&after)
			return (after.TotalAlloc - before.TotalAlloc) / 5
		}
		pure := cost(func() { w.host.Host.Pass(d.Site).Run(w.t.Context()) })
		all := cost(func() { w.look() })
		t.Logf("a pass %d KiB, with the agent %d KiB", pure>>10, all>>10)
		require.Less(t, all, pure+pure/4)
	})
}

// Between two passes the agent holds no site, no observation and no plan.
func TestNothingLargeIsKept(t *testing.T) {
	live(t, func(w *world) {
		var sites []weak.Pointer[model.Site]
		var plans []weak.Pointer[plan.Plan]
		w.options = func(o *Options) {
			o.Load = func(context.Context, model.Commit) engine.Desired {
				d := boxes(map[string]int{"a": 1})
				d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List {
					plans = append(plans, weak.Make(q.Plan))
					return nil
				}
				sites = append(sites, weak.Make(d.Site))
				return d
			}
		}
		w.repo.push("c1", engine.Desired{})
		w.start()
		w.pass(16 * time.Minute)
		runtime.GC()
		require.Len(t, sites, 4)
		require.Len(t, plans, 4)
		for i := range sites {
			require.Nil(t, sites[i].Value())
			require.Nil(t, plans[i].Value())
		}
	})
}

// An agent whose clock was a year ahead or behind before it was started again goes on at once: by what the files say, everything is
// in the future or a year old.
func TestS7ClockBetweenTwoRuns(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, clocks := range [][2]time.Duration{{year, 0}, {0, year}} { // each run has a clock of its own
		t.Run(fmt.Sprint(clocks), func(t *testing.T) {
			dir, host := t.TempDir(), &enginetest.Host{Holds: model.State{}}
			var ids []string
			for run, clock := range clocks {
				synctest.Test(t, func(t *testing.T) {
					w := &world{t: t, repo: newRepo(), host: &eye{Host: host}, dir: dir, log: &enginetest.Log{}}
					defer w.end()
					<-time.After(clock)
					w.repo.push("c1", boxes(map[string]int{"a": 1}))
					if run == 1 {
						w.repo.push("c2", boxes(map[string]int{"a": 2}))
					}
					w.start()
					w.pass(time.Second)
					require.Equal(t, fmt.Sprintf("a=%d", run+1), w.holds())

					// A commit is in force within a poll, and a change by hand is reverted by the next full check.
					next := fmt.Sprintf("c%d", run+2)
					w.repo.push(next, boxes(map[string]int{"a": run + 2}))
					require.Equal(t, next, w.pass(67*time.Second).Converged.ID)
					w.byHand(func(s model.State) { delete(s, model.Address{Kind: "box", Name: "a"}) })
					w.pass(time.Hour)
					require.Equal(t, fmt.Sprintf("a=%d", run+2), w.holds())
					require.True(t, w.agent.Stuck().IsZero())

					// Receipts stay in the order in which things happened.
					list := w.receipts()
					require.Greater(t, len(list), len(ids))
					require.WithinDuration(t, time.Now(), list[0].Began, 2*time.Hour)
					for i, id := range ids {
						require.Equal(t, id, list[len(list)-len(ids)+i].ID)
					}
					ids = nil
					for _, r := range list {
						ids = append(ids, r.ID)
					}
				})
			}
		})
	}
}
