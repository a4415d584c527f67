package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
)

func destroyVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	suspend := false
	c := &cobra.Command{
		Use:   "destroy -M MANIFEST",
		Short: "Remove the guests of a manifest from its host, children first",
		Long: `Shows a plan, asks for confirmation, and applies it. It removes only managed guests, each
after an identity check; of a recipe, what "test --keep" left behind.

The next apply, or the agent, creates the guests again, unless the manifest leaves the
site. With --suspend the agent leaves it alone until "resume -M MANIFEST".`,
		Args: cobra.NoArgs,
		RunE: f.Within(func(ctx context.Context, _ []string) error { return runDestroy(ctx, a, f, suspend) }),
	}
	f.Change(a.ui, c)
	f.GrantOrphans(c)
	c.Flags().BoolVar(&suspend, "suspend", false, "suspend the manifest in the agent of the host")
	return c
}

func runDestroy(ctx context.Context, a *app, f *session.Flags, suspend bool) error {
	s, m, h, err := a.sites.ReachManifest(ctx, f, "destroy")
	if err != nil {
		return err
	}
	defer s.Close()
	owner := ""
	if m.Host == "" {
		owner = testOwner()
		if err := bindTest(s, m, h); err != nil {
			return err
		}
	}
	p := s.Pass(h, owner)
	p.Verb, p.Manifest, p.Destroy, p.AllowOrphans = "destroy", m.Name, true, f.AllowOrphans
	if f.Sim || m.Host == "" {
		return s.CarryOut(ctx, h, p, session.Change{})
	}
	allow := func(ctx context.Context) error { return s.Verb("destroy").AllowDestroy(ctx, h, m.Name, suspend) }
	if !suspend { // a refusal comes before the question; to suspend changes the agent, so that comes after it
		if err := allow(ctx); err != nil {
			return err
		}
	}
	return s.CarryOut(ctx, h, p, session.Change{Agreed: allow})
}
