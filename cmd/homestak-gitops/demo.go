package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
)

func demoVerb(a *app) *cobra.Command {
	var serve bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run a demonstration on a simulated host",
		Long: `Starts an agent for a simulated Proxmox VE host, and pushes commits to its repository:
guests are created, changed, removed and adopted, drift is reverted, bad commits are
refused, and VMs become hosts with their own agents, down to three levels. Each chapter
ends with a check of the simulated hosts. It needs no privileges, no network and no git
program, and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDemo(c.Context(), a, serve, nil) },
	}
	c.Flags().BoolVar(&serve, "serve", false, "keep repository, agent and host running afterwards, until Ctrl-C")
	return c
}

func runDemo(ctx context.Context, a *app, serve bool, page func(ctx context.Context, agent *control.Client) error) error {
	// One story, one stream: what the agent reports is between the lines of the story.
	a.ui.Stderr, a.ui.ErrTerminal = a.ui.Stdout, a.ui.OutTerminal
	w, _ := a.ui.Text()
	open := func(ctx context.Context, dir, host, secrets string, hosts sim.Hosts) (*session.Session, *model.Host, error) {
		world, err := worldOf(hosts)
		if err != nil {
			return nil, nil, err
		}
		net := world.Network()
		net.Close = world.Leave // the agent's guests run on
		s, err := a.sites.OpenOn(ctx, &session.Flags{Dir: dir, Host: host, Secrets: secrets}, net)
		if err != nil {
			return nil, nil, err
		}
		_, h, err := s.Choose()
		if err != nil {
			s.Close()
		}
		return s, h, err
	}
	return sim.DemoOptions{
		Out: w, Stop: a.stopping.Once, Serve: serve, Page: page, Show: a.ui.Plan, Paint: a.ui.Paint(),
		Plan: func(ctx context.Context, dir, host, secrets string, hosts sim.Hosts) (engine.Report, error) {
			s, h, err := open(ctx, dir, host, secrets, hosts)
			if err != nil {
				return engine.Report{}, err
			}
			defer s.Close()
			return s.Pass(h, "").Run(ctx), nil
		},
		Import: func(ctx context.Context, dir, host, secrets string, hosts sim.Hosts) (string, error) {
			s, h, err := open(ctx, dir, host, secrets, hosts)
			if err != nil {
				return "", err
			}
			defer s.Close()
			f := importFlags{choice: importer.Options{By: "pool"}}
			transport, token := s.Net.Transport(s.Desired.Site, h)
			f.transport = transport
			report, err := f.write(ctx, a, s.Desired.Site, h, token, dir)
			if err != nil {
				return "", err
			}
			var text strings.Builder
			report.Text(&text)
			return text.String(), nil
		},
	}.Run(ctx)
}
