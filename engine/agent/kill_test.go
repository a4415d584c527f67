package agent_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

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

// point ends the goroutine of whoever is dead.
func (d *death) point() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen++
	if d.seen == d.at {
		d.over = true
		if err := os.CopyFS(d.saved, os.DirFS(d.dir)); err != nil {
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

// story is two pushes, of which the second is denied for a while; it gives the agent
// that lives through it, and stands at its end if nobody died.
func (w *world) story(d *death, h *mortalHost) {
	w.set(func() { w.repo.before = func(context.Context, string) { d.point() } })
	w.options = func(o *agent.Options) {
		o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { d.point(); return h, nil }
		o.Notify = func(agent.Status) { d.point() }
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
			w.options = func(o *agent.Options) {
				o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return h, nil }
			}
			w.start()
			s := w.pass(time.Hour)
			require.Equal(t, "a=2 c=1", w.holds(), "killed at point %d of %d", at, points)
			require.Equal(t, "in sync at c2", s.Summary)
			require.Equal(t, "c2", s.Converged.ID)
			require.Empty(t, h.doubled)
			_, broken, err := w.ledger().Verify()
			require.NoError(t, err)
			require.Empty(t, broken)
		})
	}
}
