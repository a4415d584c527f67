package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func verifyNodesVerb(a *app) *cobra.Command {
	f, of := &session.Flags{}, &session.AgentFlags{}
	ofSite := []string{"site", "host", "sim", "secrets", "var", "mode"}
	c := &cobra.Command{
		Use:   "verify [NODE…]",
		Short: "Run the checks of deployed nodes now",
		Long: `Runs each check block once. It changes nothing. The agent of this machine, or the one at
--server with its operator key, runs them and keeps a receipt. Without an agent, or with a
flag of the site or --sim, this program runs them itself.

Checks of a guest that is switched off, suspended, or being changed are skipped. Exits 0
if no check failed, otherwise 1.`,
		RunE: func(c *cobra.Command, args []string) error {
			own := slices.ContainsFunc(ofSite, c.Flags().Changed)
			return f.Within(func(ctx context.Context, args []string) error { return runVerifyNodes(ctx, a, f, of, args, own) })(c, args)
		},
	}
	f.Reach(a.ui, c)
	of.Anywhere(a.ui, c)
	for _, flag := range ofSite {
		c.MarkFlagsMutuallyExclusive("server", flag)
	}
	c.ValidArgsFunction = of.CompleteAddress
	return c
}

func runVerifyNodes(ctx context.Context, a *app, f *session.Flags, of *session.AgentFlags, nodes []string, own bool) error {
	a.ui.Document = control.ProblemOf
	if !own {
		ctx, cancel := a.stopping.Soon(ctx)
		defer cancel()
		switch c, _, err := of.Client(ctx); {
		case err == nil:
			v, err := c.VerifyNodes(ctx, control.Selected{Nodes: nodes, Manifest: f.Manifest, By: "cli:" + control.Whoami()})
			if err != nil {
				return err
			}
			return showVerified(a, v)
		case !errors.Is(err, control.ErrNoAgent):
			return err
		}
	}
	v, err := verifyHere(ctx, a, f, nodes)
	if err != nil {
		return err
	}
	return showVerified(a, v)
}

// checksAtOnce is the number of checks that this program runs at once.
const checksAtOnce = 8

// verifyHere reads the site and the host, and runs the checks from this machine.
func verifyHere(ctx context.Context, a *app, f *session.Flags, nodes []string) (v engine.Verified, err error) {
	s, h, err := a.sites.ReachDeployed(ctx, f, "verify")
	if err != nil {
		return v, err
	}
	defer s.Close()
	m, err := s.Manifest(f.Manifest)
	if err != nil {
		return v, err
	}
	for i, name := range nodes {
		if _, after, ok := strings.Cut(name, "."); ok {
			name = after
		}
		if _, err := s.Node(name, m); err != nil {
			return v, err
		}
		nodes[i] = name
	}
	p, err := s.PassOver(h, plan.Scope{Manifest: f.Manifest, RefreshOnly: true})
	if err != nil {
		return v, err
	}
	p.Verb = "verify"
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil } // it has no steps
	r := s.Observe(ctx, p)
	if r.Probes == nil {
		a.ui.Findings(r.Findings)
		return v, cmp.Or(ui.ExitOfPass(r), errors.New("the host could not be seen"))
	}
	match := engine.Matches(nodes, f.Manifest)
	probes := slices.DeleteFunc(r.Probes, func(p engine.Probe) bool { return !match(&p) })
	ctx, release := engine.Until(ctx, p.Stop)
	defer release()
	v = engine.Verified{Host: h.Name, Commit: r.Commit, Checks: append([]engine.CheckRun{}, engine.RunChecks(ctx, p.Health, probes, checksAtOnce)...)}
	v.Success = v.Failed() == 0
	return v, context.Cause(ctx)
}

// showVerified prints the results. A check that failed is reported in them.
func showVerified(a *app, v engine.Verified) error {
	if err := a.ui.Show(v, a.ui.Paint().Verified(v)); err != nil {
		return err
	}
	if v.Failed() > 0 {
		return ui.ExitFailed.With(nil)
	}
	return nil
}
