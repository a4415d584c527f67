package main

import (
	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
)

// docsVerb writes what is generated from the program: for packagers and for
// `make docs`, so it is hidden.
func docsVerb() *cobra.Command {
	return &cobra.Command{
		Use:    "docs DIR",
		Short:  "Write man pages and the reference pages into a folder",
		Hidden: true,
		Args:   ui.TakesArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return writeManual(c.Root(), drivers.Kinds(), args[0])
		},
	}
}
