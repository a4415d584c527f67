package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/view"
)

// suspendFlags are the flags of suspend and resume.
type suspendFlags struct {
	session.AgentFlags
	manifest string        // "": everything
	reason   string        // suspend only
	span     time.Duration // suspend only; 0: until resume
}

func suspendVerb(a *app) *cobra.Command {
	f := &suspendFlags{}
	c := &cobra.Command{
		Use:   "suspend --reason TEXT",
		Short: "Stop the agent from making changes",
		Long: `The agent still checks and reports differences, but changes nothing until the time is over
or you run "resume", also after a restart. To suspend a manifest permanently, set suspend
= true in the site.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runSuspend(ctx, a, f) }),
	}
	f.flags(a, c)
	c.Flags().StringVar(&f.reason, "reason", "", "`TEXT`: reason, which status shows")
	c.Flags().DurationVar(&f.span, "for", 0, "`TIME`: duration, such as 2h (default: until resume)")
	return c
}

func resumeVerb(a *app) *cobra.Command {
	f := &suspendFlags{}
	c := &cobra.Command{
		Use:   "resume",
		Short: "End a suspension of the agent",
		Long:  `The agent starts a pass immediately.`,
		Args:  cobra.NoArgs,
		RunE:  a.soon(func(ctx context.Context, _ []string) error { return runResume(ctx, a, f) }),
	}
	f.flags(a, c)
	return c
}

func (f *suspendFlags) flags(a *app, c *cobra.Command) {
	f.Find(a.ui, c)
	c.Flags().StringVarP(&f.manifest, "manifest", "M", "", "`NAME`: only this manifest")
	a.ui.JSONFlag(c)
	ui.Must(c.RegisterFlagCompletionFunc("manifest", f.CompleteManifest))
}

func runSuspend(ctx context.Context, a *app, f *suspendFlags) error {
	a.ui.Document = control.ProblemOf
	switch {
	case strings.TrimSpace(f.reason) == "":
		return errors.New("--reason TEXT is required: status displays it")
	case f.span < 0:
		return fmt.Errorf("--for %s: a time span cannot be negative", f.span)
	}
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	s, err := r.Suspend(ctx, ledger.Suspension{Manifest: f.manifest, Reason: f.reason}, f.span)
	if err != nil {
		return err
	}
	if a.ui.JSON {
		return a.ui.Emit(s)
	}
	end := "until it is resumed"
	if s.Until != nil {
		end = "until " + view.When(*s.Until)
	}
	a.ui.Printf("%s is suspended %s\n", control.SuspendedWhat(f.manifest), end)
	a.ui.Notef("running steps will finish; continue with: homestak-gitops resume%s", manifestFlag(f.manifest))
	return nil
}

func runResume(ctx context.Context, a *app, f *suspendFlags) error {
	a.ui.Document = control.ProblemOf
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	if err := r.Resume(ctx, f.manifest); err != nil {
		return err
	}
	if a.ui.JSON {
		return a.ui.Emit(map[string]string{"resumed": f.manifest})
	}
	what := "the agent continues"
	if f.manifest != "" {
		what += " with manifest " + f.manifest
	}
	a.ui.Printf("%s, and checks now\n", what)
	return nil
}

// manifestFlag returns the flag that names a suspended manifest on the command line.
func manifestFlag(manifest string) string {
	if manifest == "" {
		return ""
	}
	return " -M " + manifest
}
