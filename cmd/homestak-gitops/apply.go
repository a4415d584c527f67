package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

func applyVerb(a *app) *cobra.Command {
	f := &siteFlags{}
	var targets []string
	c := &cobra.Command{
		Use:   "apply [PLANFILE]",
		Short: "Make a host become what the site says",
		Long: `Plans, shows the plan, asks, and does it. With the file of "plan --out" it does
exactly what that plan shows, or refuses because the site or the host moved.

Ctrl-C once: nothing new is started, what runs is finished, but no check
is waited for. Twice: leave now.`,
		Args: usage.Takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.within(c, func(ctx context.Context) error {
				return runApply(ctx, a, f, plan.Scope{Manifest: f.manifest, Targets: targets, AllowDeletes: f.allowDeletes, AllowOrphans: f.allowOrphans}, args)
			})
		},
	}
	f.change(a, c)
	f.grant(c)
	c.Flags().StringArrayVar(&targets, "target", nil, "only this `ADDRESS`, such as vm.web-1, and what it needs; may be repeated")
	complete.Targets(c, f.load, &f.host)
	return c
}

func runApply(ctx context.Context, a *app, f *siteFlags, sc plan.Scope, args []string) error {
	a.documentFailure("apply")
	var kept *plan.Plan
	if len(args) > 0 {
		if f.manifest != "" || len(sc.Targets) > 0 || sc.AllowDeletes > 0 || len(sc.AllowOrphans) > 0 {
			return errors.New("a plan file says by itself what it is about, and what was granted to it: leave out -M, --target and --allow-deletes, and --allow-orphans")
		}
		doc, err := plan.ReadFile(args[0])
		if err != nil {
			return err
		}
		if f.host != "" && f.host != doc.Plan.Host {
			return fmt.Errorf("the plan in %s is for host %s, not for %s", args[0], doc.Plan.Host, f.host)
		}
		kept, sc, f.host = doc.Plan, doc.Scope, doc.Plan.Host
		f.manifest = sc.Manifest
	}
	s, h, err := a.reachDeployed(ctx, f, "apply")
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := limited(s.pass(h, ""), sc)
	if err != nil {
		return err
	}
	p.Verb = "apply"
	return carryOut(ctx, a, s, h, p, kept, nil)
}

// carryOut runs a pass that changes a host: as its one writer, after the plan was
// shown and agreed to, with progress, and with a report at the end.
func carryOut(ctx context.Context, a *app, s *session, h *model.Host, p *engine.Pass, kept *plan.Plan, agreed func(context.Context) error) error {
	if !s.flags.sim {
		release, err := a.lock(h, p.Verb)
		if err != nil {
			return err
		}
		defer release()
	}
	progress := view.Watch(a.ui.terminal())
	p.Notify, p.Health.Notify = progress.Notify, progress.Checking
	p.Verdict = func(ctx context.Context, made *plan.Plan) (bool, error) {
		progress.Waits("")
		a.ui.findings(made.Findings)
		a.ui.planned(p, made)
		if kept != nil {
			if moved := kept.Moved(made); len(moved) > 0 {
				return false, exit.With(exit.Refused, fmt.Errorf("the plan is out of date, so nothing was done:\n%s\nmake a new one with: homestak-gitops plan --out FILE", strings.Join(moved, "\n")))
			}
			return true, nil // who kept it has seen it
		}
		if !s.flags.yes && len(made.Steps) > 0 {
			if err := confirm(ctx, a, p, made); err != nil {
				return false, err
			}
		}
		if agreed != nil {
			return true, agreed(ctx)
		}
		return true, nil
	}
	progress.Waits(view.Observing(h.Name))
	r := p.Run(ctx)
	progress.Close()
	if r.Denied && r.Plan != nil { // nobody was asked, so nobody has seen it
		a.ui.findings(r.Findings)
		a.ui.planned(p, r.Plan)
	}
	return a.report(r)
}
