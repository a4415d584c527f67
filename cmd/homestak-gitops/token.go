package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

func tokenVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Manage tokens of nodes and keys of hosts",
		Long: `A token identifies a node to the server, which signs it with a key that never leaves the
machine.`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(tokenMintVerb(a), tokenInspectVerb(a), tokenRevokeVerb(a), tokenRotateVerb(a), tokenOwnershipVerb(a))
	return c
}

func tokenInspectVerb(a *app) *cobra.Command {
	folder, verify := &serverFolder{}, false
	c := &cobra.Command{
		Use:   "inspect [--verify]",
		Short: "Show the content of a token",
		Long:  `Reads it from standard input. With --verify it exits 6 if the token is not valid.`,
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runTokenInspect(a, folder, verify) },
	}
	c.Flags().BoolVar(&verify, "verify", false, "check it with the keys of this machine's server")
	folder.flag(c)
	a.ui.JSONFlag(c)
	return c
}

func runTokenInspect(a *app, folder *serverFolder, verify bool) error {
	text, err := io.ReadAll(io.LimitReader(a.ui.Stdin, 2*keys.MaxTokenLength))
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	i, err := keys.Inspect(string(text))
	if err != nil {
		return err
	}
	if !verify {
		return a.ui.Show(i, i.Text())
	}
	dir, err := folder.path(a.ui.Env)
	if err != nil {
		return err
	}
	ring, err := keys.Folder(dir).Read()
	if err != nil {
		return err
	}
	book, err := keys.Folder(dir).OpenBook()
	if err != nil {
		return err
	}
	i, err = i.Verified(ring, book, string(text), time.Now())
	return errors.Join(a.ui.Show(i, i.Text()), err)
}

func tokenRevokeVerb(a *app) *cobra.Command {
	folder := &serverFolder{}
	c := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Revoke all tokens of one node",
		Long: `Run it on the machine of the node's parent. A running server refuses the tokens from the
next request on.

The next pass of the parent's agent gives a new token to the agent of a pve node, and to a
node in mode pull that it can enter: a VM as its spec says, a container by pct. Other nodes
need one from token mint.
Tokens in the secrets of the site are not affected.`,
		Args: ui.TakesArgs(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := folder.path(a.ui.Env)
			if err != nil {
				return err
			}
			done, err := keys.Folder(dir).Revoke(args[0], time.Now())
			if err != nil {
				return err
			}
			if !done.Minted {
				a.ui.Notef("no token of a node %s is known here: check the name, and that this machine is its parent", done.Node)
			}
			return a.ui.Show(done, done.Text())
		},
	}
	folder.flag(c)
	a.ui.JSONFlag(c)
	return c
}

func tokenRotateVerb(a *app) *cobra.Command {
	folder, drop := &serverFolder{}, false
	c := &cobra.Command{
		Use:   "rotate [--drop-old]",
		Short: "Replace the key that signs tokens",
		Long: `A running server uses the new key immediately. Tokens of the key before stay valid, older
ones do not, and each node gets a new one when it fetches its spec. When all have, or if
the key before was stolen, run it again with --drop-old.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := folder.path(a.ui.Env)
			if err != nil {
				return err
			}
			change := keys.Folder(dir).Rotate
			if drop {
				change = func(time.Time) (keys.Ring, error) { return keys.Folder(dir).DropOld() }
			}
			ring, err := change(time.Now())
			if err != nil {
				return err
			}
			return a.ui.Show(ring.Document(), ring.Describe())
		},
	}
	c.Flags().BoolVar(&drop, "drop-old", false, "create no key, and drop the older one")
	folder.flag(c)
	a.ui.JSONFlag(c)
	return c
}
