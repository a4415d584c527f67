package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// ownershipDoc is the document of token ownership --json.
type ownershipDoc struct {
	Host   string            `json:"host"`
	Owners []string          `json:"owners"`
	Auth   map[string]string `json:"auth"` // MAP.OWNER, as in the section auth
}

func tokenOwnershipVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	c := &cobra.Command{
		Use:   "ownership HOST",
		Short: "Print the derived ownership keys of a host",
		Long: `They are derived from auth.ownership_key, for HOST and the hosts nested in it. Put them
into the secrets file of that host's agent in place of ownership_key: the host can then
prove its own guests, and cannot forge those of another host. The keys are secret.

Print them again after the key of the site is replaced, or a node of type pve is added
below this host.`,
		Args: ui.TakesArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return runTokenOwnership(c.Context(), a, f, args[0]) },
	}
	f.Files(a.ui, c)
	return c
}

func runTokenOwnership(ctx context.Context, a *app, f *session.Flags, host string) error {
	s, err := a.sites.Open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.CheckLoaded(); err != nil {
		return err
	}
	site := s.Desired.Site
	if site.Hosts[host] == nil {
		return fmt.Errorf("the site has no host %q: %s", host, diag.DidYouMean(host, slices.Sorted(maps.Keys(site.Hosts))))
	}
	doc := ownershipDoc{Host: host, Owners: site.OwnersFrom(host), Auth: map[string]string{}}
	for _, owner := range doc.Owners {
		if len(site.Secrets.OwnershipKeys(site.Name, owner)) == 0 {
			why := "the site has no ownership key"
			if site.Secrets.HasOwnershipKey() {
				why = "the ownership key of the site is not known here"
			}
			return fmt.Errorf("%s: run this where the secrets have auth.%s", why, model.OwnershipKey)
		}
		maps.Copy(doc.Auth, site.Secrets.DerivedOwnershipKeys(site.Name, owner))
	}
	text := strings.Builder{}
	text.WriteString("auth:\n")
	for _, group := range []string{model.OwnershipKeys, model.PreviousOwnershipKeys} {
		lines := []string{}
		for _, owner := range doc.Owners {
			if key := doc.Auth[group+"."+owner]; key != "" {
				lines = append(lines, fmt.Sprintf("    %q: %q\n", owner, key))
			}
		}
		if len(lines) > 0 {
			fmt.Fprintf(&text, "  %s:\n%s", group, strings.Join(lines, ""))
		}
	}
	return a.ui.Show(doc, text.String())
}
