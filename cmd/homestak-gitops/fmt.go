package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/hcl"
)

func fmtVerb(a *app) *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use:   "fmt [DIR]",
		Short: "Rewrite HCL files to the canonical format",
		Long: `Rewrites every *.hcl file of DIR (default: the current folder), and lists those that
changed.`,
		Args: ui.TakesArgs(0, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return runFmt(a, append(args, ".")[0], check)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "write nothing, exit 2 if a file would change")
	return c
}

func runFmt(a *app, dir string, check bool) error {
	files, err := hcl.Files(dir)
	if err != nil {
		return fmt.Errorf("list the files of %s: %w", dir, err)
	}
	if len(files) == 0 && hcl.OfPredecessor(os.DirFS(dir)) {
		return fmt.Errorf("%s contains no *.hcl file, but YAML files of the predecessor\nmake a site of them: homestak-gitops convert %s --out NEW", dir, dir)
	}
	if len(files) == 0 {
		return fmt.Errorf("%s contains no *.hcl file\na site begins with: homestak-gitops init %s", dir, dir)
	}
	changed, found, err := hcl.FormatFiles(files, check)
	for _, name := range changed {
		a.ui.Printf("%s\n", name)
	}
	a.ui.Findings(found)
	switch {
	case err != nil:
		return err
	case found.HasErrors():
		return ui.ExitInvalid.With(nil)
	case check && len(changed) > 0:
		return ui.ExitPending.With(nil)
	default:
		return nil
	}
}
