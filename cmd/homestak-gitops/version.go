package main

import (
	"runtime"

	"github.com/spf13/cobra"
)

func versionVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runVersion(a) },
	}
	a.ui.JSONFlag(c)
	return c
}

func runVersion(a *app) error {
	b := thisBuild()
	if a.ui.JSON {
		return a.ui.Emit(b)
	}
	a.ui.Printf("homestak-gitops %s\n", b.Version)
	if b.Commit != "" {
		a.ui.Printf("commit %s\n", b.Commit)
	}
	a.ui.Printf("%s %s/%s\n", b.Go, runtime.GOOS, runtime.GOARCH)
	return nil
}
