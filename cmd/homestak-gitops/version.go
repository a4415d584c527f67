package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what the binary knows of itself.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // with the suffix -dirty if it was built from something else; "" if unknown
	Go      string `json:"go"`
}

func versionVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runVersion(a) },
	}
	a.ui.jsonFlag(c)
	return c
}

func runVersion(a *app) error {
	b := buildOf(debug.ReadBuildInfo())
	if a.ui.json {
		return a.ui.emit(b)
	}
	a.ui.printf("homestak-gitops %s\n", b.Version)
	if b.Commit != "" {
		a.ui.printf("commit %s\n", b.Commit)
	}
	a.ui.printf("%s %s/%s\n", b.Go, runtime.GOOS, runtime.GOARCH)
	return nil
}

// buildOf reads what the go command wrote into the binary.
func buildOf(info *debug.BuildInfo, ok bool) build {
	b := build{Version: "(unknown)", Go: runtime.Version()}
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if b.Commit != "" && dirty {
		b.Commit += "-dirty"
	}
	return b
}
