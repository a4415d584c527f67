package client

// Uplink is the connection of a child's agent to its parent: it reports, waits for work, and fetches the
// configuration of its subtree. If the parent fails, the child continues with what it has.
//
//	uplink.go  the reports, and the long poll
//	state.go   what the child stores: renewed pins and token, the configuration

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// UplinkOptions configure an uplink.
type UplinkOptions struct {
	Given wire.Parent   // as the administrator wrote it
	File  string        // what the child keeps, mode 0600: it holds a token and secrets
	Agent string        // name and version of the program
	Every time.Duration // longest time between two reports
	Log   *slog.Logger

	Report   func() ([]byte, error) // the document of now
	Receipts ReceiptSender          // sends receipts after each report that the parent took; nil: there are none
	Check    func()                 // makes the agent check repository and host; it returns immediately
	Tasks    chan<- struct{}        // gets a value when there are tasks for the agent; it has room for one. Nil: it takes none
	Wake     func(node string)      // asks a node below to check itself, likewise; nil: there is none

	Between time.Duration // least time between two reports; 0: 5 s

	// Dial opens a connection; nil for the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// ReceiptSender sends what the parent lacks of the receipts, on the goroutine of reports. A failure waits for the next report.
type ReceiptSender interface {
	Send(ctx context.Context, c *Client)
}

// State is the state of the connection to the parent.
type State struct {
	URL      string
	Reported time.Time // last report that it took; zero: none
	Err      error     // of the last report; nil: it was taken
	Since    time.Time // when the reports began to fail
}

// Uplink is a child with its parent. Its methods may be called from any goroutine.
type Uplink struct {
	o         UplinkOptions
	transport *Transport
	ended     chan struct{} // a pass ended

	mutex sync.Mutex // for moments: two goroutines ask the parent, and others read what it said
	kept  kept
	state State
	next  *Next  // nil: there is none
	tried string // why turning to it failed
}

// OpenUplink reads what the child kept.
func OpenUplink(o UplinkOptions) (*Uplink, error) {
	if o.Wake == nil {
		o.Wake = func(string) {}
	}
	if err := o.Given.Check(); err != nil {
		return nil, err
	}
	k, err := load(o.File, o.Given)
	if err != nil {
		return nil, err
	}
	o.Between = cmp.Or(o.Between, ReportInterval)
	u := &Uplink{o: o, ended: make(chan struct{}, 1), kept: k, state: State{URL: k.parent.Server}}
	u.transport = NewTransport(func() (wire.Parent, error) { return u.Parent(), nil }, o.Given.Server, o.Dial)
	return u, nil
}

// Parent is the parent as the child knows it now.
func (u *Uplink) Parent() wire.Parent {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.kept.parent
}

// Config is the configuration that was fetched last; nil: none was.
func (u *Uplink) Config() *wire.Config {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.kept.config
}

// Transport sends requests to the parent, with the pins and the token of now.
func (u *Uplink) Transport() *Transport { return u.transport }

// State returns the state of the connection to the parent.
func (u *Uplink) State() State {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.state
}

// Turn says which parent a commit gives this host, nil if it is the one that it has. It is turned to with the next question.
func (u *Uplink) Turn(next *Next) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.next = next
}

// turn turns to the next parent, if there is one. The configuration and all secrets stay until that one gives others.
func (u *Uplink) turn(ctx context.Context) {
	u.mutex.Lock()
	next, at := u.next, u.kept.parent
	u.mutex.Unlock()
	if next == nil || next.Server == at.Server {
		return
	}
	ask := &Client{Parent: wire.Parent{Identity: at.Identity, Server: next.Server}, Agent: u.o.Agent, Dial: u.o.Dial}
	known, err := ask.handOver(ctx, next.Keys)
	if ctx.Err() != nil {
		return
	}
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if err != nil {
		if u.tried != err.Error() {
			u.tried = err.Error()
			u.o.Log.Warn("this host has another parent now, which does not accept it yet; the former one serves it until then", "parent", next.Server, "error", err)
		}
		return
	}
	u.tried, u.kept.parent, u.kept.tag, u.state.URL = "", known, "", known.Server
	u.o.Log.Info("the parent is another one now", "parent", known.Server, "before", at.Server)
	if err := u.kept.save(u.o.File); err != nil {
		u.o.Log.Error("the new parent cannot be stored, so it is asked again after a restart", "error", err)
	}
}

// PassEnded makes a report due: a pass ended, a check turned, or a child of its own said something new.
func (u *Uplink) PassEnded() {
	select {
	case u.ended <- struct{}{}:
	default: // one is due already
	}
}

// Run works until ctx ends.
func (u *Uplink) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { u.report(ctx) })
	group.Go(func() { u.wait(ctx) })
	group.Wait()
	u.transport.CloseIdleConnections()
}

// Client asks the parent as it is known now.
func (u *Uplink) Client() *Client {
	return &Client{Parent: u.Parent(), Agent: u.o.Agent, Dial: u.o.Dial}
}

// ReportInterval is the minimum time between two reports, since the parent limits them.
const ReportInterval = 5 * time.Second

// attempts at a report.
const attempts = 3

// mostPause is the longest pause after attempts that failed.
const mostPause = 2 * time.Minute

// report sends a report after every pass, and when none was for a while. An attempt that fails is repeated
// a few times; then the next report says what this one would have said.
func (u *Uplink) report(ctx context.Context) {
	for {
		pause := wire.Backoff{Most: mostPause}
		for attempt := 1; ; attempt++ {
			err := u.reportOnce(ctx)
			if err == nil && ctx.Err() == nil && u.o.Receipts != nil {
				u.o.Receipts.Send(ctx, u.Client())
			}
			if err == nil || attempt == attempts || !wire.Sleep(ctx, pause.Next(), nil) {
				break
			}
		}
		if !wire.Sleep(ctx, u.o.Between, nil) || !wire.Sleep(ctx, wire.Jitter(u.o.Every)-u.o.Between, u.ended) {
			return
		}
	}
}

func (u *Uplink) reportOnce(ctx context.Context) error {
	document, err := u.o.Report()
	if err == nil {
		err = u.Client().Report(ctx, document)
	}
	if ctx.Err() != nil {
		return nil // the agent ends, and that is not a failure of the parent
	}
	u.mutex.Lock()
	defer u.mutex.Unlock()
	before := u.state.Err
	u.state.Err = err
	switch {
	case err == nil:
		u.state.Reported, u.state.Since = time.Now(), time.Time{}
		if before != nil {
			u.o.Log.Info("the parent accepts reports again", "parent", u.kept.parent.Server)
		}
	case before == nil:
		u.state.Since = time.Now()
		u.o.Log.Warn("the parent did not accept a report; the agent continues", "parent", u.kept.parent.Server, "error", err)
	}
	return err
}

// wait fetches the configuration whenever there is another one, and makes the agent check when the parent
// says so.
func (u *Uplink) wait(ctx context.Context) {
	pause := wire.Backoff{Most: mostPause}
	var polled time.Time // when the last poll began; zero: none did
	for {
		u.turn(ctx)
		changed, err := u.fetch(ctx)
		if changed {
			u.o.Check()
		}
		var what string
		var below []string
		if err == nil {
			if early := wire.Jitter(wire.MinPollInterval) - time.Since(polled); early > 0 && !wire.Sleep(ctx, early, nil) {
				return
			}
			polled = time.Now()
			what, below, err = u.Client().Wait(ctx, u.tag())
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !wire.Sleep(ctx, pause.Next(), nil) {
				return
			}
			continue
		case what == "queue":
			select {
			case u.o.Tasks <- struct{}{}:
			default: // it knows already
			}
		case what != "" && what != "config" && what != "token": // both are fetched anyway
			u.o.Check()
			for _, node := range below {
				u.o.Wake(node)
			}
		}
		pause.Reset()
	}
}

// fetch asks for the configuration, and keeps what is new.
func (u *Uplink) fetch(ctx context.Context) (changed bool, err error) {
	tag := u.tag()
	got, err := u.Client().Config(ctx, tag)
	if err != nil || got.NotModified {
		return false, err
	}
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.kept = u.kept.with(got)
	if err := u.kept.save(u.o.File); err != nil {
		u.o.Log.Error("the parent's answer cannot be stored, so it is lost at a restart", "error", err)
	}
	return got.ETag != tag, nil
}

func (u *Uplink) tag() string {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.kept.tag
}
