// Package complete completes the values of flags from the site that the command line names
// so far. A site that does not load completes nothing, and is not reported: the verb itself
// does that.
package complete

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Load loads the site of a command line; nil if that is not possible.
type Load func() *model.Site

// Host completes the flags host and site.
func Host(c *cobra.Command, load Load) {
	complete(c, "host", load, func(s *model.Site) []string { return s.Identities() })
	Must(c.MarkFlagDirname("site"))
}

// Site completes the flags host, manifest, mode and site.
func Site(c *cobra.Command, load Load) {
	Host(c, load)
	complete(c, "manifest", load, func(s *model.Site) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
			out = append(out, cobra.CompletionWithDesc(name, s.Manifests[name].Description))
		}
		return out
	})
	Must(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"push", "pull"}, cobra.ShellCompDirectiveNoFileComp)))
}

// Targets completes the flag target with the addresses of a host, or of all if that is "".
func Targets(c *cobra.Command, load Load, host *string) {
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

func complete(c *cobra.Command, flag string, load Load, list func(*model.Site) []string) {
	Must(c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		site := load()
		if site == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(site), cobra.ShellCompDirectiveNoFileComp
	}))
}

// Directory completes one argument with the names of folders.
func Directory(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// Must is for registrations that can only fail by a mistake in this program, which every
// test would show.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
