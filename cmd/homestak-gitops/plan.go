package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// planFlags are the flags of plan alone.
type planFlags struct {
	out         string
	detailed    bool
	targets     []string
	refreshOnly bool
	attributes  bool
	format      string
	agent       session.AgentFlags // that makes the plan, in place of this program
	remote      bool
}

func planVerb(a *app) *cobra.Command {
	f, o := &session.Flags{}, &planFlags{}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Compare a host with the site, and show what apply would do",
		Long: `Shows each change with its reason and cost. It changes nothing.

With --observed it needs no access to the host and no token, and enters no guests. Without
the ownership key it believes the ownership tags.

With --remote the agent of the host makes the plan: that of this machine, the one at
--server with its read key, or one below it.`,
		Args: cobra.NoArgs,
		RunE: f.Within(func(ctx context.Context, _ []string) error { return runPlan(ctx, a, f, o) }),
	}
	f.Reach(a.ui, c)
	f.Grant(c)
	f.Target(c, &o.targets)
	fs := c.Flags()
	fs.StringVar(&o.out, "out", "", "`FILE`: saved plan, for apply")
	fs.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 2 if there are steps or reported drift")
	fs.BoolVar(&o.refreshOnly, "refresh-only", false, "report what is on the host, and plan nothing")
	fs.BoolVar(&o.attributes, "attributes", false, "list every attribute of the targets, declared and observed")
	fs.StringVar(&f.Observed, "observed", "", "`FILE`: observation to plan against, in place of the host")
	c.MarkFlagsMutuallyExclusive("observed", "sim")
	c.MarkFlagsMutuallyExclusive("observed", "out") // apply plans against the host
	fs.BoolVar(&o.remote, "remote", false, "let the agent of the host make the plan")
	o.agent.Anywhere(a.ui, c)
	c.MarkFlagsMutuallyExclusive("remote", "sim")
	c.MarkFlagsMutuallyExclusive("remote", "observed")
	c.MarkFlagsMutuallyExclusive("remote", "out") // apply plans here
	fs.StringVar(&o.format, "format", "text", "`FORM`: text or markdown")
	return c
}

func runPlan(ctx context.Context, a *app, f *session.Flags, o *planFlags) error {
	a.ui.Document = func(err error) any { return a.sites.Unplanned(f.Host, ui.ErrorFindings(err)) }
	switch o.format {
	case "text":
	case "markdown":
		if a.ui.JSON {
			return errors.New("--json and --format markdown both write to stdout: choose one of them")
		}
		a.ui.Data = true
	default:
		return fmt.Errorf("--format %s: want text or markdown", o.format)
	}
	if o.attributes && len(o.targets) == 0 {
		return errors.New("--attributes lists those of targets: add --target ADDRESS")
	}
	if o.remote {
		return runPlanThere(ctx, a, f, o)
	}
	s, h, err := a.sites.ReachDeployed(ctx, f, "plan")
	if err != nil {
		return err
	}
	defer s.Close()
	sc := f.Scope(o.targets)
	sc.RefreshOnly = o.refreshOnly
	if from := s.Net.Observed; from != nil {
		a.ui.Notef("host %s as it was %s ago, by %s", h.Name, view.Age(from.At), f.Observed)
	}
	p, err := s.PassOver(h, sc)
	if err != nil {
		return err
	}
	r := s.Observe(ctx, p)
	doc := plan.Document{Scope: sc}
	if o.attributes {
		doc.Attributes = r.Attributes(p.Targets...)
	}
	if err := showPlan(a, r, doc, o); err != nil {
		return err
	}
	return ui.ExitOfPlan(r, o.detailed)
}

// runPlanThere shows the plan that the agent of a host makes.
func runPlanThere(ctx context.Context, a *app, f *session.Flags, o *planFlags) error {
	r, err := o.agent.Running(ctx)
	if err != nil {
		return err
	}
	host := cmp.Or(f.Host, r.Card.Identity)
	if host == "" {
		return errors.New("no host is named: add --host NAME")
	}
	attributes := ""
	if o.attributes {
		if len(o.targets) > 1 {
			return errors.New("--attributes with --remote lists those of one target")
		}
		attributes = o.targets[0]
	}
	got, err := r.Plan(ctx, host, attributes)
	if err == nil && got.Outcome != wire.TaskDone {
		err = fmt.Errorf("host %s has no plan: %s", host, diag.Clean(runOutcome(got.Outcome, 0, got.Error)))
	}
	if err != nil {
		return err
	}
	doc, err := plan.Read(got.Plan)
	if err != nil {
		return fmt.Errorf("the plan of host %s cannot be read: %w", host, err)
	}
	made := engine.Report{Verb: "plan", Host: host, Plan: doc.Plan, Outcome: engine.Planned, Findings: doc.Plan.Findings}
	if err := showPlan(a, made, doc, o); err != nil {
		return err
	}
	return ui.ExitOfPlan(made, o.detailed)
}

// showPlan prints a plan in the form that was asked for, and keeps it if asked.
func showPlan(a *app, r engine.Report, doc plan.Document, o *planFlags) error {
	p := r.Plan
	if p == nil {
		p = a.sites.Unplanned(r.Host, r.Findings)
	}
	p.Findings = append(p.Findings, engine.FindingOf(r.Err)...)
	a.ui.Findings(r.Findings)
	doc.Plan = p
	switch {
	case o.out == "":
	case r.Outcome == engine.Planned:
		if err := doc.WriteFile(o.out); err != nil {
			return err
		}
		a.ui.Notef("plan %s is saved in %s; apply it with: homestak-gitops apply %s", p.ID, o.out, o.out)
	case r.Denied && r.Plan != nil:
		a.ui.Notef("the plan is not saved in %s, because apply would refuse it", o.out)
	}
	switch {
	case a.ui.JSON:
		return a.ui.Emit(doc)
	case o.format == "markdown":
		p.Markdown(a.ui.Stdout)
	case r.Plan != nil && !r.NotObserved():
		a.ui.Plan(p)
		a.ui.Printf("%s", view.Attributes(doc.Attributes))
	}
	return nil
}
