package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func configFetchVerb(a *app) *cobra.Command {
	f, from := &session.Flags{}, &node.Source{}
	c := &cobra.Command{
		Use:   "fetch [NODE]",
		Short: "Fetch the spec of a node for config apply",
		Long: `Without NODE it asks the parent in ` + wire.ParentFile + ` for this machine's spec,
with --server that server. Otherwise it resolves the spec of NODE from a copy of the site.`,
		Args: ui.TakesArgs(0, 1),
	}
	r := a.nodeFlags(c, from)
	fetch := f.Within(func(ctx context.Context, _ []string) error { return runConfigFetch(ctx, a, f, r, from) })
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 && (c.Flags().Changed("site") || from.Server != "") {
			return errors.New("no node is named: add NODE")
		}
		if len(args) == 1 {
			from.Node = args[0]
		}
		return fetch(c, args)
	}
	f.Read(a.ui, c)
	c.Flags().StringVar(&from.Server, "server", "", "`URL`: server to fetch from")
	c.Flags().StringArrayVar(&from.Pins, "pin", nil, "`PIN`: the server's key, such as sha256:…; repeatable")
	c.Flags().StringVar(&from.TokenFile, "token-file", "", "`FILE`: the node's token for the server")
	return c
}

// fetched is the document of config fetch --json.
type fetched struct {
	Node    string     `json:"node"`
	Changed bool       `json:"changed"`
	Spec    *spec.Spec `json:"spec"` // without what is made from secrets
}

func runConfigFetch(ctx context.Context, a *app, f *session.Flags, r *node.Run, from *node.Source) error {
	folder := node.Folder{Path: r.Folder}
	var changed bool
	var err error
	if from.Node != "" && from.Server == "" {
		changed, err = a.resolve(ctx, f, folder, from.Node)
	} else {
		changed, err = r.Fetch(ctx, *from)
	}
	if err != nil {
		return err
	}
	want, err := folder.Spec()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("spec %s of node %s is unchanged\n", want.Name, want.Node)
	if changed {
		text = fmt.Sprintf("spec %s of node %s is in %s: apply it with config apply\n", want.Name, want.Node, r.Folder)
	}
	return a.ui.Show(fetched{Node: want.Node, Changed: changed, Spec: want.Masked()}, text)
}

// resolve makes the spec of a node from a copy of the site, and stores it: no parent needs to answer.
func (a *app) resolve(ctx context.Context, f *session.Flags, folder node.Folder, name string) (changed bool, err error) {
	s, n, err := a.sites.ReachNode(ctx, f, name)
	if err != nil {
		return false, err
	}
	defer s.Close()
	want, found := spec.Resolve(s.Desired.Site, n)
	a.ui.Findings(found)
	if found.HasErrors() {
		return false, fmt.Errorf("the spec of node %s cannot be resolved: see the findings above", name)
	}
	document, err := json.Marshal(want)
	if err != nil {
		return false, err
	}
	return folder.Store(document)
}
