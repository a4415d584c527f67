package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func applyVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	var targets []string
	c := &cobra.Command{
		Use:   "apply [PLANFILE]",
		Short: "Make a host match the site",
		Long: `Makes a plan, shows it, asks for confirmation, and applies it. A file from "plan --out" is
applied exactly, or refused if the site or the host has changed since.

Press Ctrl-C once to finish the running steps and start no new ones, twice to exit
immediately.`,
		Args: ui.TakesArgs(0, 1),
		RunE: f.Within(func(ctx context.Context, args []string) error { return runApply(ctx, a, f, f.Scope(targets), args) }),
	}
	f.Change(a.ui, c)
	f.Grant(c)
	f.Target(c, &targets)
	return c
}

func runApply(ctx context.Context, a *app, f *session.Flags, sc plan.Scope, args []string) error {
	a.ui.Document = a.sites.FailedReport("apply")
	var kept *plan.Plan
	if len(args) > 0 {
		if f.Manifest != "" || len(sc.Targets) > 0 || sc.AllowDeletes > 0 || len(sc.AllowOrphans) > 0 {
			return errors.New("a plan file has its own scope and permissions: omit -M, --target, --allow-deletes and --allow-orphans")
		}
		doc, err := plan.ReadFile(args[0])
		if err != nil {
			return err
		}
		if f.Host != "" && f.Host != doc.Plan.Host {
			return fmt.Errorf("the plan in %s is for host %s, not for %s", args[0], doc.Plan.Host, f.Host)
		}
		kept, sc, f.Host = doc.Plan, doc.Scope, doc.Plan.Host
		f.Manifest = sc.Manifest
	}
	s, h, err := a.sites.ReachDeployed(ctx, f, "apply")
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.PassOver(h, sc)
	if err != nil {
		return err
	}
	p.Verb = "apply"
	return s.CarryOut(ctx, h, p, session.Change{Kept: kept})
}
