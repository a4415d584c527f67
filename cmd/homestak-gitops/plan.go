package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

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
	fs.BoolVar(&o.refreshOnly, "refresh-only", false, "only look: tell what is on the host, plan nothing")
	fs.StringVar(&o.format, "format", "text", "`FORM` of the plan: text or markdown")
	completeTargets(c, f)
	return c
}

func runPlan(ctx context.Context, a *app, f *siteFlags, o *planFlags) error {
	a.ui.document = func(err error) any { return a.opened.unplanned(f.host, found(err)) }
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
	sc := scope{Manifest: f.manifest, Targets: o.targets, RefreshOnly: o.refreshOnly, AllowDeletes: f.allowDeletes}
	p, err := sc.limit(s.pass(h, ""))
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
func showPlan(a *app, s *session, r engine.Report, sc scope, o *planFlags) error {
	p := r.Plan
	if p == nil {
		p = s.unplanned(r.Host, r.Findings)
	}
	p.Findings = append(p.Findings, engine.FindingOf(r.Err)...)
	a.ui.findings(r.Findings)
	doc := planDocument{p, sc}
	switch {
	case o.out == "":
	case r.Outcome == engine.Planned:
		if err := keepPlan(o.out, doc); err != nil {
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
	case r.Plan != nil && !isDark(r):
		a.ui.plan(p)
	}
	return nil
}

// isDark reports whether the host could not be looked at, so that the error says all that
// there is in its plan.
func isDark(r engine.Report) bool {
	return r.Err != nil && len(r.Plan.Unknown) == 1 && r.Plan.Unknown[0].All && r.Plan.Unknown[0].Why == r.Err.Error()
}

// plan draws a plan for people.
func (u *ui) plan(p *plan.Plan) {
	w, color := u.text()
	if p.Text(w, plan.TextOptions{Color: color, Width: u.width, All: u.verbose}) {
		u.notef("not all of it fits on these lines: -v shows every change with its values")
	}
}

// planned draws the plan of a pass that is going to carry it out. That a destruction
// finds nothing is not told as a site in sync: the site wants those guests.
func (u *ui) planned(p *engine.Pass, made *plan.Plan) {
	if p.Destroy && made.InSync() {
		u.printf("nothing to destroy: no guest of manifest %s is on host %s\n", p.Manifest, p.Host)
		return
	}
	u.plan(made)
}

// sketch draws a plan beside what was asked for.
func (u *ui) sketch(p *plan.Plan) {
	p.Text(u.stderr, plan.TextOptions{Color: u.colored(u.errTerminal), Width: u.width, All: u.verbose})
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

// scope is what a plan was limited to, and what was granted to it. It stands in the plan document beside the
// plan, since a plan from a file can be compared only with one made alike.
type scope struct {
	Manifest    string   `json:"manifest,omitempty"`
	Targets     []string `json:"targets,omitempty"`
	RefreshOnly bool     `json:"refresh_only,omitempty"`

	AllowDeletes int `json:"allow_deletes,omitempty"` // what was granted when it was made: it is judged again in the same way
}

// limit narrows a pass to a scope.
func (sc scope) limit(p *engine.Pass) (*engine.Pass, error) {
	targets, err := addresses(sc.Targets)
	if err != nil {
		return nil, err
	}
	p.Manifest, p.Targets, p.RefreshOnly, p.AllowDeletes = sc.Manifest, targets, sc.RefreshOnly, sc.AllowDeletes
	return p, nil
}

// planDocument is the plan document: the plan, and what it was limited to.
type planDocument struct {
	plan  *plan.Plan
	scope scope
}

// MarshalJSON writes the plan with one more key, if it was limited to anything.
func (d planDocument) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(d.plan)
	if err != nil {
		return nil, err
	}
	sc, err := json.Marshal(d.scope)
	if err != nil || string(sc) == "{}" {
		return b, err
	}
	return slices.Concat(b[:len(b)-1], []byte(`,"scope":`), sc, []byte("}")), nil
}

// keepPlan writes a plan file. It names hosts and guests: nobody else need read it.
func keepPlan(name string, doc planDocument) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep the plan: %w", err)
	}
	err = writeJSON(f, doc)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("keep the plan in %s: %w", name, err)
	}
	return nil
}

// readPlan reads a plan file.
func readPlan(name string) (planDocument, error) {
	f, err := os.Open(name)
	if err != nil {
		return planDocument{}, fmt.Errorf("open the plan: %w\na plan is kept in a file by: homestak-gitops plan --out FILE", err)
	}
	defer func() { _ = f.Close() }()
	p, err := plan.Read(f)
	if err != nil {
		return planDocument{}, fmt.Errorf("%s: %w\na plan is kept in a file by: homestak-gitops plan --out FILE", name, err)
	}
	var doc struct {
		Scope scope `json:"scope"`
	}
	_, err = f.Seek(0, io.SeekStart)
	if err == nil {
		err = json.NewDecoder(f).Decode(&doc)
	}
	if err != nil {
		return planDocument{}, fmt.Errorf("%s: %w", name, err)
	}
	return planDocument{p, doc.Scope}, nil
}
