package main

import (
	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
)

// sandboxName is the hidden verb of the processes that evaluate commits.
const sandboxName = "evaluate"

// sandbox evaluates commits in processes of this program.
func sandbox() *site.Sandbox {
	return &site.Sandbox{Command: []string{service.ProgramFile(), "homestak-gitops", sandboxName}}
}

func sandboxVerb() *cobra.Command {
	return &cobra.Command{
		Use:    sandboxName,
		Short:  "Evaluate commits for an agent or a server, which starts this",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return site.RunSandbox(drivers.Kinds(), c.InOrStdin(), c.OutOrStdout())
		},
	}
}
