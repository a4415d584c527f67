// Package notify tells people of incidents, and forges of the state of commits. It has no source of its own: an incident
// is a condition of the tree that the agent shows.
//
// Read in this order:
//
//	incidents.go  what is wrong in a tree: a set of incidents
//	edges.go      that set and the one before → messages; a pure function for each notifier
//	statuses.go   the same for the statuses of a commit
//	store.go      open incidents, statuses and unsent messages, in one file
//	notify.go     the goroutine that owns all of this: it looks, stores, and has messages sent
//	text.go       a message in words
//	http.go       how each type sends one, with smtp.go and forge.go
//
// Messages are stored together with the incidents that they follow from, in one write, before they are sent. So a restart
// loses none, and creates none again. A message keeps its ID when it is sent again.
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

// Seen is what incidents are derived from.
type Seen struct {
	Notifiers map[string]*model.Notify // nil: no site was read yet
	Status    agent.Status
	Tree      wire.Report
	Mask      func(string) string // takes secrets out of a text
	PageEnds  time.Time           // when the certificate of the page expires; zero: there is none
}

// Options configure Notifiers.
type Options struct {
	File string            // where incidents and messages are kept
	Look func() Seen       // called by any goroutine; must not block
	Log  *slog.Logger      // not nil
	Pace time.Duration     // the longest pause; 0: as usual
	Web  http.RoundTripper // takes the place of the network; may be nil
	// Replace stores a file atomically; nil: durable.Replace. Tests crash there.
	Replace func(name string, content []byte) error
}

// The pauses. Options.Pace takes the place of those that are longer.
const (
	foldTime  = 20 * time.Second // for incidents that come together, to be one message
	lookEvery = 5 * time.Second  // least time between two looks at the tree
	idleEvery = 30 * time.Second // looks without a reason: reports become stale, and reminders due
	sendTime  = 30 * time.Second // for one message
	endTime   = 5 * time.Second  // for all on their way when the agent stops
	firstWait = 10 * time.Second // after the first failure; then twice as long each time
	mostWait  = 30 * time.Minute
	tooOld    = 24 * time.Hour // a message that could not be sent for so long is dropped
	freshFor  = time.Minute    // between two announcements of what lasts, for Alertmanager
)

// Notifiers are all notifiers of a site. Run owns its state; the other methods may be called from any goroutine.
type Notifiers struct {
	o      Options
	send   func(ctx context.Context, n *model.Notify, m Message) error
	wake   chan struct{}
	looked time.Time
	state  state
	stored []byte          // the state as it is on disk, as far as that is known
	acked  map[string]bool // messages that were sent, and whose end is not stored yet
	round  map[string]map[string]*pending
	lines  map[string]*line
	done   chan sent
	broken error // why the state cannot be stored

	published atomic.Pointer[[]agent.NotifyStatus]
}

// line is what is known of the way to a receiver, since the start.
type line struct {
	busy  bool
	err   error
	since time.Time // of the failure
	next  time.Time // no message is sent before
	wait  time.Duration
	last  time.Time // a message was sent, or what lasts was announced
}

// sent is how sending a message ended. Without an ID it was the announcement of what lasts.
type sent struct {
	name, id string
	err      error
}

// Open makes notifiers; it reads what was kept.
func Open(o Options) (*Notifiers, error) {
	if o.Replace == nil {
		o.Replace = durable.Replace
	}
	n := &Notifiers{o: o, wake: make(chan struct{}, 1), acked: map[string]bool{}, round: map[string]map[string]*pending{}, lines: map[string]*line{}, done: make(chan sent)}
	n.send = func(ctx context.Context, to *model.Notify, m Message) error { return send(ctx, o.Web, to, m) }
	n.published.Store(&[]agent.NotifyStatus{})
	var err error
	n.state, err = readState(o.File)
	n.stored, _ = json.Marshal(n.state) // what was read can be written
	return n, err
}

// Wake says that the tree may have changed. It never blocks.
func (n *Notifiers) Wake() {
	select {
	case n.wake <- struct{}{}:
	default: // it is awake
	}
}

// Status describes each notifier.
func (n *Notifiers) Status() []agent.NotifyStatus { return *n.published.Load() }

// pace is a pause, or that of the options if it is shorter.
func (n *Notifiers) pace(d time.Duration) time.Duration {
	if n.o.Pace > 0 {
		return min(d, n.o.Pace)
	}
	return d
}

// Run works until ctx ends, and waits for what is being sent.
func (n *Notifiers) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var seen Seen
	for woken := true; ; {
		now := time.Now()
		if since := now.Sub(n.looked); n.looked.IsZero() || since < 0 || since >= n.pause(woken) {
			if woken, seen = false, n.o.Look(); seen.Notifiers != nil {
				n.looked = now
			}
			n.look(seen, now)
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

// finish waits a moment for messages on their way: how those end that are cut off is not known, so they are sent again.
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

// pause is the time between two looks: short when something happened, or lasts and is not told yet.
func (n *Notifiers) pause(woken bool) time.Duration {
	for _, pending := range n.round {
		woken = woken || len(pending) > 0
	}
	if woken || n.broken != nil {
		return n.pace(lookEvery)
	}
	return n.pace(idleEvery)
}

// next is how long nothing is to be done, unless something happens.
func (n *Notifiers) next(now time.Time, woken bool) time.Duration {
	wait := n.pause(woken)
	if !n.looked.IsZero() {
		wait = n.looked.Add(wait).Sub(now)
	}
	for name, l := range n.lines {
		if of := n.state.Notifiers[name]; of != nil && len(of.Queue) > 0 && !l.busy && !n.acked[of.first().ID] {
			wait = min(wait, max(l.next.Sub(now), 0))
		}
	}
	return wait
}

// look compares the tree with what is kept, and stores what follows. If that fails, nothing changes, and the next look
// finds the same.
func (n *Notifiers) look(s Seen, now time.Time) {
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

// store makes a state the one that counts, once it is on disk.
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
		n.o.Log.Error("notifications are not sent, since they cannot be stored", "error", err)
	}
	n.broken = err
}

// due gives the message that each notifier sends next: the first of its queue that counts, or the announcement of what lasts.
func (n *Notifiers) due(rules map[string]*model.Notify, now time.Time) map[string]Message {
	out := map[string]Message{}
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

// ended takes in how sending a message ended.
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

// forget takes a message out of its queue. If that cannot be stored now, the next look does it.
func (n *Notifiers) forget(r sent, dropped bool, now time.Time) {
	n.acked[r.id] = true
	next := n.state.without(nil, n.acked)
	if dropped {
		next.of(r.name).lose(1, now)
	}
	n.store(next)
}

// publish lets everybody see how the notifiers are.
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

// Test sends a message by a notifier, now and without the queue.
func (n *Notifiers) Test(ctx context.Context, name string) error {
	seen := n.o.Look()
	rule := seen.Notifiers[name]
	if rule == nil {
		return fmt.Errorf("%w: %s\n%s", errUnknown, name, diag.DidYouMean(name, slices.Sorted(maps.Keys(seen.Notifiers))))
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	now := time.Now().UTC()
	m := Message{ID: newID(), Kind: kindTest, At: now, Since: now, Agent: seen.Status.Identity, Text: "This is a test of notify " + name + "."}
	if rule.OfCommits() {
		if seen.Status.InForce == nil {
			return errors.New("no commit is in force, so there is none to set a status of")
		}
		m.Kind, m.Commit, m.Context, m.State = kindStatus, seen.Status.InForce.ID, "homestak/test", stateSuccess
	}
	if err := n.send(ctx, rule, m); err != nil {
		return fmt.Errorf("send a test by notify %s: %s", name, diag.ShortLine(seen.Mask(err.Error()), mostIncidentText))
	}
	return nil
}

// past reports whether a time is over since then. A clock that was set back does not stop everything.
func past(now, since time.Time, d time.Duration) bool {
	e := now.Sub(since)
	return e >= d || e < 0
}
