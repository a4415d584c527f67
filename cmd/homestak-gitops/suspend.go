package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/ledger"
)

// suspendFlags are the flags of suspend and resume.
type suspendFlags struct {
	agentFlags
	manifest string
	reason   string
	span     time.Duration
}

func (a *app) suspendVerb() *cobra.Command {
	f := &suspendFlags{}
	c := &cobra.Command{
		Use:   "suspend --reason TEXT",
		Short: "Keep the agent from changing anything, or one manifest, for a while",
		Long: `The agent goes on looking and tells what differs, but changes nothing, until the time
is over or "resume" is said. It remembers that over a restart, and status shows it with
who said it and why. For good, a manifest says suspend = true in the site.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.suspend(c.Context(), f) },
	}
	f.flags(a, c)
	c.Flags().StringVar(&f.reason, "reason", "", "`TEXT` that tells others why")
	c.Flags().DurationVar(&f.span, "for", 0, "`TIME` after which it ends by itself, such as 2h (default: when it is resumed)")
	return c
}

func (a *app) resumeVerb() *cobra.Command {
	f := &suspendFlags{}
	c := &cobra.Command{
		Use:   "resume",
		Short: "Let the agent go on where it was suspended",
		Long:  `Takes back what suspend said, about everything or about one manifest. The agent looks at once.`,
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return a.resume(c.Context(), f) },
	}
	f.flags(a, c)
	return c
}

func (f *suspendFlags) flags(a *app, c *cobra.Command) {
	f.find(c)
	c.Flags().StringVarP(&f.manifest, "manifest", "M", "", "only the manifest of this `NAME` (default: everything)")
	a.ui.jsonFlag(c)
	must(c.RegisterFlagCompletionFunc("manifest", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		r, _, err := a.agentHere(context.Background(), &f.agentFlags)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return r.card.Manifests, cobra.ShellCompDirectiveNoFileComp
	}))
}

func (a *app) suspend(ctx context.Context, f *suspendFlags) error {
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	a.ui.document = problemOf
	switch {
	case strings.TrimSpace(f.reason) == "":
		return errors.New("why? whoever finds it suspended wants to know: --reason TEXT")
	case f.span < 0:
		return fmt.Errorf("--for %s: a time span cannot be negative", f.span)
	}
	r, err := a.runningAgent(ctx, &f.agentFlags)
	if err != nil {
		return err
	}
	s, err := r.suspend(ctx, ledger.Suspension{Manifest: f.manifest, Reason: f.reason}, f.span)
	if err != nil {
		return err
	}
	if a.ui.json {
		return a.ui.emit(s)
	}
	end := "until it is resumed"
	if s.Until != nil {
		end = "until " + when(*s.Until)
	}
	a.ui.printf("%s is suspended %s\n", suspendedWhat(f.manifest), end)
	a.ui.notef("steps that run are finished; go on with: homestak-gitops resume%s", manifestFlag(f.manifest))
	return nil
}

// suspend says it to the agent, in the name of whoever runs the program.
func (r *remote) suspend(ctx context.Context, s ledger.Suspension, span time.Duration) (ledger.Suspension, error) {
	s.By = whoami()
	if span > 0 {
		end := time.Now().UTC().Add(span).Truncate(time.Second)
		s.Until = &end
	}
	var said ledger.Suspension
	err := r.post(ctx, "/suspend", s, &said)
	return said, err
}

func (a *app) resume(ctx context.Context, f *suspendFlags) error {
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	a.ui.document = problemOf
	r, err := a.runningAgent(ctx, &f.agentFlags)
	if err != nil {
		return err
	}
	if err := r.post(ctx, "/resume", map[string]string{"manifest": f.manifest, "by": whoami()}, nil); err != nil {
		return err
	}
	if a.ui.json {
		return a.ui.emit(map[string]string{"resumed": f.manifest})
	}
	what := "the agent goes on"
	if f.manifest != "" {
		what += " with manifest " + f.manifest
	}
	a.ui.printf("%s, and looks now\n", what)
	return nil
}

// runningAgent finds an agent that must be there.
func (a *app) runningAgent(ctx context.Context, f *agentFlags) (*remote, error) {
	r, c, err := a.agentHere(ctx, f)
	if errors.Is(err, errNoAgent) {
		return nil, fmt.Errorf("%w (data folder %s)\nstart it: systemctl start homestak-gitops, or homestak-gitops agent; another one is named by --socket or --data-dir", err, c.DataDir)
	}
	return r, err
}

// suspendedWhat names what a suspension is about, at the beginning of a sentence.
func suspendedWhat(manifest string) string {
	if manifest == "" {
		return "everything"
	}
	return "manifest " + manifest
}

func manifestFlag(manifest string) string {
	if manifest == "" {
		return ""
	}
	return " -M " + manifest
}

func joined(list []string) string { return strings.Join(list, ", ") }
