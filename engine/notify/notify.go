// Package notify sends notifications about incidents, and sets the status of commits in forges. It has no source of its own:
// an incident is a condition of the tree that the agent shows.
//
// Read in this order:
//
//	incidents.go  what is wrong in a tree: a set of incidents
//	edges.go      that set and the open incidents of a notifier → messages; a pure function
//	statuses.go   the same for the statuses of a commit
//	store.go      open incidents, statuses and unsent messages, in one file
//	notify.go     the goroutine that owns all of this: it checks the tree, stores what follows, and starts deliveries
//	text.go       a message as text
//	http.go       how each type sends one, with smtp.go and forge.go
//
// Messages are stored together with the incidents that they follow from, in one write, before they are sent. So a restart
// loses none, and creates none twice. A message keeps its ID when it is resent.
package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Snapshot is what incidents are derived from.
type Snapshot struct {
	Notifiers map[string]*model.Notify // nil: no site was read yet
	Status    agent.Status
	Tree      wire.Report
	Mask      func(string) string // redacts secrets
	PageEnds  time.Time           // when the certificate of the page expires; zero: there is none
}

// Options configure Notifiers.
type Options struct {
	File    string            // stores open incidents and queued messages
	Observe func() Snapshot   // called by any goroutine; must not block
	Log     *slog.Logger      // not nil
	Pace    time.Duration     // the longest pause; 0: no limit
	Web     http.RoundTripper // replaces the network; may be nil
	// Replace stores a file atomically; nil: durable.Replace. Tests crash there.
	Replace func(name string, content []byte) error
}

// The pauses. Options.Pace limits them.
const (
	foldTime   = 20 * time.Second // incidents that begin within this time are one message
	checkEvery = 5 * time.Second  // least time between two checks of the tree
	idleEvery  = 30 * time.Second // checks without an event: reports become stale, and reminders due
	sendTime   = 30 * time.Second // for one message
	endTime    = 5 * time.Second  // for all deliveries in progress when the agent stops
	firstWait  = 10 * time.Second // after the first failure; then twice as long each time
	mostWait   = 30 * time.Minute
	tooOld     = 24 * time.Hour // an unsent message of this age is dropped
	freshFor   = time.Minute    // between two announcements of open incidents to Alertmanager
)

// Notifiers are all notifiers of a site. Run owns its state; the other methods may be called from any goroutine.
type Notifiers struct {
	o       Options
	send    func(ctx context.Context, n *model.Notify, m message) error
	wake    chan struct{}
	checked time.Time
	state   state
	stored  []byte          // the content of the file, as far as known
	acked   map[string]bool // IDs of messages that were delivered or rejected, but are still in the stored queue
	round   map[string]map[string]*pending
	lines   map[string]*line
	done    chan sent
	broken  error // why the state cannot be stored

	published atomic.Pointer[[]agent.NotifyStatus]
}

// line is the state of the deliveries to a receiver since the start.
type line struct {
	busy  bool
	err   error
	since time.Time // of the failure
	next  time.Time // no message is sent before
	wait  time.Duration
	last  time.Time // the last successful delivery
}

// sent is the result of a delivery. It has no ID if it announced open incidents.
type sent struct {
	name, id string
	err      error
}

// Open returns notifiers with their stored state. If the state cannot be read, they begin without one, and the error says why.
func Open(o Options) (*Notifiers, error) {
	if o.Replace == nil {
		o.Replace = durable.Replace
	}
	n := &Notifiers{o: o, wake: make(chan struct{}, 1), acked: map[string]bool{}, round: map[string]map[string]*pending{}, lines: map[string]*line{}, done: make(chan sent)}
	n.send = func(ctx context.Context, to *model.Notify, m message) error { return send(ctx, o.Web, to, m) }
	n.published.Store(&[]agent.NotifyStatus{})
	var err error
	n.state, err = readState(o.File)
	n.stored, _ = json.Marshal(n.state) // what was read can be written
	return n, err
}

// Wake has the tree checked soon. It never blocks.
func (n *Notifiers) Wake() {
	select {
	case n.wake <- struct{}{}:
	default: // it is requested already
	}
}

// Status describes each notifier.
func (n *Notifiers) Status() []agent.NotifyStatus { return *n.published.Load() }

// pace limits a pause by that of the options.
func (n *Notifiers) pace(d time.Duration) time.Duration {
	if n.o.Pace > 0 {
		return min(d, n.o.Pace)
	}
	return d
}

// Run checks the tree and sends messages until ctx ends. Then it waits for deliveries in progress.
func (n *Notifiers) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var seen Snapshot
	for woken := true; ; {
		now := time.Now()
		if since := now.Sub(n.checked); n.checked.IsZero() || since < 0 || since >= n.pause(woken) {
			if woken, seen = false, n.o.Observe(); seen.Notifiers != nil {
				n.checked = now
			}
			n.check(seen, now)
		}
		for name, m := range n.due(seen.Notifiers, now) {
			to := *seen.Notifiers[name]
			n.lines[name].busy = true
			group.Go(func() {
				limited, cancel := context.WithTimeout(sending, sendTime)
				defer cancel()
				err := n.send(limited, &to, m)
				select {
				case n.done <- sent{name, m.ID, err}:
				case <-sending.Done():
				}
			})
		}
		n.publish(seen.Notifiers)
		timer := time.NewTimer(max(n.next(now, woken), time.Millisecond))
		select {
		case <-timer.C:
		case <-n.wake:
			woken = true
		case r := <-n.done:
			n.ended(r, seen.Mask, time.Now())
		case <-ctx.Done():
			timer.Stop()
			n.finish(seen.Mask)
			return
		}
		timer.Stop()
	}
}

// finish waits up to endTime for deliveries in progress. The outcome of those that are cut off is unknown, so they are resent.
func (n *Notifiers) finish(mask func(string) string) {
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	for _, l := range n.lines {
		for l.busy {
			select {
			case r := <-n.done:
				n.ended(r, mask, time.Now())
			case <-timer.C:
				return
			}
		}
	}
}

// pause is the time between two checks: short after an event, and while incidents are pending.
func (n *Notifiers) pause(woken bool) time.Duration {
	for _, pending := range n.round {
		woken = woken || len(pending) > 0
	}
	if woken || n.broken != nil {
		return n.pace(checkEvery)
	}
	return n.pace(idleEvery)
}

// next is the time until the next check or delivery, unless an event comes first.
func (n *Notifiers) next(now time.Time, woken bool) time.Duration {
	wait := n.pause(woken)
	if !n.checked.IsZero() {
		wait = n.checked.Add(wait).Sub(now)
	}
	for name, l := range n.lines {
		if of := n.state.Notifiers[name]; of != nil && len(of.Queue) > 0 && !l.busy && !n.acked[of.first().ID] {
			wait = min(wait, max(l.next.Sub(now), 0))
		}
	}
	return wait
}

// check compares the tree with the state, and stores what follows. If that fails, the state stays as it is, and the next check
// has the same result.
func (n *Notifiers) check(s Snapshot, now time.Time) {
	if s.Notifiers == nil {
		return
	}
	for name := range n.lines {
		if s.Notifiers[name] == nil {
			delete(n.round, name)
			delete(n.lines, name)
		}
	}
	next := n.state.without(s.Notifiers, n.acked)
	var all *incidents
	for _, name := range slices.Sorted(maps.Keys(s.Notifiers)) {
		rule := s.Notifiers[name]
		if n.lines[name] == nil {
			n.lines[name] = &line{}
		}
		of := next.of(name)
		if rule.OfCommits() {
			of.commits(rule, s, now)
			continue
		}
		if all == nil {
			all = find(s, now)
		}
		if n.round[name] == nil {
			n.round[name] = map[string]*pending{}
		}
		of.step(edge{rule: rule, fold: n.pace(foldTime), pending: n.round[name]}, all, now)
	}
	next.bound(now)
	n.store(next)
}

// store makes a state the current one once it is on disk.
func (n *Notifiers) store(next state) {
	text, err := json.Marshal(next)
	if err == nil && !bytes.Equal(text, n.stored) {
		err = n.o.Replace(n.o.File, text)
	}
	if err == nil {
		n.stored, n.state, n.acked, n.broken = text, next, map[string]bool{}, nil
		return
	}
	if n.broken == nil {
		n.o.Log.Error("notifications cannot be stored, so none are sent", "error", err)
	}
	n.broken = err
}

// due returns the message that each notifier sends next: the first of its queue, or the announcement of its open incidents.
func (n *Notifiers) due(rules map[string]*model.Notify, now time.Time) map[string]message {
	out := map[string]message{}
	for name, rule := range rules {
		l, of := n.lines[name], n.state.Notifiers[name]
		switch {
		case l == nil || of == nil || l.busy || now.Before(l.next) && l.next.Sub(now) <= mostWait:
		case len(of.Queue) > 0:
			if m := of.first(); !n.acked[m.ID] {
				out[name] = m
			}
		case rule.Type == model.NotifyAlertmanager && len(of.Open) > 0 && past(now, l.last, n.pace(freshFor)):
			out[name] = of.lasting(now)
		}
	}
	return out
}

// ended records the result of a delivery.
func (n *Notifiers) ended(r sent, mask func(string) string, now time.Time) {
	l, of := n.lines[r.name], n.state.Notifiers[r.name]
	if l == nil || of == nil {
		return // it left the site
	}
	l.busy = false
	if r.err == nil {
		if l.err != nil {
			n.o.Log.Info("notifications are sent again", "notify", r.name)
		}
		*l = line{last: now}
		if r.id != "" {
			n.forget(r, false, now)
		}
		return
	}
	f, _ := errors.AsType[*failure](r.err)
	text := diag.ShortLine(mask(r.err.Error()), mostIncidentText)
	if l.err == nil {
		n.o.Log.Warn("a notification could not be sent", "notify", r.name, "error", text)
		l.since, l.wait = now, firstWait
	}
	l.err = errors.New(text)
	if f != nil && f.final && r.id != "" {
		n.forget(r, true, now)
	}
	wait := l.wait
	if f != nil {
		wait = max(wait, f.after)
	}
	l.next, l.wait = now.Add(n.pace(min(wait, mostWait))), min(2*l.wait, mostWait)
}

// forget removes a message from its queue. If that cannot be stored now, the next check does it.
func (n *Notifiers) forget(r sent, dropped bool, now time.Time) {
	n.acked[r.id] = true
	next := n.state.without(nil, n.acked)
	if dropped {
		next.of(r.name).lose(1, now)
	}
	n.store(next)
}

// publish updates what Status returns.
func (n *Notifiers) publish(rules map[string]*model.Notify) {
	out := []agent.NotifyStatus{}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		s := agent.NotifyStatus{Name: name, Type: rules[name].Type}
		if of := n.state.Notifiers[name]; of != nil {
			s.Open, s.Queued, s.Dropped = len(of.Open), len(of.Queue), of.Dropped
		}
		if l := n.lines[name]; l != nil {
			if !l.last.IsZero() {
				at := l.last.UTC()
				s.Sent = &at
			}
			if l.err != nil {
				at := l.since.UTC()
				s.Error, s.Failing = l.err.Error(), &at
			}
		}
		if n.broken != nil {
			s.Error = "messages cannot be stored, so none are sent: " + n.broken.Error()
		}
		out = append(out, s)
	}
	n.published.Store(&out)
}

// errUnknown says that a site has no notifier of a name.
var errUnknown = errors.New("the site has no such notify block")

// Test sends a test message by a notifier at once, without the queue.
func (n *Notifiers) Test(ctx context.Context, name string) error {
	seen := n.o.Observe()
	rule := seen.Notifiers[name]
	if rule == nil {
		return fmt.Errorf("%w: %s\n%s", errUnknown, name, diag.DidYouMean(name, slices.Sorted(maps.Keys(seen.Notifiers))))
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	now := time.Now().UTC()
	m := message{ID: newID(), Kind: kindTest, At: now, Since: now, Agent: seen.Status.Identity, Text: "This is a test of notify " + name + "."}
	if rule.OfCommits() {
		if seen.Status.InForce == nil {
			return errors.New("no commit is in force, so there is no status to set")
		}
		m.Kind, m.Commit, m.Context, m.State = kindStatus, seen.Status.InForce.ID, "homestak/test", stateSuccess
	}
	if err := n.send(ctx, rule, m); err != nil {
		return fmt.Errorf("send a test by notify %s: %s", name, diag.ShortLine(seen.Mask(err.Error()), mostIncidentText))
	}
	return nil
}

// past reports whether d has elapsed since then, or the clock was set back.
func past(now, since time.Time, d time.Duration) bool {
	e := now.Sub(since)
	return e >= d || e < 0
}
