package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

// planFlags are the flags of plan alone.
type planFlags struct {
	out         string
	detailed    bool
	targets     []string
	refreshOnly bool
	format      string
}

func planVerb(a *app) *cobra.Command {
	f, o := &siteFlags{}, &planFlags{}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Compare a host with what the site says, and show what would be done",
		Long: `Looks at a host, compares it with what the site says, and shows what apply would
do: what, why, and what it costs. Nothing is changed.

A plan kept with --out is applied exactly as shown, or refused because the site
or the host moved: homestak-gitops apply FILE.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.within(c, func(ctx context.Context) error {
				return runPlan(ctx, a, f, o)
			})
		},
	}
	f.reach(a, c)
	f.grant(c)
	fs := c.Flags()
	fs.StringVar(&o.out, "out", "", "keep the plan in `FILE`, for apply")
	fs.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 2 if changes are pending")
	fs.StringArrayVar(&o.targets, "target", nil, "only this `ADDRESS`, such as vm.web-1, and what it needs; may be repeated")
	fs.BoolVar(&o.refreshOnly, "refresh-only", false, "only observe: report what is on the host, plan nothing")
	fs.StringVar(&o.format, "format", "text", "`FORM` of the plan: text or markdown")
	complete.Targets(c, f.load, &f.host)
	return c
}

func runPlan(ctx context.Context, a *app, f *siteFlags, o *planFlags) error {
	a.ui.document = func(err error) any { return a.opened.unplanned(f.host, exit.Findings(err)) }
	switch o.format {
	case "text":
	case "markdown":
		if a.ui.json {
			return errors.New("--json and --format markdown: stdout holds one document, choose one of them")
		}
		a.ui.data = true
	default:
		return fmt.Errorf("--format %s: want text or markdown", o.format)
	}
	s, h, err := a.reachDeployed(ctx, f, "plan")
	if err != nil {
		return err
	}
	defer s.Close()
	sc := plan.Scope{Manifest: f.manifest, Targets: o.targets, RefreshOnly: o.refreshOnly, AllowDeletes: f.allowDeletes, AllowOrphans: f.allowOrphans}
	p, err := limited(s.pass(h, ""), sc)
	if err != nil {
		return err
	}
	progress := view.Watch(a.ui.terminal())
	progress.Waits(view.Observing(h.Name))
	r := p.Run(ctx)
	progress.Close()
	if err := showPlan(a, s, r, sc, o); err != nil {
		return err
	}
	return exit.OfPlan(r, o.detailed)
}

// showPlan prints a plan in the form that was asked for, and keeps it if asked.
func showPlan(a *app, s *session, r engine.Report, sc plan.Scope, o *planFlags) error {
	p := r.Plan
	if p == nil {
		p = s.unplanned(r.Host, r.Findings)
	}
	p.Findings = append(p.Findings, engine.FindingOf(r.Err)...)
	a.ui.findings(r.Findings)
	doc := plan.Document{Plan: p, Scope: sc}
	switch {
	case o.out == "":
	case r.Outcome == engine.Planned:
		if err := doc.WriteFile(o.out); err != nil {
			return err
		}
		a.ui.notef("plan %s is kept in %s; apply it with: homestak-gitops apply %s", p.ID, o.out, o.out)
	case r.Denied && r.Plan != nil:
		a.ui.notef("the plan is not kept in %s: apply would refuse it", o.out)
	}
	switch {
	case a.ui.json:
		return a.ui.emit(doc)
	case o.format == "markdown":
		p.Markdown(a.ui.stdout)
	case r.Plan != nil && !r.NotObserved():
		a.ui.plan(p)
	}
	return nil
}

// unplanned is the plan document where no plan could be made: empty, with the
// reasons.
func (s *session) unplanned(host string, found diag.List) *plan.Plan {
	p := &plan.Plan{
		FormatVersion: plan.FormatVersion, Commit: s.commit(), Host: host,
		ObservedAt: time.Now().UTC().Truncate(time.Second), Findings: found,
	}
	if s != nil && s.Desired.Site != nil {
		p.Site = s.Desired.Site.Name
	}
	return p
}

// limited narrows a pass to a scope.
func limited(p *engine.Pass, sc plan.Scope) (*engine.Pass, error) {
	targets, err := addresses(sc.Targets)
	if err != nil {
		return nil, err
	}
	p.Manifest, p.Targets, p.RefreshOnly, p.AllowDeletes, p.AllowOrphans = sc.Manifest, targets, sc.RefreshOnly, sc.AllowDeletes, sc.AllowOrphans
	return p, nil
}
