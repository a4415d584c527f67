package daemon

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// ServerOptions configure the server of an agent. What follows from its files is set when they are opened: of Options
// the program, the spool, TLS and the reports.
type ServerOptions struct {
	specserve.Options

	Above       string // URL of the parent's server; "" for the agent of a host
	Listen      string // address; a socket of the service manager comes first
	Access      keys.Files
	ProgramFile string // of the program, for new nodes; "": they get none from here

	// Open listens on an address, in place of a network; nil: that of this machine.
	Open func(ctx context.Context, address string) (net.Listener, error)
}

// Server is the server of an agent. Its methods may be called from any goroutine.
type Server struct {
	o      ServerOptions
	retry  time.Duration // until what failed is tried again
	notice func(ctx context.Context, folders ...string) <-chan struct{}
	way    way    // to the parent
	kept   []byte // the file of reports as it is on the disk; of the goroutine of Run

	mutex  sync.Mutex     // for moments: the agent publishes, the server checks its files, and both are asked how they are
	opened                // server nil: none listens; credentials nil: they could not be read so far
	commit ServedCommit   // the last that InForce was called with
	view   specserve.View // of that commit; Catalog nil: there is none yet
	state  State
}

// State is the state of a server.
type State struct {
	Address string   // that it listens on, or tries to
	Pins    []string // of its key and the next one
	Commit  string   // that it serves; "" for none yet
	Nodes   int      // that it serves
	Answers bool     // it listens, and has a commit
	// Errors of listening, and of the served content; nil if all is well.
	Listening, Serving error
	Since              time.Time // when it began
}

// Err is the error of the server, nil if there is none.
func (s State) Err() error {
	if s.Listening != nil {
		return s.Listening
	}
	return s.Serving
}

// NewServer makes a server that does nothing yet.
func NewServer(o ServerOptions) *Server {
	notice := durable.Notice
	if o.Open == nil {
		o.Open = listen
	} else { // a simulated network has a simulated clock, which stands still while a file is waited for
		notice = func(context.Context, ...string) <-chan struct{} { return nil }
	}
	o.Reports = &wire.ReportStore{}
	return &Server{o: o, notice: notice, way: way{dial: new(net.Dialer).DialContext}, retry: retryAfter, state: State{Address: o.Listen}}
}

// State returns the present state of the server.
func (s *Server) State() State {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	out := s.state
	out.Answers = s.server != nil && s.view.Catalog != nil
	return out
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) {
	s.restoreReports()
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		s.failed(&s.state.Listening, "the server for nodes does not run; everything else continues", err)
		again := time.NewTimer(s.retry)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

// failed records an error, and logs it if it is new. Nil clears it.
func (s *Server) failed(what *error, text string, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	before := *what
	*what = err
	switch {
	case s.state.Err() == nil:
		s.state.Since = time.Time{}
	case s.state.Since.IsZero():
		s.state.Since = time.Now()
	}
	if err != nil && (before == nil || before.Error() != err.Error()) {
		s.o.Log.Error(text, "error", err) //nolint:sloglint // one of a few constants
	}
}

// serve listens and answers until ctx ends, or something fails.
func (s *Server) serve(ctx context.Context) error {
	o, err := open(credentialsOptions{Access: s.o.Access, Log: s.o.Log}, s.o.ProgramFile, s.o.Options)
	defer o.close()
	if err != nil {
		return err
	}
	ln, err := s.o.Open(ctx, s.o.Listen)
	if err != nil {
		return err
	}
	s.failed(&s.state.Listening, "", nil)
	s.begin(o, ln.Addr().String())
	defer s.begin(opened{credentials: o.credentials}, s.o.Listen)
	serving, end := context.WithCancel(ctx)
	defer end()
	served := make(chan error, 1)
	go func() { served <- o.server.Serve(serving, ln) }()
	s.o.Log.Info("serving nodes", "address", ln.Addr().String(), "pin", o.credentials.Certificate().Pins()[0])
	changed, minute := s.notice(serving, o.credentials.Folders()...), time.NewTicker(keepEvery)
	defer minute.Stop()
	defer s.keepReports()
	for {
		select {
		case <-changed:
			s.check()
		case <-minute.C:
			s.check()
			s.keepReports()
		case err := <-served:
			return err
		}
	}
}

// begin makes a server the one that things are published to, if there is one.
func (s *Server) begin(o opened, address string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.opened, s.state.Address, s.state.Pins = o, address, o.credentials.Certificate().Pins()
	s.publish()
}

// check reads again what changed on the disk: keys, and the certificate, which it also renews. An agent that has nothing to do
// wakes up for little else, so it is called after a notice, and once in a minute.
func (s *Server) check() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.credentials.Check() {
		s.state.Pins = s.credentials.Certificate().Pins()
		s.publish()
	}
	for node := range s.credentials.Book().Revoked() {
		if s.server != nil && s.server.HasReported(node) { // that was before: now it needs a new token, and the next pass is to see to it
			s.o.Log.Warn("the tokens of a node were revoked", "identity", node)
			s.server.Forget(node)
			s.o.Check()
		}
	}
}

// publish makes what is in force what requests see. The caller has the mutex.
func (s *Server) publish() {
	if s.server != nil {
		s.opened.publish(s.view)
	}
}
