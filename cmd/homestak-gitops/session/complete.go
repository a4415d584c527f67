package session

// Completion of flag values from the site on the command line. A site that does not load completes nothing; the
// verb itself reports the error.

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/model"
)

// CompleteHost completes the flags host and site.
func (f *Flags) CompleteHost(c *cobra.Command) {
	f.complete(c, "host", func(s *model.Site) []string { return s.Identities() })
	ui.Must(c.MarkFlagDirname("site"))
}

// completeSite completes the flags host, manifest, mode and site.
func (f *Flags) completeSite(c *cobra.Command) {
	f.CompleteHost(c)
	f.complete(c, "manifest", func(s *model.Site) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
			out = append(out, cobra.CompletionWithDesc(name, s.Manifests[name].Description))
		}
		return out
	})
	ui.Must(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"push", "pull"}, cobra.ShellCompDirectiveNoFileComp)))
}

// completeTargets completes the flag target with the addresses of the host, or of all if none is named.
func (f *Flags) completeTargets(c *cobra.Command) {
	f.complete(c, "target", func(s *model.Site) []string {
		var out []string
		for _, h := range s.Identities() {
			if f.Host != "" && f.Host != h {
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

func (f *Flags) complete(c *cobra.Command, flag string, list func(*model.Site) []string) {
	ui.Must(c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		site := f.Peek()
		if site == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(site), cobra.ShellCompDirectiveNoFileComp
	}))
}
