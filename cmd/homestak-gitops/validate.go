package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// verdict is the document of validate --json.
type verdict struct {
	Valid    bool      `json:"valid"`
	Findings diag.List `json:"findings"`
}

func validateVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	c := &cobra.Command{
		Use:   "validate",
		Short: "Check a site, and report all errors",
		Long: `Resolves the site for every host, evaluates the policies, and reports file, line and
column of all errors. It contacts no host and needs no secrets.`,
		Args: cobra.NoArgs,
		RunE: f.Within(func(ctx context.Context, _ []string) error { return runValidate(ctx, a, f) }),
	}
	f.Read(a.ui, c)
	return c
}

// withoutOwnershipKey warns about a site that cannot prove its guests. Without its secrets that is not known.
func withoutOwnershipKey(site *model.Site) diag.List {
	if site == nil || site.Secrets == nil || site.Secrets.HasOwnershipKey() {
		return nil
	}
	return diag.List{diag.Warnf(diag.Range{}, "the site has no ownership key",
		"Without it no guest can be verified, so none is removed, replaced or renamed, and \"test\" creates none. A user who may edit the description of a guest can still claim it as a declared node.\n%s", strings.Join(site.Secrets.OwnershipKeyAdvice(), "\n"))}
}

func runValidate(ctx context.Context, a *app, f *session.Flags) error {
	a.ui.Document = func(err error) any { return verdict{Findings: ui.ErrorFindings(err)} }
	s, err := a.sites.Open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	all := slices.Clone(s.Desired.Findings)
	if s.Desired.Site != nil && (f.Manifest != "" || f.Host != "") {
		m, err := s.Manifest(f.Manifest)
		if err == nil && f.Host != "" {
			_, err = s.Host(f.Host, m)
		}
		all = append(all, ui.ErrorFindings(err)...)
	}
	if !all.HasErrors() {
		all = append(all, withoutOwnershipKey(s.Desired.Site)...)
	}
	a.ui.Findings(all)
	text, valid := s.Verdict(all)
	if valid {
		a.ui.Printf("%s\n", text)
	} else {
		a.ui.Notef("%s", text)
	}
	if a.ui.JSON {
		if err := a.ui.Emit(verdict{Valid: valid, Findings: append(diag.List{}, all...)}); err != nil {
			return err
		}
	}
	if !valid {
		return ui.ExitFailed.With(nil)
	}
	return nil
}
