package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

func tokenMintVerb(a *app) *cobra.Command {
	f, folder, o := &session.Flags{}, &serverFolder{}, &mintFlags{}
	c := &cobra.Command{
		Use:   "mint NODE",
		Short: "Print a new token for a node",
		Long: `Prints a token for a node of the site. It is a secret: write it to
/etc/homestak-gitops/node.json on that node, mode 0600. It is valid for a day,
unless --expires says otherwise, and ends when the node uses the next one, which it gets
with its spec.

Use --out for config fetch and for token_file of an agent, which require mode 0600: others
may be able to read a file that a shell redirects the output to.`,
		Args: ui.TakesArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return runTokenMint(c.Context(), a, f, folder, args[0], o)
		},
	}
	f.Read(a.ui, c)
	folder.flag(c)
	c.Flags().DurationVar(&o.life, "expires", keys.Lifetime, "lifetime `TIME`; 0 = never expires")
	c.Flags().StringVar(&o.out, "out", "", "write the token to `FILE`, mode 0600, and do not print it")
	return c
}

type mintFlags struct {
	life time.Duration
	out  string
}

func runTokenMint(ctx context.Context, a *app, f *session.Flags, folder *serverFolder, name string, o *mintFlags) error {
	dir, err := folder.path(a.ui.Env)
	if err != nil {
		return err
	}
	s, node, err := a.sites.ReachNode(ctx, f, name)
	if err != nil {
		return err
	}
	defer s.Close()
	if node.Mode != model.ModePull && node.Type != "pve" {
		a.ui.Notef("node %s gets its spec by push: it needs no token", node.Name)
	}
	minted, err := keys.Mint(dir, node.Name, node.Spec, o.life, time.Now())
	if err != nil {
		return err
	}
	if o.out == "" {
		return a.ui.Show(minted, minted.Token+"\n")
	}
	if minted, err = minted.MoveTo(o.out); err != nil {
		return err
	}
	return a.ui.Show(minted, fmt.Sprintf("the token of node %s is in %s\n", node.Name, o.out))
}
