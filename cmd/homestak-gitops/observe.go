package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/view"
)

func observeVerb(a *app) *cobra.Command {
	f, out := &session.Flags{}, ""
	c := &cobra.Command{
		Use:   "observe",
		Short: "Write the state of a host into a file, for plan --observed and sim --from",
		Long: `The file has nodes, storages with their volumes, the configurations of all guests, pools,
IP sets and the privileges of the token. Secrets of Proxmox VE, passwords, the environment
of containers and the arguments of QEMU are not in it, notes and names are. The token of
an auditor is enough.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error {
			ctx, cancel := ui.LimitTime(ctx, f.Timeout)
			defer cancel()
			return ui.Because(ctx, runObserve(ctx, a, f, out))
		}),
	}
	f.Reach(a.ui, c)
	c.Flags().StringVar(&out, "out", "", "`FILE`: file to write or replace")
	ui.Must(c.MarkFlagRequired("out"))
	return c
}

// observed is the document of the verb.
type observed struct {
	Success    bool                 `json:"success"`
	Host       string               `json:"host"`
	File       string               `json:"file"`
	ObservedAt *time.Time           `json:"observed_at"` // null if there is none
	Guests     int                  `json:"guests"`
	Unread     []observation.Unread `json:"unread"`
	Findings   diag.List            `json:"findings"`
}

func runObserve(ctx context.Context, a *app, f *session.Flags, out string) error {
	a.ui.Document = func(err error) any {
		return observed{Host: f.Host, File: out, Unread: []observation.Unread{}, Findings: ui.ErrorFindings(err)}
	}
	s, _, h, err := a.sites.Reach(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	progress := a.ui.Terminal().Watch()
	progress.Waits(view.Observing(h.Name))
	o, err := s.Access("").Record(ctx, s.Desired.Site, h)
	progress.Close()
	if err != nil {
		return err
	}
	if err := o.WriteFile(out); err != nil {
		return err
	}
	for _, u := range o.Unread {
		a.ui.Notef("not read, and the same request to a twin will fail: %s", u.Why)
	}
	doc := observed{true, h.Name, out, &o.ObservedAt, len(o.Guests), append([]observation.Unread{}, o.Unread...), diag.List{}}
	return a.ui.Show(doc, fmt.Sprintf("%s has host %s with %s and %s.\n", out, h.Name, diag.Count(len(o.Nodes), "node"), diag.Count(len(o.Guests), "guest")))
}
