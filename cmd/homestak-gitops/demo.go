package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/demo"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/engine"
)

func demoVerb(a *app) *cobra.Command {
	var serve bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run the whole story: a repository, pushes, an agent, a simulated host",
		Long: `Makes a repository of the example site and a simulated Proxmox VE host, starts an
agent between them, and then only pushes: what is new is made, what is edited is changed,
what was changed by hand is put back, bad commits are refused, what leaves the site
leaves the host. Then VMs become hosts, each with an agent of its own, down to three levels.
After every chapter the simulated hosts themselves are checked, not what this program says
about them. It needs no privileges, no network, not even git, and leaves
nothing behind. Exits 0 if all of it held.

With --serve repository, agent and host stay up afterwards, for pushes of your own.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDemo(c.Context(), a, serve) },
	}
	c.Flags().BoolVar(&serve, "serve", false, "keep all of it up after the story, until Ctrl-C")
	return c
}

func runDemo(ctx context.Context, a *app, serve bool) error {
	// One story, one stream: what the agent reports is between the lines of the story.
	a.ui.Stderr, a.ui.ErrTerminal = a.ui.Stdout, a.ui.OutTerminal
	w, _ := a.ui.Text()
	return demo.Run(ctx, demo.Options{
		Out: w, Stop: a.stopping.Once, Serve: serve, Show: a.ui.Plan, Paint: a.ui.Paint(),
		Plan: func(ctx context.Context, dir, host, secrets string, sim simhost.Hosts) (engine.Report, error) {
			world, err := worldOf(sim)
			if err != nil {
				return engine.Report{}, err
			}
			net := world.Network()
			net.Close = world.Leave // the agent's guests run on
			s, err := a.sites.OpenOn(ctx, &session.Flags{Dir: dir, Host: host, Secrets: secrets}, net)
			if err != nil {
				return engine.Report{}, err
			}
			defer s.Close()
			_, h, err := s.Choose()
			if err != nil {
				return engine.Report{}, err
			}
			return s.Pass(h, "").Run(ctx), nil
		},
	})
}
