package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine"
)

func (a *app) destroyVerb() *cobra.Command {
	f := &siteFlags{}
	c := &cobra.Command{
		Use:   "destroy -M MANIFEST",
		Short: "Remove the guests of a manifest from its host, children first",
		Long: `Plans the removal of every guest of a manifest, shows it, asks, and does it. Only
what proves to be ours is removed; what is gone already is fine.

Of a recipe it removes what "test --keep" left behind. For good, a deployed
manifest is removed in the site: the next apply would make it again.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := f.limit(c.Context())
			defer cancel()
			return because(ctx, a.destroy(ctx, f))
		},
	}
	f.change(a, c)
	return c
}

func (a *app) destroy(ctx context.Context, f *siteFlags) error {
	var s *session
	a.ui.document = func(err error) any { return engine.Failure("destroy", s.commit(), found(err)) }
	if f.manifest == "" {
		return errors.New("destroy what? name a manifest with -M")
	}
	s, err := a.open(ctx, f)
	if err != nil {
		return err
	}
	defer s.close()
	m, h, err := s.choose()
	if err != nil {
		return err
	}
	owner := h.Name
	if m.Host == "" {
		owner = testOwner()
		if err := s.bind(m, h); err != nil {
			return err
		}
	}
	p := s.pass(h, owner)
	p.Verb, p.Manifest, p.Destroy = "destroy", m.Name, true
	return a.carryOut(ctx, s, h, p, nil)
}
