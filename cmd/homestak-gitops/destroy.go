package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine"
)

func (a *app) destroyVerb() *cobra.Command {
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
			ctx, cancel := f.limit(c.Context())
			defer cancel()
			return because(ctx, a.destroy(ctx, f, suspend))
		},
	}
	f.change(a, c)
	c.Flags().BoolVar(&suspend, "suspend", false, "let the agent of the host leave the manifest alone from now on")
	return c
}

func (a *app) destroy(ctx context.Context, f *siteFlags, suspend bool) error {
	var s *session
	a.ui.document = func(err error) any { return engine.Failure("destroy", s.commit(), found(err)) }
	if f.manifest == "" {
		return errors.New("destroy what? name a manifest with -M")
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
	owner := ""
	if m.Host == "" {
		owner = testOwner()
		if err := bindTest(s, m, h); err != nil {
			return err
		}
	}
	p := s.pass(h, owner)
	p.Verb, p.Manifest, p.Destroy = "destroy", m.Name, true
	if f.sim || m.Host == "" {
		return a.carryOut(ctx, s, h, p, nil, nil)
	}
	if !suspend {
		if err := a.agentAllowsDestroy(ctx, h, m.Name, false); err != nil {
			return err
		}
	}
	return a.carryOut(ctx, s, h, p, nil, func(ctx context.Context) error {
		return a.agentAllowsDestroy(ctx, h, m.Name, suspend)
	})
}
