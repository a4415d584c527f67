package specserve

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Options configure a Server.
type Options struct {
	Version string   // of the program
	Program *Program // what new nodes get; nil: none
	Spool   string   // folder of temporary files; "": the system's
	TLS     *tls.Config
	Limits  Limits // zero: Usual
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now

	Images Images // that children may get; nil: none

	// Check is called on a request for a check of what is served. It returns immediately. May be nil.
	Check func()

	// The rest is for the server of an agent.
	Identity string            // of the agent; "": it is none
	Reports  *wire.ReportStore // of its nodes; nil: a new one
	Agent    http.Handler      // what the socket of the agent answers; nil: nothing
	Status   func() any        // the answer of /status, as JSON; nil: what nodes reported
	// Reconcile makes the agent check, and returns the result of that pass as JSON. It returns early when ctx ends.
	// Nil: there are no passes.
	Reconcile func(ctx context.Context) (any, error)
	// Verify runs the checks of nodes, of all of a manifest, or of all for none, and returns their results as JSON; by is who
	// asks. Nil: it has none.
	Verify func(ctx context.Context, nodes []string, manifest, by string) (any, error)
	// Plan makes the plan of a host, this one or one below, and returns it as JSON, with all attributes of the resource at
	// an address unless that is empty; by is who asks. Nil: there are none.
	Plan func(ctx context.Context, host, attributes, by string) (any, error)
	// Reported is called when the report of a node changed; before has no identity if there was none. It returns immediately. May be
	// nil.
	Reported func(before, after wire.Report, child bool)
	// Receipts keeps receipts of a child, and returns the newest ones that are kept. Nil: none are.
	Receipts func(child string, r wire.Receipts) (wire.ReceiptHeads, error)
	Queue    *tasks.Queue // what the agent asks of its nodes; nil: nothing
	// Events writes the stream of events until the client leaves, or ending is closed. Nil: there is none.
	Events  func(w http.ResponseWriter, r *http.Request, ending <-chan struct{})
	Metrics []Collector // figures of the agent, for the answer of /metrics
}

// View is the immutable state that a request reads.
type View struct {
	Catalog *Catalog   // nil before the first commit: then only operators and hooks are served
	Keys    keys.Keys  // the first one signs
	Book    *keys.Book // which of their tokens count; nil: those that have not expired
	Access  keys.Access
	Pins    []string      // of the server: its key and the next one
	Signer  crypto.Signer // the key of the server, for tasks; nil: it gives none

	Repository   *serve.Snapshot // at the commit of Catalog; nil: none is served
	NoRepository string          // why, for the client

	// Removed are children that are no longer in Catalog but still on the host. Their tokens stay valid, except for
	// specs.
	Removed map[string]bool
}

// node finds a node that is served; nil if there is none.
func (v *View) node(name string) *Node {
	if n := v.Catalog.Node(name); n != nil || !v.Removed[name] {
		return n
	}
	return removed(name)
}

// commit is the one that is served; "" as long as there is none.
func (v *View) commit() string {
	if v.Catalog == nil {
		return ""
	}
	return v.Catalog.Commit
}

// Server answers nodes. Its methods may be called from any goroutine.
type Server struct {
	o       Options
	table   []endpoint
	view    atomic.Pointer[View] // never nil; empty at first
	started time.Time

	refusals, perNode *rates        // requests that were refused, by client, and by client and node
	noted             *rates        // lines of the log about a client
	listing           chan struct{} // one slot for listing all specs
	repository        *serve.Handler
	images            downloads
	underWay          sync.WaitGroup // requests

	counts       *counts // of what was answered
	figures      Registry
	reports      *wire.ReportStore
	reporting    *rates            // reports, by node
	hooks        *keys.HookChecker // of notifications
	streams      chan struct{}     // slots for readers of events
	waiting      *waiters
	waitingHosts waitingHosts  // joined, and not in the site
	ending       chan struct{} // closed when it takes no more requests
}

// New makes a server that has nothing to serve yet.
func New(o Options) *Server {
	if o.Limits == (Limits{}) {
		o.Limits = Usual()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Check == nil {
		o.Check = func() {}
	}
	if o.Reported == nil {
		o.Reported = func(_, _ wire.Report, _ bool) {}
	}
	if o.Reports == nil {
		o.Reports = &wire.ReportStore{}
	}
	l := o.Limits
	s := &Server{
		o: o, table: endpoints(), started: o.Now(), listing: make(chan struct{}, 1),
		repository: serve.NewHandler(serve.HandlerOptions{Bounds: serve.Options{Dir: o.Spool}, Log: o.Log}),
		images:     newDownloads(),
		refusals:   newRates(l.Refusals, l.Remembered),
		perNode:    newRates(l.RefusalsPerNode, l.Remembered),
		noted:      newRates(Rate{Every: time.Minute, Burst: 1}, 1024),

		counts: newCounts(), reports: o.Reports, reporting: newRates(l.Reports, l.Remembered),
		hooks: keys.NewHookChecker(o.Now), streams: make(chan struct{}, l.Streams),
		waiting: newWaiters(), ending: make(chan struct{}),
	}
	s.view.Store(&View{})
	s.figures = NewRegistry(append([]Collector{s.counts.requests, s.counts.refusals, s.counts.took, CurrentFigures(s.now)}, o.Metrics...)...)
	return s
}

// Publish makes a view the one of all requests that begin from now on.
// Reports of nodes that its commit does not have are dropped.
func (s *Server) Publish(v View) {
	s.repository.Publish(v.Repository)
	s.view.Store(&v)
	s.waiting.changed()
	if v.Catalog != nil {
		served := func(identity string) bool { return v.node(identity) != nil }
		s.reports.Keep(served)
		s.waiting.serve(served)
	}
}

// Serve answers over TLS until ctx ends. Then it takes no more requests and answers those under way,
// as long as Limits.Shutdown allows. It closes the listener. A Server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	l := s.o.Limits
	h := &http.Server{
		Handler: s, TLSConfig: s.o.TLS, DisableGeneralOptionsHandler: true,
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ReadHeaderTimeout: l.Header, ReadTimeout: l.Read, WriteTimeout: l.Write, IdleTimeout: l.Idle,
		MaxHeaderBytes: l.HeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 64, SendPingTimeout: l.Header, PingTimeout: l.Header, WriteByteTimeout: l.Header,
			MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10,
		},
	}
	bounded := newBoundedListener(ln, connectionBounds{Total: l.Connections, PerClient: l.ConnectionsPerClient, Unverified: l.Unverified, Idle: l.IdleUnverified}, func(client netip.Prefix, open int) {
		s.note(client, "it or all clients together have too many connections", "open", open)
	})
	var silent wire.Silent
	h.ConnContext = bounded.Context
	h.ConnState = func(c net.Conn, state http.ConnState) {
		silent.Track(c, state)
		bounded.Track(c, state)
	}
	served := make(chan error, 1)
	go func() { served <- h.ServeTLS(bounded, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	close(s.ending)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Shutdown)
	defer cancel()
	defer time.AfterFunc(l.Shutdown/4, silent.Close).Stop() // Shutdown alone gives them seconds
	if h.Shutdown(end) != nil {
		_ = h.Close() // a client is silent, or does not read its response
	}
	s.underWay.Wait()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	}
	return nil
}

// note logs why a client is refused, once in a while for each.
func (s *Server) note(client netip.Prefix, why string, args ...any) {
	if _, ok := s.noted.Take(rateKey{Client: client}, s.o.Now()); ok {
		s.o.Log.Warn("refusing a client", append([]any{"client", client.String(), "why", why}, args...)...)
	}
}
