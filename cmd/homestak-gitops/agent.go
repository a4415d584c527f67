package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentRun are the flags of the verb agent: its configuration, and how it runs this time.
type agentRun struct {
	session.AgentFlags
	once, print, sim bool
}

func agentVerb(a *app) *cobra.Command {
	f := &agentRun{}
	c := &cobra.Command{
		Use:   "agent [--once]",
		Short: "Converge a host to the newest commit of a repository",
		Long: `It checks the host at each new commit, after changes on the host, and at the next full
check. An invalid commit, or one that a policy denies, is not applied: the last good one
stays in force. SIGHUP starts a check now.

Settings come from flags, the environment (HOMESTAK_…) and agent.hcl; see
docs/reference.md. To try it as any user:

    homestak-gitops agent --repository URL --identity HOST --sim`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runAgent(c.Context(), a, f) },
	}
	f.All(a.ui, c)
	fs := c.Flags()
	fs.BoolVar(&f.once, "once", false, "make one pass, report, and exit")
	fs.BoolVar(&f.print, "print-config", false, "print the effective settings as an agent.hcl, each with its source")
	fs.BoolVar(&f.sim, "sim", false, "use a fresh simulator for every host of the site")
	a.ui.JSONFlag(c)
	return c
}

// agentGarbage is the garbage, as a percentage of what is in use, at which an agent collects it. A check leaves little
// behind and returns all memory at its end, so fewer collections than by default cost memory during a check alone.
// GOGC takes precedence.
const agentGarbage = 200

func runAgent(ctx context.Context, a *app, f *agentRun) error {
	a.ui.Document = func(err error) any { return engine.Failure("agent", "", ui.ErrorFindings(err)) }
	cfg, found := f.Configuration()
	switch {
	case a.ui.JSON && !f.once:
		return errors.New("--json is for the report of --once; ask a running agent with: homestak-gitops status --json")
	case !found.HasErrors() && f.print:
		a.ui.Findings(found)
		a.ui.Printf("%s", cfg.Text())
		return nil
	case !found.HasErrors() && cfg.Repository.URL == "":
		found = append(found, diag.FromError(errors.New("no repository is set\nset one: --repository URL, or repository { url = … } in agent.hcl")))
	}
	a.ui.Findings(found)
	if found.HasErrors() {
		return ui.ExitFailed.With(fmt.Errorf("the agent cannot start: %s", diag.Count(found.Errors(), "configuration error")))
	}
	verb, socket := "agent", cfg.Socket()
	if f.once {
		verb, socket = "agent --once", ""
		cfg.Listen = "" // it ends before a node could ask
	}
	release, err := cfg.Claim(verb, socket)
	if err != nil {
		return err
	}
	defer func() {
		if err := release(); err != nil {
			a.ui.Notef("%s", diag.Clean(err.Error()))
		}
	}()
	var net session.Network
	if f.sim {
		if net, err = simulatedNetwork(); err != nil {
			return err
		}
		defer net.End()
	} else {
		warnOfOthers(ctx, a, cfg)
	}
	log := service.NewLog(a.ui.Stderr, a.ui.Env("JOURNAL_STREAM"), cfg.Log.Level, cfg.Log.Format)
	if f.once && !a.ui.Verbose && !cfg.Set("log.level") {
		log = slog.New(slog.DiscardHandler) // the report says it
	}
	s, err := newService(cfg, net, sandbox(), log, a.ui.Env)
	if err != nil {
		return control.Folder(cfg.DataDir).Explain(err)
	}
	if f.once {
		return runOnce(ctx, a, s)
	}
	if a.ui.Env("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(agentGarbage))
	}
	hangups, unsubscribe := a.ui.Hangups()
	defer unsubscribe()
	return s.Run(ctx, socket, a.stopping.Once, hangups)
}

// managed reports whether systemd started this process, and not a process that inherited the environment of another unit.
func managed(env func(string) string) bool {
	pid := env("SYSTEMD_EXEC_PID") // since systemd 248
	return env("NOTIFY_SOCKET") != "" && (pid == "" || pid == strconv.Itoa(os.Getpid()))
}

// newService makes an agent whose hosts are on a network. Without a sandbox it evaluates commits in this process.
func newService(cfg *service.Config, net session.Network, in *site.Sandbox, log *slog.Logger, env func(string) string) (*service.Service, error) {
	return net.Agent(service.Options{
		Config: cfg, Program: thisBuild().Version, Log: log, Sandbox: in, Managed: managed(env),
		Watch: func(changed func([]int)) service.Watcher {
			return &proxmox.Watcher{Root: env("HOMESTAK_PVE_ROOT"), Changed: changed}
		},
	}, session.OwnWays(cfg.DataDir, env))
}

// warnOfOthers warns of agents on this machine that may be for the same host: their locks are in other data folders,
// so both would write.
func warnOfOthers(ctx context.Context, a *app, cfg *service.Config) {
	for _, other := range cfg.Others(ctx) {
		a.ui.Notef("warning: another agent for a host %s runs here, pid %d, with data folder %s\nif it is the same host, stop one of them: they do not share a lock", cfg.Identity, other.PID, other.DataDir)
	}
}

// runOnce checks and converges once, and reports as apply does.
func runOnce(ctx context.Context, a *app, s *service.Service) error {
	r := s.Once(ctx, a.stopping.Once, &view.PassProgress{Term: a.ui.Terminal()})
	for _, res := range r.Results {
		a.ui.Notef("%s", diag.Clean(view.Ended(apply.Event{What: apply.Finished, Step: res.Step, Result: res})))
	}
	err := a.ui.Report(r)
	if errors.Is(r.Err, agent.ErrUnknownIdentity) {
		return ui.ExitFailed.With(nil) // the configuration of the agent is wrong, not the site; a finding says so
	}
	return err
}
