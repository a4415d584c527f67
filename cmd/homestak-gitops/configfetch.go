package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine/guest/pull"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/parent"
)

func configFetchVerb(a *app) *cobra.Command {
	f, from, folder := &siteFlags{}, &parentFlags{}, ""
	c := &cobra.Command{
		Use:   "fetch [NODE]",
		Short: "Fetch the spec of a node, and keep it for config apply",
		Long: `Gets what a site says of the inside of a node (its spec and posture, with the defaults
of the site) and keeps it on this machine. "config apply" applies it.

Without NODE this machine is the node, and its parent is asked, as ` + parent.File + `
says. With --server another server is asked. Otherwise the spec of NODE is resolved from a
copy of the site.`,
		Args: usage.Takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && (c.Flags().Changed("site") || from.server != "") {
				return errors.New("whose spec? name the NODE")
			}
			return f.within(c, func(ctx context.Context) error {
				return runConfigFetch(ctx, a, f, from, pull.Folder{Path: folder}, args)
			})
		},
	}
	f.read(a, c)
	from.add(c)
	c.Flags().StringVar(&from.server, "server", "", "fetch from the server at `URL`, such as https://192.0.2.10:44443")
	c.Flags().StringArrayVar(&from.pins, "pin", nil, "`PIN` of a key of that server, such as sha256:…; may be repeated")
	c.Flags().StringVar(&from.tokenFile, "token-file", "", "`FILE` with the token of the node for that server")
	stateFlag(c, &folder)
	return c
}

// parentFlags say which parent to ask.
type parentFlags struct {
	file, server, tokenFile string
	pins                    []string
}

func (f *parentFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "parent", parent.File, "`FILE` that says who the parent of this machine is")
	complete.Must(c.MarkFlagFilename("parent"))
}

// source is that parent. What it renews is kept where it is asked by the file.
func (f *parentFlags) source(a *app, args []string) (pull.Server, error) {
	s, file := pull.Server{}, f.file
	p, err := parent.Parent{}, error(nil)
	if f.server != "" {
		file = ""
		p, err = parent.ByHand(args[0], f.server, f.tokenFile, f.pins)
	} else {
		p, err = parent.Load(file)
	}
	s.File, s.Client = file, &client.Client{Parent: p, Agent: "homestak-gitops/" + buildOf(debug.ReadBuildInfo()).Version}
	s.Client.Failed = func(err error, pause time.Duration) {
		a.ui.notef("%s\ntrying again in %s", err, pause.Round(time.Second))
	}
	return s, err
}

// fetched is the document of config fetch --json.
type fetched struct {
	Node    string     `json:"node"`
	Changed bool       `json:"changed"`
	Spec    *spec.Spec `json:"spec"`
}

func runConfigFetch(ctx context.Context, a *app, f *siteFlags, from *parentFlags, folder pull.Folder, args []string) error {
	var changed bool
	var err error
	if len(args) == 1 && from.server == "" {
		changed, err = a.resolve(ctx, f, folder, args[0])
	} else {
		changed, err = a.fetch(ctx, from, folder, args)
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
		text = fmt.Sprintf("spec %s of node %s is in %s: apply it with config apply\n", want.Name, want.Node, folder.Path)
	}
	return a.ui.show(fetched{Node: want.Node, Changed: changed, Spec: want}, text)
}

// fetch asks a parent, and stores what it answers.
func (a *app) fetch(ctx context.Context, from *parentFlags, folder pull.Folder, args []string) (changed bool, err error) {
	s, err := from.source(a, args)
	if err != nil {
		return false, err
	}
	unlock, err := folder.Lock(ctx, a.waiting)
	if err != nil {
		return false, err
	}
	defer unlock()
	return folder.FetchOnly(ctx, s)
}

func (a *app) waiting() { a.ui.notef("waiting for another run on this machine") }

// resolve makes the spec of a node from a copy of the site, and stores it.
func (a *app) resolve(ctx context.Context, f *siteFlags, folder pull.Folder, name string) (changed bool, err error) {
	s, err := a.open(ctx, f)
	if err != nil {
		return false, err
	}
	defer s.Close()
	if err := s.Check(); err != nil {
		return false, err
	}
	m, err := s.Manifest(f.manifest)
	if err != nil {
		return false, err
	}
	node, err := s.Node(name, m)
	if err != nil {
		return false, err
	}
	want, found := spec.Resolve(s.Desired.Site, node)
	a.ui.findings(found)
	if found.HasErrors() {
		return false, fmt.Errorf("the spec of node %s cannot be resolved", name)
	}
	document, err := json.Marshal(want)
	if err != nil {
		return false, err
	}
	return folder.Store(document)
}
