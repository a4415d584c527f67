package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentRun are the flags of the verb agent beside those of its configuration.
type agentRun struct {
	agentFlags
	once, print, sim bool
}

func (a *app) agentVerb() *cobra.Command {
	f := &agentRun{}
	c := &cobra.Command{
		Use:   "agent [--once]",
		Short: "Follow a repository, and make a host become what it says, again and again",
		Long: `Looks at the repository, and makes the host that is named by its identity become what
the newest commit says; again at every new commit, and whenever something was changed
on the host. A commit that is not valid, or that a policy denies, converges nothing: the
last good one stays in force, and "status" says why. SIGHUP means: look now.

What it must know of itself stands in agent.hcl, in the environment (HOMESTAK_…) or in
flags, see docs/reference.md; everything else comes from the site. To try it as any user:

    homestak-gitops agent --repository URL --identity HOST --sim`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.agent(c.Context(), f) },
	}
	f.all(c)
	fs := c.Flags()
	fs.BoolVar(&f.once, "once", false, "look and converge once, report, and end")
	fs.BoolVar(&f.print, "print-config", false, "print what holds, as an agent.hcl, with where each value is from")
	fs.BoolVar(&f.sim, "sim", false, "make every host of the site a fresh simulator, embedded in this run")
	a.ui.jsonFlag(c)
	return c
}

func (a *app) agent(ctx context.Context, f *agentRun) error {
	a.ui.document = func(err error) any { return engine.Failure("agent", "", found(err)) }
	cfg, found := a.agentConfig(&f.agentFlags)
	switch {
	case a.ui.json && !f.once:
		return errors.New("--json is for the report of --once; ask a running agent with: homestak-gitops status --json")
	case !found.HasErrors() && f.print:
		a.ui.findings(found)
		a.ui.printf("%s", cfg.text())
		return nil
	case !found.HasErrors() && cfg.Repository.URL == "":
		found = append(found, plain(errors.New("which repository? none is named\nname one: --repository URL, or repository { url = … } in agent.hcl")))
	}
	a.ui.findings(found)
	if found.HasErrors() {
		return &ending{exitError, fmt.Errorf("the agent cannot start: %s", view.Count(found.Errors(), "configuration error"))}
	}
	socket := a.socketOf(&f.agentFlags, cfg)
	verb := "agent"
	if f.once {
		socket, verb = "", "agent --once"
	}
	release, err := a.onlyAgent(cfg, verb, socket)
	if err != nil {
		return err
	}
	defer release()
	var sims map[string]*pvesim.Host
	if f.sim {
		sims = map[string]*pvesim.Host{}
	} else {
		a.tellOther(ctx, cfg)
	}
	log := a.logger(cfg.Log.Level, cfg.Log.Format)
	if f.once && !a.ui.verbose && cfg.from["log.level"] == "" {
		log = slog.New(slog.DiscardHandler) // the report tells it
	}
	s, err := a.assemble(cfg, sims, log)
	if err != nil {
		return control.FolderError(cfg.DataDir, err)
	}
	if f.once {
		return a.once(ctx, s)
	}
	return a.daemon(ctx, s, socket)
}

// onlyAgent makes this process the one agent of its data folder.
func (a *app) onlyAgent(c *agentConfig, verb, socket string) (release func(), err error) {
	unlock, err := control.LockFile(filepath.Join(c.DataDir, control.AgentLock), control.Holder{Verb: verb, Socket: socket})
	locked, isLocked := errors.AsType[*control.LockedError](err)
	switch {
	case isLocked && verb != "agent" && locked.By.Verb == "agent":
		return nil, &ending{exitRefused, fmt.Errorf("an agent works with %s already: it was started %w\nlet it look now instead: homestak-gitops reconcile", c.DataDir, locked)}
	case isLocked:
		return nil, &ending{exitRefused, fmt.Errorf("an agent works with %s already: it was started %w\none agent has one data folder: end it, or name another with --data-dir", c.DataDir, locked)}
	case err != nil:
		return nil, fmt.Errorf("use data folder %s: %w\n%s", c.DataDir, err, control.FolderHint(c.DataDir, err))
	}
	// At the beginning too: a run of root that was killed did not come to its end.
	if err := control.HandOver(c.DataDir); err != nil {
		unlock()
		return nil, err
	}
	return func() {
		if err := control.HandOver(c.DataDir); err != nil {
			a.ui.notef("%s", view.Printable(err.Error()))
		}
		unlock()
	}, nil
}

// tellOther warns of another agent on this machine for a host of that name. It may be
// another host, of another site, so that is for people to judge.
func (a *app) tellOther(ctx context.Context, c *agentConfig) {
	sockets := []string{control.StandardSocket}
	if dir, err := a.ownDataDir(); err == nil {
		sockets = append(sockets, control.ReadHolder(filepath.Join(dir, control.AgentLock)).Socket)
	}
	for _, socket := range slices.Compact(sockets) {
		if socket == "" {
			continue
		}
		r, err := control.Dial(ctx, socket)
		if err != nil || r.Card.Identity != c.Identity || r.Card.DataDir == c.DataDir {
			continue // none, or none that can be asked
		}
		a.ui.notef("warning: another agent for a host %s runs here, pid %d, with data folder %s\nif that is the same host, stop one of the two: they share no lock", c.Identity, r.Card.PID, r.Card.DataDir)
	}
}

// assembly is an agent with all that it is made of.
type assembly struct {
	cfg    *agentConfig
	agent  *agent.Agent
	ledger *ledger.Ledger
	facts  *control.Facts
	log    *slog.Logger
	notify func(agent.Status) // set before the agent runs; called on its goroutine
}

// assemble makes an agent. With sims its hosts are simulators: those that are in it,
// and new ones for the others.
func (*app) assemble(c *agentConfig, sims map[string]*pvesim.Host, log *slog.Logger) (*assembly, error) {
	s := &assembly{cfg: c, log: log, facts: control.NewFacts(c.Identity), notify: func(agent.Status) {}}
	var err error
	if s.ledger, err = ledger.Open(filepath.Join(c.DataDir, control.LedgerDir)); err != nil {
		return nil, fmt.Errorf("open the receipts: %w", err)
	}
	if _, err := s.ledger.State(); errors.Is(err, fs.ErrPermission) {
		return nil, err // it is not lost: a suspension may stand there
	}
	r := c.Repository
	repo, err := source.OpenRepository(source.Options{
		Dir: filepath.Join(c.DataDir, cloneDir), URL: r.URL, Branch: r.Branch, Path: r.Path, Log: s.log,
		Auth: source.Auth{
			TokenFile: r.Auth.TokenFile, Username: r.Auth.Username, KeyFile: r.Auth.KeyFile,
			KnownHostsFile: r.Auth.KnownHostsFile, CAFile: r.Auth.CAFile,
		},
	})
	if err != nil {
		return nil, err
	}
	site := &agentSite{
		files: repo.Files, notes: repo.Notes, identity: c.Identity, secrets: c.SecretsFile,
		log: s.log, facts: s.facts, sims: sims,
	}
	o := agent.Options{
		Identity: c.Identity, Program: buildOf(debug.ReadBuildInfo()).Version, URL: repo.String(), Branch: r.Branch, Path: r.Path,
		Source: repo, Load: site.load, Open: drivers(site.open).Open, Ledger: s.ledger, Observed: s.facts.Observed,
		Poll: r.Poll, Drift: c.DriftEvery, Width: c.Concurrency, Log: s.log,
		Notify: func(st agent.Status) { s.notify(st) },
	}
	if sims == nil {
		o.Exclusive = s.exclusive
	} else {
		o.Health.Simulated = simulatedGuests(sims)
	}
	if s.agent, err = agent.New(o); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	return s, nil
}

// cloneDir is where the agent keeps the repository, in its data folder.
const cloneDir = "repository"

// lockEvery is how often the agent tries a host that somebody else has locked.
const lockEvery = 500 * time.Millisecond

// exclusive takes the write lock of the host for the agent; see agent.Options. It is
// the lock file that apply and destroy take, which also holds where they began before
// the agent did and so did not ask it.
func (s *assembly) exclusive(ctx context.Context, h *model.Host, blocked func(holder string)) (release func(), err error) {
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for told := false; ; {
		release, err := control.LockHost(s.cfg.DataDir, h, "agent")
		locked, isLocked := errors.AsType[*control.LockedError](err)
		if !isLocked {
			return release, err
		}
		if !told {
			told = true
			blocked("changed " + locked.Error())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// once looks and converges once, and reports as apply does.
func (a *app) once(ctx context.Context, s *assembly) error {
	box, done := make(mailbox, 1), make(chan struct{})
	told, end := context.WithCancel(ctx)
	s.notify = box.put
	w := &view.PassProgress{Term: a.ui.terminal()}
	go func() {
		defer close(done)
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		for {
			select {
			case st := <-box:
				w.Show(st, time.Now())
			case <-told.Done():
				w.Erase()
				return
			}
		}
	}()
	r := s.agent.Once(ctx, a.stopping.once)
	end()
	<-done
	for _, res := range r.Results {
		a.ui.notef("%s", view.Printable(view.Ended(apply.Event{What: apply.Finished, Step: res.Step, Result: res})))
	}
	err := a.report(r)
	if errors.Is(r.Err, agent.ErrUnknownIdentity) {
		return &ending{Code: exitError} // an error of the agent's configuration, if the site is right; a finding says it
	}
	return err
}

// daemon runs the agent until it is told to end.
func (a *app) daemon(ctx context.Context, s *assembly, socket string) error {
	h := &herald{
		statuses: make(mailbox, 1), reloads: make(chan time.Time, 1), stopping: a.stopping.once,
		notify: sdNotify, stuck: s.agent.Stuck, log: s.log,
	}
	var err error
	if h.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		return fmt.Errorf("read what the service manager wants: %w", err)
	}
	s.notify = h.statuses.put
	c := &control.Server{
		Agent: s.agent, Receipts: s.ledger, Facts: s.facts, Log: s.log,
		Card: control.Card{Version: 1, Program: buildOf(debug.ReadBuildInfo()).Version, Identity: s.cfg.Identity, DataDir: s.cfg.DataDir, PID: os.Getpid()},
	}
	beside, end := context.WithCancel(context.WithoutCancel(ctx)) // what runs beside the agent outlives its last pass
	var group sync.WaitGroup
	defer group.Wait()
	defer end()
	if socket != control.NoSocket {
		ln, err := control.Listen(ctx, socket)
		if err != nil {
			return err
		}
		group.Go(func() {
			if err := c.Serve(beside, ln); err != nil {
				s.log.Error("the control socket does not answer any more", "error", err)
			}
		})
	}
	group.Go(func() { h.run(beside) })
	hangups, unsubscribe := a.hangups()
	defer unsubscribe()
	group.Go(func() {
		for {
			select {
			case <-hangups:
				s.log.Info("asked to look", "over", "SIGHUP")
				select {
				case h.reloads <- time.Now():
				default: // one is open already
				}
				s.agent.CheckNow()
			case <-beside.Done():
				return
			}
		}
	})
	if socket != control.NoSocket {
		s.log.Info("control socket is open", "socket", socket, "data_dir", s.cfg.DataDir)
	}
	err = s.agent.Run(ctx, a.stopping.once)
	if ctx.Err() != nil {
		return context.Cause(ctx) // it left what ran
	}
	return err
}

// hangups gives the SIGHUPs of the process from now on: of other verbs they are the
// end, since their terminal is gone.
func (a *app) hangups() (<-chan os.Signal, func()) {
	if a.subscribe == nil {
		return nil, func() {}
	}
	return a.subscribe(syscall.SIGHUP)
}
