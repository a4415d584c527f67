package ui

// Completion of flag values from the site on the command line. A site that does not load completes nothing; the
// verb itself reports the error.

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/model"
)

// loadSite loads the site of a command line; nil if that is not possible.
type loadSite func() *model.Site

// CompleteHost completes the flags host and site.
func CompleteHost(c *cobra.Command, load loadSite) {
	complete(c, "host", load, func(s *model.Site) []string { return s.Identities() })
	Must(c.MarkFlagDirname("site"))
}

// CompleteSite completes the flags host, manifest, mode and site.
func CompleteSite(c *cobra.Command, load loadSite) {
	CompleteHost(c, load)
	complete(c, "manifest", load, func(s *model.Site) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
			out = append(out, cobra.CompletionWithDesc(name, s.Manifests[name].Description))
		}
		return out
	})
	Must(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"push", "pull"}, cobra.ShellCompDirectiveNoFileComp)))
}

// CompleteTargets completes the flag target with the addresses of a host, or of all if that is "".
func CompleteTargets(c *cobra.Command, load loadSite, host *string) {
	complete(c, "target", load, func(s *model.Site) []string {
		var out []string
		for _, h := range s.Identities() {
			if *host != "" && *host != h {
				continue
			}
			w, _ := s.Want(h)
			for _, addr := range w.State.Addresses() {
				out = append(out, addr.String())
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	})
}

func complete(c *cobra.Command, flag string, load loadSite, list func(*model.Site) []string) {
	Must(c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		site := load()
		if site == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(site), cobra.ShellCompDirectiveNoFileComp
	}))
}

// Must is for registrations that can only fail by a mistake in this program, which every
// test would show.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
