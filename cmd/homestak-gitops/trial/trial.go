// Package trial tests a manifest on a host: it creates the nodes, verifies them, and destroys them. It touches no
// other guests.
package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

// Options configure a trial.
type Options struct {
	Site     string // its name
	Host     *model.Host
	Manifest *model.Manifest
	Keep     bool          // do not destroy the nodes
	Timeout  time.Duration // for creating and verifying; 0: no limit
	Stop     <-chan struct{}

	// Pass begins a pass over a site in which only this manifest is deployed.
	Pass     func() *engine.Pass
	Progress *view.Progress
	Findings func(diag.List)               // shows findings
	Plan     func(*plan.Plan)              // shows the plan that is carried out
	Note     func(format string, a ...any) // says how a phase went
}

// Trial is a trial that was made.
type Trial struct {
	Report engine.Report
	Phases []phase

	o     Options
	began time.Time
}

// phase is a part of a trial.
type phase struct {
	Name string
	Took time.Duration
	Err  error // nil: passed
}

// Run tries the manifest. The error is that of the first phase that did not pass, with its
// exit code.
func Run(ctx context.Context, o Options) (*Trial, error) {
	t := &Trial{o: o, began: time.Now()}
	err := t.run(ctx)
	t.Report.Seconds = time.Since(t.began).Round(time.Millisecond).Seconds()
	t.Report.Success = err == nil
	return t, err
}

// RequireKey refuses a test that could not remove what it makes, since no key would show that its guests belong to owner.
func RequireKey(site *model.Site, owner string) error {
	if len(site.Secrets.OwnershipKeys(site.Name, owner)) > 0 {
		return nil
	}
	why, fix := "the site has no ownership key", strings.Join(site.Secrets.OwnershipKeyAdvice(), "\n")
	if site.Secrets.HasOwnershipKey() {
		why, fix = "the ownership key of the site is not known here", "run it where the secrets have auth."+model.OwnershipKey
	}
	return ui.ExitRefused.With(fmt.Errorf("a test removes the guests that it made, and nothing would prove that they are its own: %s; nothing was done\n%s", why, fix))
}

func (t *Trial) run(ctx context.Context) error {
	limited, cancel := ui.LimitTime(ctx, t.o.Timeout)
	defer cancel()
	err := t.create(limited)
	if err == nil {
		err = t.verify(limited)
	}
	// Only what this test began may be destroyed, never what it found there.
	made := slices.ContainsFunc(t.Report.Results, func(r apply.Result) bool { return r.Status != apply.Skipped })
	cleanup := t.o.Manifest.Settings == nil || t.o.Manifest.Settings.CleanupOnFailure == nil || *t.o.Manifest.Settings.CleanupOnFailure
	if t.o.Keep || !made || err != nil && !cleanup {
		return err
	}
	// Cleaning up belongs to the work that is finished: neither the first Ctrl-C
	// nor --timeout keeps it from being done.
	if derr := t.destroy(ctx); err == nil {
		err = derr
	}
	return err
}

// pass is a pass that is limited to the manifest.
func (t *Trial) pass() *engine.Pass {
	p := t.o.Pass()
	p.Verb, p.Manifest, p.Observer = "test", t.o.Manifest.Name, engine.StepFunc(t.o.Progress.Notify)
	p.Health.Notify = t.o.Progress.Checking
	return p
}

// phase runs a part of the trial and records how it went.
func (t *Trial) phase(name string, do func() error) error {
	began := time.Now()
	err := do()
	t.o.Progress.Waits("")
	p := phase{name, time.Since(began).Round(100 * time.Millisecond), err}
	t.Phases = append(t.Phases, p)
	t.o.Note("%s: %s in %.1f s", name, p.result(), p.Took.Seconds())
	return err
}

func (p phase) result() string {
	if p.Err != nil {
		return "failed"
	}
	return "passed"
}

func (t *Trial) create(ctx context.Context) error {
	return t.phase("create", func() error {
		t.o.Progress.Waits(view.Observing(t.o.Host.Name))
		if t.Report = t.pass().Run(ctx); t.Report.Err != nil || t.Report.Outcome != engine.Planned {
			return ui.Because(ctx, ui.ExitOfPass(t.Report))
		}
		if err := t.untouched(); err != nil {
			return err
		}
		p := t.pass()
		p.Verdict = func(_ context.Context, made *plan.Plan) (bool, error) {
			t.o.Progress.Waits("")
			t.o.Findings(made.Findings)
			t.o.Plan(made)
			return true, nil
		}
		if t.Report = p.Run(ctx); t.Report.Outcome == engine.Partly {
			return ui.ExitFailed.With(ui.Unreported(t.Report)) // all of it is cleaned up, so nothing stays in part
		}
		return ui.Because(ctx, ui.ExitOfPass(t.Report))
	})
}

// untouched refuses a test that would find its nodes on the host: it would destroy
// what it did not make.
func (t *Trial) untouched() error {
	for _, addr := range t.Report.Have.State.Addresses() {
		if t.Report.Have.State[addr].Manifest == t.o.Manifest.Name {
			return ui.ExitRefused.With(fmt.Errorf("%s is there already, and a test destroys only what it made itself\nremove it first: homestak-gitops destroy -M %s --host %s", addr, t.o.Manifest.Name, t.o.Host.Name))
		}
	}
	return nil
}

func (t *Trial) destroy(ctx context.Context) error {
	return t.phase("destroy", func() error {
		p := t.pass()
		p.Destroy, p.Stop = true, nil
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
		r := p.Run(ctx)
		t.merge(r)
		return ui.Because(ctx, ui.ExitOfPass(r))
	})
}

// merge takes the end of the nodes into the report: what was created well and then
// destroyed is destroyed; what failed stays failed.
func (t *Trial) merge(destroyed engine.Report) {
	t.Report.Findings = append(t.Report.Findings, destroyed.Findings...).Sorted()
	end := map[string]engine.Node{}
	for _, n := range destroyed.Nodes {
		end[n.Name] = n
	}
	for i := range t.Report.Nodes {
		n := &t.Report.Nodes[i]
		d, ok := end[n.Name]
		if !ok || n.Status == engine.NodeFailed {
			continue
		}
		n.Status, n.Seconds = d.Status, n.Seconds+d.Seconds
		n.Error = strings.TrimPrefix(n.Error+"; "+d.Error, "; ")
	}
}
