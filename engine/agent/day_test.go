package agent_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

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
				require.Equal(t, agent.Idle, s.State, told)
				require.Zero(t, w.agent.Stuck(), told)
			}
			require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+2, "the runtime has some of its own")
			require.Less(t, w.repo.asked(), 24*60*10/9+60)
			require.Less(t, w.looks(), 24*12*3)
			require.LessOrEqual(t, len(w.receipts()), 4*len(story))
			_, broken, err := w.ledger().Verify()
			require.NoError(t, err)
			require.Empty(t, broken)
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
