package specserve

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/catalog"
)

// The answer to a node that waits.
const (
	toFetch     = "spec"      // there is another spec for it
	toConfigure = "config"    // there is another commit or configuration for a child
	toReconcile = "reconcile" // somebody wants it to check itself now
)

// waiter is a request that waits until there is something to do for its node.
type waiter struct {
	identity  string
	published chan struct{} // perhaps there is another spec
	reconcile chan struct{}
	below     []string // nodes that a child manages, and that are to check themselves; guarded as all of waiters
}

// waiters are those who wait now. A mutex guards them: they come and go in many goroutines, and
// whoever publishes wakes them all.
type waiters struct {
	mutex sync.Mutex
	all   map[*waiter]bool
	by    map[string]int // how many wait for a node
}

func newWaiters() *waiters { return &waiters{all: map[*waiter]bool{}, by: map[string]int{}} }

// enter adds a waiter; nil if there are too many, of the node or of all.
func (w *waiters) enter(identity string, l Limits) *waiter {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.all) >= l.Waiters || w.by[identity] >= l.WaitersPerNode {
		return nil
	}
	one := &waiter{identity: identity, published: make(chan struct{}, 1), reconcile: make(chan struct{}, 1)}
	w.all[one] = true
	w.by[identity]++
	return one
}

func (w *waiters) leave(one *waiter) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.all, one)
	if w.by[one.identity]--; w.by[one.identity] == 0 {
		delete(w.by, one.identity)
	}
}

func (w *waiters) count() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return len(w.all)
}

// wake wakes those who wait for a node, or all for "".
func (w *waiters) wake(identity string, channel func(*waiter) chan struct{}) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for one := range w.all {
		if identity != "" && one.identity != identity {
			continue
		}
		select {
		case channel(one) <- struct{}{}:
		default: // it knows already
		}
	}
}

// mostBelow is of how many nodes below it a child hears at once. It checks all it has anyway.
const mostBelow = 64

// ask asks those who wait for a node, or for the child that manages it, to check.
func (w *waiters) ask(identity, node string) {
	w.mutex.Lock()
	for one := range w.all {
		if one.identity == identity && node != identity && len(one.below) < mostBelow && !slices.Contains(one.below, node) {
			one.below = append(one.below, node)
		}
	}
	w.mutex.Unlock()
	w.wake(identity, func(w *waiter) chan struct{} { return w.reconcile })
}

// asked are the nodes below that one who waits was asked for.
func (w *waiters) asked(one *waiter) []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return one.below
}

// wait answers when there is something to do for the node, or when its time is over. The node says
// by If-None-Match which spec it has. Without that only what changes from now on counts.
func wait(x *request) error {
	node, err := x.own()
	if err != nil {
		return err
	}
	one := x.waiting.enter(x.identity, x.o.Limits)
	if one == nil {
		return x.later(x.o.Limits.Wait/4, "too many requests wait for this node, or for all")
	}
	defer x.waiting.leave(one)
	// It may take longer than other requests. Where that cannot be said, it ends earlier.
	control, end := http.NewResponseController(x.w), time.Now().Add(x.o.Limits.Wait+x.o.Limits.Write)
	_ = control.SetReadDeadline(end)
	_ = control.SetWriteDeadline(end)

	has := x.Header.Values("If-None-Match")
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
		what, tag, err := x.awaited(now, node)
		if err != nil {
			return err
		}
		if !matches(has, tag) {
			return x.done(http.StatusOK, what)
		}
		select {
		case <-one.published:
		case <-one.reconcile:
			return x.json(http.StatusOK, Done{Status: toReconcile, Nodes: x.waiting.asked(one)})
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

// awaited is what a node fetches, and its tag.
func (x *request) awaited(v *View, n *catalog.Node) (what, tag string, err error) {
	own := catalog.Own{Pins: v.Pins, Agent: x.agentSums()}
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

// reconcileNode asks the node that waits to check itself now. One that does not wait does so when
// its time comes.
func reconcileNode(x *request) error {
	if err := x.keyed(x.view.Access.Operator, "operator"); err != nil {
		return err
	}
	if x.identity == x.o.Identity {
		return x.checkAll()
	}
	if !x.Wake(x.identity) {
		_, err := x.node()
		return err
	}
	x.o.Check()
	return x.done(http.StatusAccepted, "checking")
}

// Wake asks a node to check itself, if it waits; false: it is not served. Of nodes further down only the
// child is known here that they are below: it checks all it has, and asks them in turn.
func (s *Server) Wake(node string) bool {
	v, through := s.view.Load(), node
	if v.node(node) == nil { // no report can take a node that is served here
		if through = s.reports.Through(node); v.node(through) == nil {
			return false
		}
	}
	s.waiting.ask(through, node)
	return true
}
