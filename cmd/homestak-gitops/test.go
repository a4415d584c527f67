package main

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/trial"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
)

func testVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	var keep bool
	var dir string
	c := &cobra.Command{
		Use:   "test -M MANIFEST",
		Short: "Test a manifest on a host: create, verify, destroy",
		Long: `The nodes of the manifest, usually a recipe, must run and pass their checks. It touches
only guests that it created; they belong to the user who runs the test, not to an agent.
The site needs an ownership key.

With --sim, nested nodes are tested as a tree: the host and each pve node get their own
agent, one commit deploys the manifest, and another one removes it. --mode then does not
apply to pve nodes.

"destroy -M MANIFEST" on the same machine removes what --keep left. Press Ctrl-C once to
end the test early and clean up, twice to exit immediately.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runTest(c.Context(), a, f, keep, dir) },
	}
	f.Change(a.ui, c)
	c.Flags().Lookup("yes").Usage = "no effect: test does not ask"
	c.Flags().BoolVar(&keep, "keep", false, "do not destroy the nodes")
	c.Flags().StringVar(&dir, "report-dir", "", "`DIR`: report in JSON and Markdown")
	ui.Must(c.MarkFlagDirname("report-dir"))
	return c
}

// testOwner is in the ownership tags of what tests make: unmanaged for every agent.
func testOwner() string { return "cli:" + control.Whoami() }

// bindTest makes the site one in which only this manifest is deployed, with a check that
// logs in to each node where that is possible.
func bindTest(s *session.Session, m *model.Manifest, h *model.Host) error {
	err := s.Bind(m, h)
	if err == nil {
		s.Desired.Findings = append(s.Desired.Findings, trial.AddLogins(s.Desired.Site, m.Name, h)...)
	}
	return err
}

func runTest(ctx context.Context, a *app, f *session.Flags, keep bool, dir string) error {
	s, m, h, err := a.sites.ReachManifest(ctx, f, "test")
	if err != nil {
		return err
	}
	defer s.Close()
	if !f.Sim { // simulated hosts always have a key
		if err := trial.RequireKey(s.Desired.Site, testOwner()); err != nil {
			return err
		}
	}
	if f.Sim && trial.HasChildren(m) {
		return testTree(ctx, a, s, m, h, trial.Options{Keep: keep, Timeout: f.Timeout}, dir)
	}
	if err := bindTest(s, m, h); err != nil {
		return err
	}
	if err := s.Recheck(ctx); err != nil {
		return err
	}
	if !f.Sim {
		release, err := s.Lock(h, "test")
		if err != nil {
			return err
		}
		defer release()
	}
	a.ui.Findings(s.Desired.Findings)
	progress := a.ui.Terminal().Watch()
	t, err := trial.Run(ctx, trial.Options{
		Site: s.Desired.Site.Name, Host: h, Manifest: m, Keep: keep, Timeout: f.Timeout, Stop: a.stopping.Once,
		Pass:     func() *engine.Pass { return s.Pass(h, testOwner()) },
		Progress: progress, Findings: a.ui.Findings, Plan: a.ui.Sketch, Note: a.ui.Notef,
	})
	progress.Close()
	return showTrial(a, t, dir, err)
}

// testTree tries a manifest with children, each of which has an agent of its own.
func testTree(ctx context.Context, a *app, s *session.Session, m *model.Manifest, h *model.Host, o trial.Options, dir string) error {
	vars, err := s.Flags.Variables()
	if err != nil {
		return err
	}
	a.ui.Findings(s.Desired.Findings)
	o.Site, o.Host, o.Manifest, o.Stop, o.Note, o.Progress = s.Desired.Site.Name, h, m, a.stopping.Once, a.ui.Notef, a.ui.Terminal().Watch()
	t, err := trial.Tree{
		Agent: s.Net.Agents.Agent, Running: s.Net.Agents.Running, Address: s.Net.Agents.Address,
		Files: s.Files(), Secrets: s.Desired.Site.Secrets, Mode: s.Flags.Mode, Vars: vars, Found: s.Desired.Findings, Paint: a.ui.Paint(),
	}.Run(ctx, o)
	o.Progress.Close()
	return showTrial(a, t, dir, err)
}

// showTrial shows how a test ended, and writes the report into a folder; "": none.
func showTrial(a *app, t *trial.Trial, dir string, failed error) error {
	a.ui.Findings(t.Report.Findings)
	if err := a.ui.Show(t.Report, t.Markdown()); err != nil || dir == "" {
		return cmp.Or(err, failed)
	}
	var doc strings.Builder
	if err := ui.WriteJSON(&doc, t.Report); err != nil {
		return errors.Join(err, failed)
	}
	base, err := t.Write(dir, doc.String())
	if err == nil {
		a.ui.Notef("the report is in %s.json and .md", base)
	}
	return errors.Join(err, failed)
}
