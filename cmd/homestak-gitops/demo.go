package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/demo"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/view"
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
	a.ui.stderr, a.ui.errTerminal = a.ui.stdout, a.ui.outTerminal
	w, color := a.ui.text()
	return demo.Run(ctx, demo.Options{
		Out: w, Stop: a.stopping.once, Serve: serve, Show: a.ui.plan, Paint: view.Paint(color),
		Plan: func(ctx context.Context, dir, host, secrets string, sim simhost.Hosts) (engine.Report, error) {
			net, err := networkOf(sim)
			if err != nil {
				return engine.Report{}, err
			}
			net.close = net.world.Leave // the agent's guests run on
			s, err := a.openOn(ctx, &siteFlags{dir: dir, host: host, secrets: secrets}, net)
			if err != nil {
				return engine.Report{}, err
			}
			defer s.Close()
			_, h, err := s.choose()
			if err != nil {
				return engine.Report{}, err
			}
			return s.pass(h, "").Run(ctx), nil
		},
	})
}
