package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

func (a *app) testVerb() *cobra.Command {
	f := &siteFlags{}
	var keep bool
	var dir string
	c := &cobra.Command{
		Use:   "test -M MANIFEST",
		Short: "Try a manifest on a host: create it, verify it, destroy it",
		Long: `Binds a manifest, usually a recipe, to a host, creates its nodes, looks again
whether all is there, runs and passes its checks, and destroys them. It touches only what it made
itself; its guests belong to whoever runs the test, and to no agent.

With --keep they stay; "destroy -M MANIFEST" on the same machine removes them.
Ctrl-C once ends the test early and cleans up; twice leaves now.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.test(c.Context(), f, keep, dir) },
	}
	f.change(a, c)
	c.Flags().BoolVar(&keep, "keep", false, "do not destroy what was made")
	c.Flags().StringVar(&dir, "report-dir", "", "write the report into `DIR`, as JSON and as Markdown")
	must(c.MarkFlagDirname("report-dir"))
	return c
}

// testOwner stands in the ownership tags of what tests make: foreign to every agent.
func testOwner() string { return "cli:" + control.Whoami() }

// bindTest makes the site one in which only this manifest is deployed, with a check that
// logs in to each node where that is possible.
func bindTest(s *session, m *model.Manifest, h *model.Host) error {
	err := s.Bind(m, h)
	if err == nil {
		s.Desired.Findings = append(s.Desired.Findings, verifySSH(s.Desired.Site, m.Name, h)...)
	}
	return err
}

// phase is a part of a test.
type phase struct {
	Name string
	Took time.Duration
	Err  error // nil: passed
}

// trial is a test under way.
type trial struct {
	app      *app
	session  *session
	host     *model.Host
	manifest *model.Manifest
	progress *view.Progress
	report   engine.Report
	phases   []phase
}

func (a *app) test(ctx context.Context, f *siteFlags, keep bool, dir string) error {
	began := time.Now()
	var s *session
	a.ui.document = func(err error) any { return engine.Failure("test", s.commit(), found(err)) }
	if f.manifest == "" {
		return errors.New("test what? name a manifest with -M")
	}
	s, err := a.open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	m, h, err := s.choose()
	if err != nil {
		return err
	}
	if err := bindTest(s, m, h); err != nil {
		return err
	}
	if err := s.Recheck(ctx); err != nil {
		return err
	}
	if !f.sim {
		release, err := a.lock(h, "test")
		if err != nil {
			return err
		}
		defer release()
	}
	a.ui.findings(s.Desired.Findings)
	t := &trial{app: a, session: s, host: h, manifest: m, progress: view.Watch(a.ui.terminal())}
	err = t.run(ctx, keep)
	t.progress.Close()
	t.report.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	t.report.Success = err == nil
	a.ui.findings(t.report.Findings)
	if a.ui.json {
		if perr := a.ui.emit(t.report); perr != nil {
			return perr
		}
	} else {
		a.ui.printf("%s", t.markdown(keep))
	}
	if dir != "" {
		if werr := t.keepReport(dir, began, keep); werr != nil {
			return errors.Join(werr, err)
		}
	}
	return err
}

// run goes through the phases and gives the ending of the test: that of the first
// phase that did not pass.
func (t *trial) run(ctx context.Context, keep bool) error {
	limited, cancel := t.session.flags.limit(ctx)
	defer cancel()
	err := t.create(limited)
	if err == nil {
		err = t.verify(limited)
	}
	// Only what this test began may be destroyed, never what it found there.
	made := slices.ContainsFunc(t.report.Results, func(r apply.Result) bool { return r.Status != apply.Skipped })
	cleanup := t.manifest.Settings == nil || t.manifest.Settings.CleanupOnFailure == nil || *t.manifest.Settings.CleanupOnFailure
	if keep || !made || err != nil && !cleanup {
		return err
	}
	// Cleaning up belongs to the work that is finished: neither the first Ctrl-C
	// nor --timeout keeps it from being done.
	if derr := t.destroy(ctx); err == nil {
		err = derr
	}
	return err
}

// pass is one look at the host, limited to the manifest.
func (t *trial) pass() *engine.Pass {
	p := t.session.pass(t.host, testOwner())
	p.Verb, p.Manifest, p.Notify = "test", t.manifest.Name, t.progress.Notify
	p.Health.Notify = t.progress.Checking
	return p
}

// phase runs a part of the test and notes how it went.
func (t *trial) phase(name string, do func() error) error {
	began := time.Now()
	err := do()
	t.progress.Waits("")
	p := phase{name, time.Since(began).Round(100 * time.Millisecond), err}
	t.phases = append(t.phases, p)
	t.app.ui.notef("%s: %s in %.1f s", name, p.result(), p.Took.Seconds())
	return err
}

func (p phase) result() string {
	if p.Err != nil {
		return "failed"
	}
	return "passed"
}

func (t *trial) create(ctx context.Context) error {
	return t.phase("create", func() error {
		t.progress.Waits(view.Observing(t.host.Name))
		if t.report = t.pass().Run(ctx); t.report.Err != nil || t.report.Outcome != engine.Planned {
			return because(ctx, exit.OfPass(t.report))
		}
		if err := t.untouched(); err != nil {
			return err
		}
		p := t.pass()
		p.Verdict = func(_ context.Context, made *plan.Plan) (bool, error) {
			t.progress.Waits("")
			t.app.ui.findings(made.Findings)
			t.app.ui.sketch(made)
			return true, nil
		}
		if t.report = p.Run(ctx); t.report.Outcome == engine.Partly {
			return exit.With(exit.Failed, exit.Unreported(t.report)) // what is there is cleaned up, so nothing stays in part
		}
		return because(ctx, exit.OfPass(t.report))
	})
}

// untouched refuses a test that would find its nodes on the host: it would destroy
// what it did not make.
func (t *trial) untouched() error {
	for _, addr := range t.report.Have.State.Addresses() {
		if t.report.Have.State[addr].Manifest == t.manifest.Name {
			return exit.With(exit.Refused, fmt.Errorf("%s is there already, and a test destroys only what it made itself\nremove it first: homestak-gitops destroy -M %s --host %s", addr, t.manifest.Name, t.host.Name))
		}
	}
	return nil
}

func (t *trial) destroy(ctx context.Context) error {
	return t.phase("destroy", func() error {
		p := t.pass()
		p.Destroy, p.Stop = true, nil
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
		r := p.Run(ctx)
		t.merge(r)
		return because(ctx, exit.OfPass(r))
	})
}

// merge takes the end of the nodes into the report: what was created well and then
// destroyed is destroyed; what failed stays failed.
func (t *trial) merge(destroyed engine.Report) {
	t.report.Findings = append(t.report.Findings, destroyed.Findings...).Sorted()
	end := map[string]engine.Node{}
	for _, n := range destroyed.Nodes {
		end[n.Name] = n
	}
	for i := range t.report.Nodes {
		n := &t.report.Nodes[i]
		d, ok := end[n.Name]
		if !ok || n.Status == engine.NodeFailed {
			continue
		}
		n.Status, n.Seconds = d.Status, n.Seconds+d.Seconds
		n.Error = strings.TrimPrefix(n.Error+"; "+d.Error, "; ")
	}
}

// keepReport writes the report into a folder: TIME.MANIFEST.passed.json and .md.
func (t *trial) keepReport(dir string, began time.Time, keep bool) error {
	result := "failed"
	if t.report.Success {
		result = "passed"
	}
	base := filepath.Join(dir, fmt.Sprintf("%s.%s.%s", began.Format("20060102-150405"), t.manifest.Name, result))
	var doc strings.Builder
	if err := writeJSON(&doc, t.report); err != nil {
		return err
	}
	err := os.MkdirAll(dir, 0o755)
	for name, text := range map[string]string{base + ".json": doc.String(), base + ".md": t.markdown(keep)} {
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
	}
	if err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	t.app.ui.notef("the report is in %s.json and .md", base)
	return nil
}
