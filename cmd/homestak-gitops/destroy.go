package main

import (
	"context"

	"github.com/spf13/cobra"
)

func destroyVerb(a *app) *cobra.Command {
	f := &siteFlags{}
	suspend := false
	c := &cobra.Command{
		Use:   "destroy -M MANIFEST",
		Short: "Remove the guests of a manifest from its host, children first",
		Long: `Plans the removal of every guest of a manifest, shows it, asks, and does it. Only
what proves to be ours is removed; what is gone already is fine.

Of a recipe it removes what "test --keep" left behind. For good, a deployed
manifest is removed in the site: the next apply would make it again, and an agent
at its next look. Where an agent runs, --suspend makes it leave the manifest alone
until "resume -M MANIFEST".`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.within(c, func(ctx context.Context) error {
				return runDestroy(ctx, a, f, suspend)
			})
		},
	}
	f.change(a, c)
	f.letGo(c)
	c.Flags().BoolVar(&suspend, "suspend", false, "let the agent of the host leave the manifest alone from now on")
	return c
}

func runDestroy(ctx context.Context, a *app, f *siteFlags, suspend bool) error {
	s, m, h, err := a.reachManifest(ctx, f, "destroy")
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
	p := s.pass(h, owner)
	p.Verb, p.Manifest, p.Destroy, p.AllowOrphans = "destroy", m.Name, true, f.allowOrphans
	if f.sim || m.Host == "" {
		return carryOut(ctx, a, s, h, p, nil, nil)
	}
	if !suspend {
		if err := a.verb("destroy").AllowDestroy(ctx, h, m.Name, false); err != nil {
			return err
		}
	}
	return carryOut(ctx, a, s, h, p, nil, func(ctx context.Context) error {
		return a.verb("destroy").AllowDestroy(ctx, h, m.Name, suspend)
	})
}
