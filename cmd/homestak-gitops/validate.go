package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// verdict is the document of validate --json.
type verdict struct {
	Valid    bool      `json:"valid"`
	Findings diag.List `json:"findings"`
}

func validateVerb(a *app) *cobra.Command {
	f := &siteFlags{}
	c := &cobra.Command{
		Use:   "validate",
		Short: "Check a site, and report everything that is wrong with it at once",
		Long: `Loads the site, resolves what every host shall hold, asks the policies, and tells
everything that is wrong, with file, line and column. It reaches no host and needs
no secrets. Exits 0 if the site is valid and no policy denies it, else 1.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runValidate(c.Context(), a, f) },
	}
	f.read(a, c)
	return c
}

func runValidate(ctx context.Context, a *app, f *siteFlags) error {
	a.ui.document = func(err error) any { return verdict{Findings: found(err)} }
	s, err := a.open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	all := slices.Clone(s.Desired.Findings)
	if s.Desired.Site != nil && (f.manifest != "" || f.host != "") {
		m, err := s.Manifest(f.manifest)
		if err == nil && f.host != "" {
			_, err = s.Host(f.host, m)
		}
		all = append(all, found(err)...)
	}
	valid := !all.HasErrors() && s.Desired.Site != nil
	a.ui.findings(all)
	a.ui.tellVerdict(s, all, valid)
	if a.ui.json {
		if err := a.ui.emit(verdict{Valid: valid, Findings: append(diag.List{}, all...)}); err != nil {
			return err
		}
	}
	if !valid {
		return &exit.Error{Code: exit.Failed}
	}
	return nil
}

func (u *ui) tellVerdict(s *session, all diag.List, valid bool) {
	errs := all.Errors()
	warnings := view.Count(len(all)-errs, "warning")
	if !valid {
		u.notef("the site in %s is %s: %s, %s", s.Name(), site.Fault(all), view.Count(errs, "error"), warnings)
		return
	}
	loaded := s.Desired.Site
	nodes := 0
	for _, m := range loaded.Manifests {
		nodes += len(m.Nodes)
	}
	if len(all) > 0 {
		warnings = ", " + warnings
	} else {
		warnings = ""
	}
	u.printf("site %s is valid: %s, %s, %s%s\n", loaded.Name,
		view.Count(len(loaded.Hosts), "host"), view.Count(len(loaded.Manifests), "manifest"), view.Count(nodes, "node"), warnings)
}
