package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine/guest/pull"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

func configFetchVerb(a *app) *cobra.Command {
	f, folder := &siteFlags{}, ""
	c := &cobra.Command{
		Use:   "fetch NODE",
		Short: "Resolve the spec of a node from a site, and keep it for config apply",
		Long: `Resolves what a site says of the inside of a node (its spec and posture, with the defaults
of the site) and keeps it on this machine. "config apply" applies it.`,
		Args: usage.Takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return runConfigFetch(c.Context(), a, f, pull.Folder{Path: folder}, args[0])
		},
	}
	f.read(a, c)
	stateFlag(c, &folder)
	return c
}

// fetched is the document of config fetch --json.
type fetched struct {
	Node    string     `json:"node"`
	Changed bool       `json:"changed"`
	Spec    *spec.Spec `json:"spec"`
}

func runConfigFetch(ctx context.Context, a *app, f *siteFlags, folder pull.Folder, name string) error {
	s, err := a.open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Check(); err != nil {
		return err
	}
	m, err := s.Manifest(f.manifest)
	if err != nil {
		return err
	}
	node, err := s.Node(name, m)
	if err != nil {
		return err
	}
	want, found := spec.Resolve(s.Desired.Site, node)
	a.ui.findings(found)
	if found.HasErrors() {
		return fmt.Errorf("the spec of node %s cannot be resolved", name)
	}
	document, err := json.Marshal(want)
	if err != nil {
		return err
	}
	changed, err := folder.Store(document)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("spec %s of node %s is unchanged\n", want.Name, name)
	if changed {
		text = fmt.Sprintf("spec %s of node %s is in %s: apply it with config apply\n", want.Name, name, folder.Path)
	}
	return a.ui.show(fetched{Node: name, Changed: changed, Spec: want}, text)
}
