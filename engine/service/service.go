package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/notify"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/client"
	specdaemon "github.com/homestak/homestak-gitops/specserve/daemon"
)

// Options configure a service.
type Options struct {
	Config  *Config
	Program string // its version
	Kinds   model.Kinds
	Log     *slog.Logger

	// Open returns how hosts are opened. Files are those of the site that is converged to. A driver calls sent after each
	// request to the API of the host, from any goroutine, with the status of the answer, 0 for none. Server is that of
	// nodes and children, nil if there is none.
	Open func(files fs.FS, sent func(method string, status int), server *specdaemon.Server, near *images.Near) open
	// NewKey makes a key pair for SSH: the private key as ssh-keygen writes it, and a line of authorized_keys. Nil:
	// the agent of a child has none of its own.
	NewKey func(comment string) (private, public string, err error)
	// Machine is this machine, for commands on it. Nil: it is simulated, and runs none.
	Machine guest.Machine
	// Simulated replaces the network to the guests; see health.Prober. With it the
	// host is not locked, since no other process can reach it. Nil: everything is real.
	Simulated func(netip.Addr) error
	// Network replaces the network between agents, and to nodes.
	Network Network
	// File is the program that nodes get from the server. "": the running one.
	File string
	// Managed: a service manager starts the program again when it ends. So Run ends after another one was installed, once
	// no pass and no command is at work.
	Managed bool
	// Sandbox evaluates commits and their policies. Nil: this process does it.
	Sandbox *site.Sandbox
	// Pace is the least time between two reports of this agent, and of those below it, and between two tries of a
	// check. 0: as usual.
	Pace time.Duration
	// Watch makes a watcher that calls changed when guests that matter are not as they were. Nil: there is none.
	Watch func(changed func(guests []int)) Watcher
}

// loader makes the loader of commits. Others is how repositories are fetched that a site names.
func (o Options) loader(others source.Options) *site.Loader {
	l := site.NewLoader(o.Kinds)
	l.Sandbox, l.Copies, l.Copies.Refusals = o.Sandbox, others, source.Refusals{}
	return l
}

// Network connects agents to each other. Zero: as machines do.
type Network struct {
	Listen func(ctx context.Context, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Web    http.RoundTripper // of images and notifications
}

// Watcher notices changes of guests between two checks. Its methods may be called from any goroutine.
type Watcher interface {
	Run(ctx context.Context)
	Ignore(vmids []int) // guests that do not matter
	Err() error         // why it cannot notice any; nil if it can
}

// Service is an agent with all that it needs on a machine.
type Service struct {
	Agent  *agent.Agent
	Ledger *ledger.Ledger
	Notify func(agent.Status) // set before the agent runs; called on its goroutine

	o      Options
	facts  *control.Facts
	events *control.EventLog
	server *specdaemon.Server // for nodes and children; nil: none
	above  *client.Uplink     // the agent above; nil: there is none
	near   *images.Near
	asked  chan struct{} // requests a check
	counts *counts

	carrier *carrier
	jobs    *jobs
	tasks   chan struct{} // the parent has tasks

	private, public string // the key for the guests of a child; "": none

	watch     Watcher           // nil: none
	notifiers *notify.Notifiers // nil: the agent has a parent
}

// New makes a service. It does nothing yet.
func New(o Options) (*Service, error) {
	c := o.Config
	s := &Service{o: o, facts: control.NewFacts(c.Identity), events: control.NewEventLog(time.Now()), asked: make(chan struct{}, 1), tasks: make(chan struct{}, 1), counts: newCounts(), Notify: func(agent.Status) {}}
	var err error
	if err = durable.ClaimFormat(c.DataDir, o.Program); err != nil {
		return nil, err
	}
	if s.Ledger, err = ledger.Open(control.Folder(c.DataDir).Ledger()); err != nil {
		return nil, fmt.Errorf("open the receipts: %w", err)
	}
	if _, err := s.Ledger.State(); errors.Is(err, fs.ErrPermission) {
		return nil, err // it is not lost: it may have a suspension
	}
	if err := s.openParent(); err != nil {
		return nil, err
	}
	if err := s.openKey(); err != nil {
		return nil, err
	}
	r := c.Repository
	others := source.Options{
		Dir: filepath.Join(c.DataDir, referencesDir), MaxPack: int64(r.MaxSize) << 20, Log: o.Log,
		Auth: source.Auth{
			TokenFile: r.Auth.TokenFile, Username: r.Auth.Username, KeyFile: r.Auth.KeyFile,
			KnownHostsFile: r.Auth.KnownHostsFile, CAFile: r.Auth.CAFile,
		},
	}
	own := others
	own.Dir, own.URL, own.Branch, own.Path, own.Transport = filepath.Join(c.DataDir, cloneDir), r.URL, r.Branch, r.Path, s.transport()
	repo, err := source.OpenRepository(own)
	if err != nil {
		return nil, err
	}
	way := &hosts{
		commits: site.Commits{
			Loader: o.loader(others), Files: repo.Files, Notes: repo.Notes,
			Secrets: c.SecretsFile, Given: s.given, Local: s.local, Keys: site.Keys{Env: c.env, File: c.AgeKeyFile},
		},
		log: o.Log, facts: s.facts, alone: o.Simulated == nil && (c.env == nil || c.env("GOGC") == ""),
	}
	s.near = near(c, s.above, o)
	s.serveNodes()
	way.make = o.Open(&way.tree, s.counts.sent, s.server, s.near)
	var below children
	if s.server != nil {
		below = s.server
	}
	if s.carrier, err = newCarrier(s, below, way.make); err != nil {
		return nil, err
	}
	if s.jobs, err = newJobs(s.carrier, func() agent.Status { return s.Agent.Status() }); err != nil {
		return nil, err
	}
	if s.server != nil {
		s.server.Queue(s.carrier.queue)
	}
	openNotifiers(s)
	if o.Watch != nil {
		s.watch = o.Watch(s.changed)
	}
	copied := &specdaemon.Copy{Repository: repo, Branch: r.Branch, Most: mostServed, Clear: site.Clear{Files: repo.Tree, Log: o.Log}}
	passed := passes(func(p *agent.PassStatus) {
		s.counts.passed(p)
		if s.above != nil {
			s.above.PassEnded()
		}
	})
	checksTurned := turned(func() {
		if s.above != nil {
			s.above.PassEnded()
		}
	})
	options := agent.Options{
		Identity: c.Identity, Program: o.Program, URL: repo.String(), Branch: r.Branch, Path: r.Path,
		Source: copied, Load: way.load, Open: way.open, Ledger: s.Ledger, Observed: s.observed, Outputs: (&outputs{dir: c.DataDir, identity: c.Identity, folders: c.Outputs, tree: s.Tree, push: pushOutput}).write,
		Poll: r.Poll, Drift: c.DriftEvery, Width: c.Concurrency, Log: o.Log,
		Notify: func(st agent.Status) {
			s.events.Record(st)
			passed(st)
			checksTurned(st)
			s.Notify(st)
			wakeNotifiers(s)
		},
	}
	serve := func(context.Context, engine.Desired, agent.HostState) {}
	options.InForce = func(ctx context.Context, d engine.Desired, host agent.HostState) {
		s.carrier.inForce(d)
		s.jobs.soon()
		serve(ctx, d, host)
	}
	if s.server != nil {
		serve, options.Children, options.Forget = s.inForce(way, copied), s.children, s.server.Forget
		options.Revoke = func(host string, empty bool) (bool, error) { return specdaemon.LetGo(s.server, host, empty) }
		options.Health.Reported = s.server.Reported
	}
	if o.Managed {
		options.Replaced = s.carrier.whenIdle(replaced)
	}
	if s.above != nil {
		served := options.InForce
		options.InForce = func(ctx context.Context, d engine.Desired, host agent.HostState) {
			s.above.Turn(s.next(d.Site))
			if served != nil {
				served(ctx, d, host)
			}
		}
		options.Parent = s.bundle
	}
	options.Health.Every = o.Pace
	if options.Health.Simulated = o.Simulated; o.Simulated == nil {
		options.Exclusive = s.exclusive
	}
	if s.Agent, err = agent.New(options); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	return s, nil
}

// shown is the agent as the socket shows it.
type shown struct {
	*agent.Agent
	service *Service
}

// Status is that of the service.
func (s shown) Status() agent.Status { return s.service.Status() }

// cloneDir is the folder of the repository, in the data folder of the agent.
const cloneDir = "repository"

// referencesDir has the copies of repositories that are searched before a guest is removed.
const referencesDir = "references"

// lockEvery is the interval at which the agent tries to lock a host that another process has locked.
const lockEvery = 500 * time.Millisecond

// exclusive takes the write lock of the host for the agent; see agent.Options. It is
// the lock file that apply and destroy take, which also holds where they began before
// the agent did and so did not ask it.
func (s *Service) exclusive(ctx context.Context, h *model.Host, blocked func(holder string)) (release func(), err error) {
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for waits := false; ; {
		release, err := control.Folder(s.o.Config.DataDir).LockHost(h, "agent")
		locked, isLocked := errors.AsType[*control.LockedError](err)
		if !isLocked {
			if err == nil {
				settleByHand(s, h)
			}
			return release, err
		}
		if !waits {
			waits = true
			blocked("changed " + locked.Error())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// settleByHand records an apply or destroy of the host that was cut off, in the data folder of the agent.
func settleByHand(s *Service, h *model.Host) {
	switch found, err := settle(s.o.Config.DataDir, h); {
	case err != nil:
		s.o.Log.Warn("the receipt of a pass by hand that was cut off was not saved", "error", err)
	case found:
		s.o.Log.Warn("a pass by hand was cut off; its receipt says which steps are unknown")
	}
}

// answers is what the socket answers.
func answers(s *Service) *control.Server {
	return &control.Server{
		Tree: s.Tree, Wake: s.wake, Exec: s.Exec, Jobs: s.jobs, TestNotify: testNotify(s),
		Agent: shown{s.Agent, s}, Receipts: s.Ledger, Facts: s.facts, Events: s.events, Log: s.o.Log,
		Card: control.Card{Version: 1, Program: s.o.Program, Identity: s.o.Config.Identity, DataDir: s.o.Config.DataDir, PID: os.Getpid()},
	}
}

// Client is a client of an agent of this process, until ctx ends.
func Client(ctx context.Context, s *Service) *control.Client { return answers(s).Client(ctx) }

// showEvery is the interval at which Once shows its progress.
const showEvery = 300 * time.Millisecond

// Once checks and converges once, and shows how far it is.
func (s *Service) Once(ctx context.Context, stop <-chan struct{}, w *view.PassProgress) engine.Report {
	statuses, done := make(mailbox, 1), make(chan struct{})
	showing, end := context.WithCancel(ctx)
	s.Notify = statuses.Put
	go func() {
		defer close(done)
		ticker := time.NewTicker(showEvery)
		defer ticker.Stop()
		for {
			select {
			case st := <-statuses:
				w.Show(st, time.Now())
			case <-showing.Done():
				w.Erase()
				return
			}
		}
	}()
	r := s.Agent.Once(ctx, stop)
	end()
	<-done
	return r
}

// Run runs the agent until stop is closed, or ctx ends: with it the service manager is
// notified, and the socket answers, unless it is control.NoSocket. A hangup makes the agent
// check its repository now.
func (s *Service) Run(ctx context.Context, socket string, stop <-chan struct{}, hangups <-chan os.Signal) error {
	log := s.o.Log
	n := &sdNotifier{
		statuses: make(mailbox, 1), reloads: make(chan time.Time, 1), stopping: stop,
		notify: sdNotify, stuck: s.Agent.Stuck, log: log, shared: s.o.Simulated != nil,
	}
	var err error
	if n.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		return fmt.Errorf("read what the service manager wants: %w", err)
	}
	s.Notify = n.statuses.Put
	c := answers(s)
	around, end := context.WithCancel(context.WithoutCancel(ctx)) // what runs beside the agent outlives its last pass
	var group sync.WaitGroup
	defer group.Wait()
	defer end()
	if f := s.near.Folder; f != nil {
		defer f.Close()
	}
	if socket != control.NoSocket {
		ln, err := control.Listen(ctx, socket)
		if err != nil {
			return err
		}
		group.Go(func() {
			if err := c.Serve(around, ln); err != nil {
				log.Error("the control socket does not answer any more", "error", err)
			}
		})
	}
	if s.server != nil {
		group.Go(func() { s.server.Run(around) })
	}
	if s.o.Config.pageAddress() != "" {
		group.Go(func() { servePage(around, s) })
	}
	if s.above != nil {
		group.Go(func() { s.above.Run(around) })
	}
	if s.watch != nil {
		group.Go(func() { s.watch.Run(around) })
	}
	s.carrier.settle()
	group.Go(func() { s.carrier.run(around, s.tasks) })
	group.Go(func() { s.jobs.run(around) })
	if s.notifiers != nil {
		group.Go(func() { s.notifiers.Run(around) })
	}
	group.Go(func() { n.run(around) })
	group.Go(func() {
		for {
			select {
			case <-s.asked:
				log.Info("reconcile requested", "over", "https")
				s.Agent.CheckNow()
			case <-hangups:
				log.Info("reconcile requested", "over", "SIGHUP")
				select {
				case n.reloads <- time.Now():
				default: // one is open already
				}
				s.Agent.CheckNow()
			case <-around.Done():
				return
			}
		}
	})
	if socket != control.NoSocket {
		log.Info("control socket is open", "socket", socket, "data_dir", s.o.Config.DataDir)
	}
	err = s.Agent.Run(ctx, stop)
	if ctx.Err() != nil {
		return context.Cause(ctx) // it left what ran
	}
	return err
}
