package main

import (
	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
)

func initVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Create a small site to start with",
		Long: `Writes into DIR (default: the current folder), with a new auth.ownership_key in
secrets.yaml. It never overwrites a file.`,
		Args: ui.TakesArgs(0, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return runInit(a, append(args, ".")[0])
		},
	}
}

func runInit(a *app, dir string) error {
	if err := writeScaffold(dir); err != nil {
		return err
	}
	in := ""
	if dir != "." {
		in = "cd " + dir + "\n  "
	}
	a.ui.Printf(`A small site is in %s. Look at its files, they are short, then:

  %shomestak-gitops validate       is it right?
  homestak-gitops plan --sim     what would happen, on a simulated host
  homestak-gitops apply --sim    make it happen there

For a real host: put its address into hosts/father.hcl and its API token into
secrets.yaml, which git ignores, under api_tokens:

  father: "user@pve!name=secret"

secrets.yaml also has the key that proves which guests are the ones of this site.
Keep a copy of that file.
`, dir, in)
	return nil
}
