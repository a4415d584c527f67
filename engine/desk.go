package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// desk is what the agent's goroutine shares with all others. The first part is
// written by that goroutine alone, for everybody to read; the second by anybody.
type desk struct {
	keeping sync.Mutex // held around mu while the state goes to disk, so that the newest arrives last
	mu      sync.Mutex

	status    AgentStatus // what does not follow from the rest
	commits   map[string]model.Commit
	manifests []string // of the site in force; nil before one was read
	running   *progress
	blocker   string    // who is in the way, as Exclusive says
	stranger  string    // the sentence about an identity that the site does not know
	trouble   string    // why the last pass did not come to its end
	waits     int       // steps that were planned while everything is suspended
	due       time.Time // when the agent must have come on; zero: it waits for others

	state    ledger.State // the marks are the agent's, the suspensions anybody's
	asked    ask
	holder   string        // who holds the pen by Hold
	halt     chan struct{} // of the pass under way, closed when it must start nothing new
	stopping bool
	unkept   bool // the state on disk is older; under keeping
}

// ask is what is wanted of the agent: a look at the repository, a full check.
type ask struct {
	fetch, full bool
	waiters     []chan<- PassStatus
}

func (k ask) and(more ask) ask {
	return ask{k.fetch || more.fetch, k.full || more.full, append(k.waiters, more.waiters...)}
}

// edit changes the desk.
func (a *Agent) edit(change func(d *desk)) {
	a.desk.mu.Lock()
	defer a.desk.mu.Unlock()
	change(&a.desk)
}

// ask puts a wish on the desk and wakes the agent.
func (a *Agent) ask(k ask) {
	a.edit(func(d *desk) { d.asked = d.asked.and(k) })
	select {
	case a.wake <- struct{}{}:
	default: // it is awake
	}
}

// take takes all wishes from the desk.
func (a *Agent) take() (k ask) {
	a.edit(func(d *desk) { k, d.asked = d.asked, ask{} })
	return k
}

// remember changes the state, and keeps it in the ledger if that made a difference.
func (a *Agent) remember(change func(*desk, *ledger.State)) error {
	a.desk.keeping.Lock()
	defer a.desk.keeping.Unlock()
	var before, after ledger.State
	a.edit(func(d *desk) {
		before = d.state
		before.Suspended = slices.Clone(d.state.Suspended)
		change(d, &d.state)
		after = d.state
		after.Suspended = slices.Clone(d.state.Suspended)
	})
	if reflect.DeepEqual(before, after) && !a.desk.unkept {
		return nil
	}
	err := a.o.Ledger.SetState(after)
	a.desk.unkept = err != nil // then the next word tries again, also if it changes nothing
	return err
}

// note is remember where nobody can be told that it did not last.
func (a *Agent) note(change func(*ledger.State)) {
	if err := a.remember(func(_ *desk, s *ledger.State) { change(s) }); err != nil {
		a.o.Log.Warn("the state was not kept; it will be worked out again after a restart", "error", err)
	}
}

// stop makes the pass under way start nothing new.
func (d *desk) stop() {
	if d.halt != nil && !isClosed(d.halt) {
		close(d.halt)
	}
}

// Suspend keeps the agent from converging a manifest, or everything; a second word
// about the same replaces the first. It holds when it returns, but for steps that
// run. A manifest that the site in force does not have is an error, and so is an end
// that is over. After any other error it holds until the agent ends.
func (a *Agent) Suspend(s ledger.Suspension) error {
	now := time.Now().UTC()
	if s.Until != nil && !s.Until.After(now) {
		return fmt.Errorf("suspend until %s: that is over", s.Until.UTC().Format(time.RFC3339))
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	unknown := ""
	err := a.remember(func(d *desk, st *ledger.State) {
		known := slices.Contains(d.manifests, s.Manifest) || slices.ContainsFunc(st.Suspended, of(s.Manifest))
		if s.Manifest != "" && d.manifests != nil && !known {
			unknown = diag.DidYouMean(s.Manifest, d.manifests)
			if unknown == "" {
				unknown = "the site has none"
			}
			return
		}
		st.Suspended = append(slices.DeleteFunc(slices.Clone(st.Suspended), of(s.Manifest)), s)
		d.stop() // what it planned may be about the manifest; the next pass begins at once
	})
	if unknown != "" {
		return fmt.Errorf("unknown manifest %q: %s", s.Manifest, unknown)
	}
	a.o.Log.Info("suspended", "manifest", everything(s.Manifest), "by", s.By, "reason", s.Reason, "until", s.Until)
	a.ask(ask{full: true})
	if err != nil {
		return fmt.Errorf("suspended, but only until the agent ends: %w", err)
	}
	return nil
}

// Resume takes a suspension back and looks at once; false if there was none. After
// an error it is taken back, but may return with a restart of the agent.
func (a *Agent) Resume(manifest string) (bool, error) {
	found := false
	err := a.remember(func(_ *desk, st *ledger.State) {
		found = slices.ContainsFunc(st.Suspended, of(manifest))
		st.Suspended = slices.DeleteFunc(slices.Clone(st.Suspended), of(manifest))
	})
	if !found {
		return false, nil
	}
	a.o.Log.Info("resumed", "manifest", everything(manifest))
	a.Look()
	return true, err
}

// expire drops the suspensions whose time is over, and reports whether there were any.
func (a *Agent) expire(now time.Time) bool {
	var gone []ledger.Suspension
	a.note(func(st *ledger.State) {
		over := func(s ledger.Suspension) bool { return s.Until != nil && !s.Until.After(now) }
		if !slices.ContainsFunc(st.Suspended, over) {
			return
		}
		st.Suspended = slices.DeleteFunc(slices.Clone(st.Suspended), func(s ledger.Suspension) bool {
			if over(s) {
				gone = append(gone, s)
			}
			return over(s)
		})
	})
	for _, s := range gone {
		a.o.Log.Info("resumed, the time of the suspension is over", "manifest", everything(s.Manifest), "by", s.By)
	}
	return len(gone) > 0
}

func of(manifest string) func(ledger.Suspension) bool {
	return func(s ledger.Suspension) bool { return s.Manifest == manifest }
}

func everything(manifest string) string {
	if manifest == "" {
		return "(everything)"
	}
	return manifest
}

// Hold makes somebody else the one writer until release is called or ctx ends: it
// waits for the pass under way, and keeps the next from beginning.
func (a *Agent) Hold(ctx context.Context, who string) (release func(), err error) {
	select {
	case a.pen <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a.edit(func(d *desk) { d.holder = who })
	a.ask(ask{}) // to tell it
	done := sync.OnceFunc(func() {
		a.edit(func(d *desk) { d.holder = "" })
		<-a.pen
		a.ask(ask{})
	})
	forget := context.AfterFunc(ctx, done)
	return func() { forget(); done() }, nil
}
