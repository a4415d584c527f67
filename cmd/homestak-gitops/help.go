package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
)

// helpVerb replaces cobra's, which succeeds for unknown verbs.
func helpVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show help for a command",
		Long:  `"help exit-codes" explains the exit codes.`,
		RunE: func(c *cobra.Command, args []string) error {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return ui.VerbNames(c.Root()), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// showHelp prints what a verb does, more about it, and its flags. cobra leaves out the first.
func showHelp(c *cobra.Command, _ []string) {
	ui.NameValues(c.Flags())
	about := c.Short + "."
	if c.Long != "" {
		about += "\n\n" + c.Long
	}
	fmt.Fprintf(c.OutOrStdout(), "%s\n\n%s", about, c.UsageString())
}

// exitCodesTopic is the topic "help exit-codes": a command that cannot be run.
func exitCodesTopic() *cobra.Command {
	topic := &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean"}
	topic.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintln(c.OutOrStdout(), "Exit codes:")
		ui.WriteExitCodes(c.OutOrStdout())
	})
	return topic
}
