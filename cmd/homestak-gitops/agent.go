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
	"syscall"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pmxcfs"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentRun are the flags of the verb agent beside those of its configuration.
type agentRun struct {
	agentFlags
	once, print, sim bool
}

func agentVerb(a *app) *cobra.Command {
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
		RunE: func(c *cobra.Command, _ []string) error { return runAgent(c.Context(), a, f) },
	}
	f.all(c)
	fs := c.Flags()
	fs.BoolVar(&f.once, "once", false, "look and converge once, report, and end")
	fs.BoolVar(&f.print, "print-config", false, "print what holds, as an agent.hcl, with where each value is from")
	fs.BoolVar(&f.sim, "sim", false, "make every host of the site a fresh simulator, embedded in this run")
	a.ui.jsonFlag(c)
	return c
}

func runAgent(ctx context.Context, a *app, f *agentRun) error {
	a.ui.document = func(err error) any { return engine.Failure("agent", "", exit.Findings(err)) }
	cfg, found := f.configuration(a)
	switch {
	case a.ui.json && !f.once:
		return errors.New("--json is for the report of --once; ask a running agent with: homestak-gitops status --json")
	case !found.HasErrors() && f.print:
		a.ui.findings(found)
		a.ui.printf("%s", cfg.Text())
		return nil
	case !found.HasErrors() && cfg.Repository.URL == "":
		found = append(found, diag.FromError(errors.New("which repository? none is named\nname one: --repository URL, or repository { url = … } in agent.hcl")))
	}
	a.ui.findings(found)
	if found.HasErrors() {
		return exit.With(exit.Failed, fmt.Errorf("the agent cannot start: %s", view.Count(found.Errors(), "configuration error")))
	}
	verb, socket := "agent", cfg.Socket()
	if f.once {
		verb, socket = "agent --once", ""
		cfg.Listen = "" // nobody could be served
	}
	release, err := cfg.Claim(verb, socket)
	if err != nil {
		return err
	}
	defer func() {
		if err := release(); err != nil {
			a.ui.notef("%s", view.Printable(err.Error()))
		}
	}()
	var net network
	if f.sim {
		if net, err = simulatedNetwork(); err != nil {
			return err
		}
		defer net.end()
	} else {
		warnOfOthers(ctx, a, cfg)
	}
	log := service.NewLog(a.stderr, a.env("JOURNAL_STREAM"), cfg.Log.Level, cfg.Log.Format)
	if f.once && !a.ui.verbose && !cfg.Set("log.level") {
		log = slog.New(slog.DiscardHandler) // the report says it
	}
	s, err := newService(cfg, net, log, a.env)
	if err != nil {
		return control.FolderError(cfg.DataDir, err)
	}
	if f.once {
		return runOnce(ctx, a, s)
	}
	hangups, unsubscribe := hangups(a)
	defer unsubscribe()
	return s.Run(ctx, socket, a.stopping.once, hangups)
}

// newService makes an agent whose hosts are on a network.
func newService(cfg *service.Config, net network, log *slog.Logger, env func(string) string) (*service.Service, error) {
	guests := net.guests(config.Config{HostKeys: &config.KnownHosts{Path: filepath.Join(cfg.DataDir, knownHosts)}}.WithKeysOf(env))
	var s *service.Service
	var err error
	if cfg.Serves() != "" {
		guests.Children = func() config.Children { return s.Server() } // it is there before a pass is
	}
	s, err = service.New(service.Options{
		Config: cfg, Program: buildOf(debug.ReadBuildInfo()).Version, Kinds: net.kinds(guests), Log: log, Simulated: net.reaches, NewKey: ssh.NewKey,
		Watch: func(changed func([]int)) service.Watcher {
			return &pmxcfs.Watcher{Root: env("HOMESTAK_PVE_ROOT"), Changed: changed}
		},
		Open: func(files fs.FS, d engine.Desired, h *model.Host, sent func(string, int)) (engine.Driver, error) {
			access := drivers.Access{Files: files, Transport: net.transport, Guests: guests, Sent: sent}
			if server := s.Server(); server != nil {
				access.Parent = server
			}
			return access.Open(d, h)
		},
	})
	return s, err
}

// warnOfOthers warns of other agents on this machine for a host of that name.
func warnOfOthers(ctx context.Context, a *app, cfg *service.Config) {
	for _, other := range cfg.Others(ctx) {
		a.ui.notef("warning: another agent for a host %s runs here, pid %d, with data folder %s\nif that is the same host, stop one of the two: they share no lock", cfg.Identity, other.PID, other.DataDir)
	}
}

// once checks and converges once, and reports as apply does.
func runOnce(ctx context.Context, a *app, s *service.Service) error {
	r := s.Once(ctx, a.stopping.once, &view.PassProgress{Term: a.ui.terminal()})
	for _, res := range r.Results {
		a.ui.notef("%s", view.Printable(view.Ended(apply.Event{What: apply.Finished, Step: res.Step, Result: res})))
	}
	err := a.report(r)
	if errors.Is(r.Err, agent.ErrUnknownIdentity) {
		return &exit.Error{Code: exit.Failed} // an error of the agent's configuration, if the site is right; a finding says it
	}
	return err
}

// hangups gives the SIGHUPs of the process from now on: of other verbs they are the
// end, since their terminal is gone.
func hangups(a *app) (<-chan os.Signal, func()) {
	if a.subscribe == nil {
		return nil, func() {}
	}
	return a.subscribe(syscall.SIGHUP)
}
