package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func tokenMintVerb(a *app) *cobra.Command {
	f, folder, o := &session.Flags{}, &serverFolder{}, &mintFlags{}
	c := &cobra.Command{
		Use:   "mint NODE",
		Short: "Print a new token for a node",
		Long: `It is a secret: write it to /etc/homestak-gitops/node.json on that node, mode 0600. It
ends when the node uses the next one, which it gets with its spec.

With --join a machine joins with it as a host below this one, within an hour and once. The
command to run there is printed, too. The site need not have the host yet.

Use --out for config fetch and for token_file of an agent, which require mode 0600.`,
		Args: ui.TakesArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.join {
				if !c.Flags().Changed("expires") {
					o.life = time.Hour
				}
				return runTokenJoin(c.Context(), a, folder, args[0], o)
			}
			return runTokenMint(c.Context(), a, f, folder, args[0], o)
		},
	}
	f.Read(a.ui, c)
	folder.flag(c)
	c.Flags().DurationVar(&o.life, "expires", keys.TokenLifetime, "`TIME`: lifetime; 0 = never expires")
	c.Flags().BoolVar(&o.join, "join", false, "print a token by which one machine joins as host NODE")
	c.Flags().StringVar(&o.url, "url", "", "`URL`: with --join, where that machine reaches this one's server (default: as the agent says)")
	c.Flags().StringVar(&o.out, "out", "", "`FILE`: gets the token with mode 0600, in place of stdout")
	return c
}

type mintFlags struct {
	life time.Duration
	out  string
	join bool
	url  string
}

// runTokenJoin mints a token for joining. What a machine needs beside it, the agent of this machine knows.
func runTokenJoin(ctx context.Context, a *app, folder *serverFolder, name string, o *mintFlags) error {
	dir, err := folder.path(a.ui.Env)
	if err != nil {
		return err
	}
	if !wire.IsIdentity(name) {
		return fmt.Errorf("%q cannot be the name of a host: small letters, digits and dashes, beginning with a letter", name)
	}
	pins, err := keys.Folder(dir).ReadPins()
	if err != nil {
		return err
	}
	if o.url == "" {
		if o.url, err = serverURL(ctx, a, folder); err != nil {
			return err
		}
	}
	minted, err := keys.Folder(dir).MintJoin(name, o.life, time.Now())
	if err != nil {
		return err
	}
	minted.Join = fmt.Sprintf("homestak-gitops join %s --pin %s --token %s", o.url, pins[0], minted.Token)
	if o.out == "" {
		return a.ui.Show(minted, minted.Join+"\n")
	}
	if err := (wire.JoinFile{URL: o.url, Pin: pins[0], Token: minted.Token}).Save(o.out); err != nil {
		return fmt.Errorf("write the token: %w", err)
	}
	minted.Token, minted.Join = "", ""
	return a.ui.Show(minted, fmt.Sprintf("%s is the %s of a machine that joins as %s\n", o.out, wire.JoinFileName, name))
}

// serverURL asks the agent of this machine, that of the data folder if one is named, where others reach its server.
func serverURL(ctx context.Context, a *app, folder *serverFolder) (string, error) {
	flags := service.Flags{Asks: true, Given: map[string]string{}}
	if folder.dataDir != "" {
		flags.Given["data_dir"] = folder.dataDir
	}
	cfg, _ := flags.ReadConfig(a.ui.Env)
	c, err := cfg.Search().Find(ctx)
	var s agent.Status
	if err == nil {
		s, err = c.Status(ctx)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("%w\nthe machine has to know where it reaches the server of this one: start the agent, or give --url https://ADDRESS:44443", err)
	case s.Server == nil || s.Server.URL == "":
		return "", errors.New("the agent does not know where machines reach its server\ngive --url https://ADDRESS:44443, or set server in its host block")
	}
	return s.Server.URL, nil
}

func runTokenMint(ctx context.Context, a *app, f *session.Flags, folder *serverFolder, name string, o *mintFlags) error {
	dir, err := folder.path(a.ui.Env)
	if err != nil {
		return err
	}
	s, node, err := a.sites.ReachChild(ctx, f, name)
	if err != nil {
		return err
	}
	defer s.Close()
	if node.Mode != model.ModePull && !node.TakesCommands() && node.Type != model.PVEType {
		a.ui.Notef("node %s gets its spec by push: it needs no token", node.Name)
	}
	minted, err := keys.Folder(dir).Mint(node.Name, specOf(node), o.life, time.Now())
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

// specOf is what the token of a node names: an agent needs no spec.
func specOf(n *model.Node) string {
	if n.Type == model.PVEType {
		return cmp.Or(n.Spec, keys.ForAgent)
	}
	return n.Spec
}
