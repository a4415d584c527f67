package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine/diag"
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
		Long: `Loads the site, resolves what every host shall hold, asks the policies, and reports
everything that is wrong, with file, line and column. It reaches no host and needs
no secrets. Exits 0 if the site is valid and no policy denies it, else 1.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runValidate(c.Context(), a, f) },
	}
	f.read(a, c)
	return c
}

func runValidate(ctx context.Context, a *app, f *siteFlags) error {
	a.ui.document = func(err error) any { return verdict{Findings: exit.Findings(err)} }
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
		all = append(all, exit.Findings(err)...)
	}
	a.ui.findings(all)
	text, valid := s.Verdict(all)
	if valid {
		a.ui.printf("%s\n", text)
	} else {
		a.ui.notef("%s", text)
	}
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
