package specserve

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The answer to a node that waits.
const (
	toFetch     = "spec"      // there is another spec for it
	toConfigure = "config"    // there is another commit or configuration for a child
	toReconcile = "reconcile" // a check of the node was requested
	toCarryOut  = "queue"     // there are tasks for it; only for those who ask with wire.QueueQuery
	toRenew     = "token"     // its token is to be replaced: it fetches, and has nothing else to do
)

// waiter is a request that waits until there is something to do for its node.
type waiter struct {
	identity  string
	published chan struct{} // perhaps there is another spec, or a task
	reconcile chan struct{}
	asked     *inquiry // that it was woken for, and has not answered yet; guarded as all of waiters
}

// inquiry is a request that a node checks itself.
type inquiry struct {
	below []string // nodes that a child manages, and that are to check themselves in turn
}

// mostBelow is of how many nodes below it a child hears at once. It checks all it has anyway.
const mostBelow = 64

// add adds the nodes of another inquiry about the same identity.
func (q *inquiry) add(more *inquiry) {
	for _, node := range more.below {
		if len(q.below) < mostBelow && !slices.Contains(q.below, node) {
			q.below = append(q.below, node)
		}
	}
}

// waiters are the waiting clients, and what is kept for those that are not. A mutex guards them: they come and go
// in many goroutines, and publishing wakes them all.
type waiters struct {
	mutex sync.Mutex
	all   map[*waiter]bool
	by    map[string]int      // how many wait for a node
	kept  map[string]*inquiry // for nodes that are served, until they wait again; one for each
}

func newWaiters() *waiters {
	return &waiters{all: map[*waiter]bool{}, by: map[string]int{}, kept: map[string]*inquiry{}}
}

// enter adds a waiter; nil if there are too many, of the node or of all. It is woken for what was kept for its node.
func (w *waiters) enter(identity string, l Limits) *waiter {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.all) >= l.Waiters || w.by[identity] >= l.WaitersPerNode {
		return nil
	}
	one := &waiter{identity: identity, published: make(chan struct{}, 1), reconcile: make(chan struct{}, 1)}
	w.all[one] = true
	w.by[identity]++
	if q := w.kept[identity]; q != nil {
		delete(w.kept, identity)
		one.ask(q)
	}
	return one
}

// leave takes a waiter out. Its unanswered requests are kept for the next one of its node.
func (w *waiters) leave(one *waiter) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.all, one)
	if w.by[one.identity]--; w.by[one.identity] == 0 {
		delete(w.by, one.identity)
	}
	if one.asked != nil {
		w.keep(one.identity, one.asked)
	}
}

// keep keeps an inquiry for a node that does not wait. The caller has the mutex.
func (w *waiters) keep(identity string, q *inquiry) {
	if before := w.kept[identity]; before != nil {
		before.add(q)
		return
	}
	w.kept[identity] = q
}

// serve drops what is kept for nodes that are served no more.
func (w *waiters) serve(is func(identity string) bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	maps.DeleteFunc(w.kept, func(identity string, _ *inquiry) bool { return !is(identity) })
}

func (w *waiters) count() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return len(w.all)
}

// changed wakes all: there may be another spec for each.
func (w *waiters) changed() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for one := range w.all {
		select {
		case one.published <- struct{}{}:
		default: // it knows already
		}
	}
}

// announce wakes the waiters of a node: there may be a task for it.
func (w *waiters) announce(identity string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for one := range w.all {
		if one.identity == identity {
			select {
			case one.published <- struct{}{}:
			default: // it knows already
			}
		}
	}
}

// askAll asks all who wait to check themselves.
func (w *waiters) askAll() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for one := range w.all {
		one.ask(&inquiry{})
	}
}

// ask requests a check from the waiters of a node, or of the child that manages it. Without a waiter it keeps the
// request and returns false.
func (w *waiters) ask(identity, node string) (waits bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	below := func() *inquiry {
		if node == identity {
			return &inquiry{}
		}
		return &inquiry{below: []string{node}}
	}
	for one := range w.all {
		if one.identity == identity {
			one.ask(below())
			waits = true
		}
	}
	if !waits {
		w.keep(identity, below())
	}
	return waits
}

// ask wakes a waiter. The caller has the mutex of waiters.
func (one *waiter) ask(q *inquiry) {
	if one.asked == nil {
		one.asked = q
	} else {
		one.asked.add(q)
	}
	select {
	case one.reconcile <- struct{}{}:
	default: // it knows already
	}
}

// answer takes what a waiter was asked for. If that cannot be sent it is to be given back by again.
func (w *waiters) answer(one *waiter) (q *inquiry, again func()) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	q, one.asked = one.asked, nil
	return q, func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.keep(one.identity, q)
	}
}

// wait answers when there is something to do for the node, or when its time is over. The node says
// by If-None-Match which spec it has. Without that only what changes from now on counts.
func wait(x *request) error {
	node, err := x.own()
	if err != nil {
		return err
	}
	if x.due() {
		return x.done(http.StatusOK, toRenew)
	}
	one := x.waiting.enter(x.identity, x.o.Limits)
	if one == nil {
		return x.later(x.o.Limits.Wait/4, "too many requests wait for this node, or for all")
	}
	defer x.waiting.leave(one)
	// It may take longer than other requests. If the deadline cannot be extended, it ends earlier.
	control, end := http.NewResponseController(x.w), time.Now().Add(x.o.Limits.Wait+x.o.Limits.Write)
	_ = control.SetReadDeadline(end)
	_ = control.SetWriteDeadline(end)

	has, takesTasks := x.Header.Values("If-None-Match"), x.URL.Query().Has(wire.QueueQuery)
	if len(has) == 0 {
		_, tag, err := x.awaited(x.view, node)
		if err != nil {
			return err
		}
		has = []string{tag}
	}
	over := time.NewTimer(x.o.Limits.Wait)
	defer over.Stop()
	for {
		now := x.Server.view.Load() // after enter: what was published before that is seen, too
		node := now.node(x.identity)
		if node == nil {
			x.view = now
			_, err := x.node()
			return err
		}
		if x.shown.Kind == policy.Provisioning {
			if err := now.Book.Admit(x.shown.Claims, x.o.Now()); err != nil {
				return err // its token was revoked while it waited
			}
		}
		what, tag, err := x.awaited(now, node)
		if err != nil {
			return err
		}
		if !matches(has, tag) {
			if what == toFetch {
				x.waiting.answer(one) // it checks itself when it fetches
			}
			return x.done(http.StatusOK, what)
		}
		if x.o.Queue != nil && takesTasks && x.o.Queue.News(x.identity) {
			return x.done(http.StatusOK, toCarryOut)
		}
		select {
		case <-one.published:
		case <-one.reconcile:
			q, again := x.waiting.answer(one)
			err := x.json(http.StatusOK, done{Status: toReconcile, Nodes: q.below})
			if err != nil {
				again()
			}
			return err
		case <-over.C:
			return x.nothing()
		case <-x.ending:
			x.w.Header().Set("Connection", "close")
			return x.nothing()
		case <-x.Context().Done():
			x.reason = "the node went away"
			return x.nothing()
		}
	}
}

// awaited is the kind of document that a node fetches, and its tag.
func (x *request) awaited(v *View, n *Node) (what, tag string, err error) {
	own := Own{Pins: v.Pins, Agent: x.agentSums()}
	if n.Child {
		_, tag, err = v.Catalog.Config(n, own)
		return toConfigure, tag, err
	}
	_, tag, err = n.Answer(own)
	return toFetch, tag, err
}

// nothing says that there is nothing to do.
func (x *request) nothing() error {
	x.status = http.StatusNoContent
	x.w.WriteHeader(x.status)
	return nil
}

// reconcileNode asks a node to check itself now. For one that does not wait at the moment that is kept until it does.
func reconcileNode(x *request) error {
	if x.identity == x.o.Identity {
		return x.checkAll()
	}
	asked := x.Wake(x.identity)
	if asked == wire.AskedUnknown {
		_, err := x.node()
		return err
	}
	x.o.Check()
	return x.done(http.StatusAccepted, string(asked))
}

// Wake asks a node to check itself. One that does not wait at the moment is asked when it waits again, and one in mode push
// never waits. Of nodes further down only the child is known here that they are below: it checks all it has, and asks them
// in turn.
func (s *Server) Wake(node string) wire.Asked {
	through, pushed := s.Next(node)
	if n := s.view.Load().node(node); n != nil {
		pushed = !n.Child && (n.Run == nil || n.Run.Pushed)
	}
	switch {
	case through == "":
		return wire.AskedUnknown
	case pushed:
		return wire.AskedPushed
	case s.waiting.ask(through, node):
		return wire.AskedChecking
	default:
		return wire.AskedKept
	}
}
