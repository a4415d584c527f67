package main

import (
	"errors"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// Completion reads the site that the command line names so far. A site that does
// not load completes nothing and says nothing: the verb itself will.

// completeSite makes --host and -M complete from the site.
func completeSite(c *cobra.Command, f *siteFlags) {
	complete(c, "host", f, func(s *model.Site) []string { return slices.Sorted(maps.Keys(s.Hosts)) })
	complete(c, "manifest", f, func(s *model.Site) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
			out = append(out, cobra.CompletionWithDesc(name, s.Manifests[name].Description))
		}
		return out
	})
	must(c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"push", "pull"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.MarkFlagDirname("site"))
}

// completeTargets makes --target complete with the addresses of the chosen host,
// or of all hosts.
func completeTargets(c *cobra.Command, f *siteFlags) {
	complete(c, "target", f, func(s *model.Site) []string {
		var out []string
		for _, h := range slices.Sorted(maps.Keys(s.Hosts)) {
			if f.host != "" && f.host != h {
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

func complete(c *cobra.Command, flag string, f *siteFlags, list func(*model.Site) []string) {
	must(c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		root, err := os.OpenRoot(f.dir)
		vars, verr := f.variables()
		if errors.Join(err, verr) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = root.Close() }()
		site, _ := hcl.Load(root.FS(), hcl.Options{Kinds: drivers.Kinds(), Vars: vars})
		if site == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(site), cobra.ShellCompDirectiveNoFileComp
	}))
}

// must is for registrations that can only fail by a mistake in this program, which
// every test would show.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
