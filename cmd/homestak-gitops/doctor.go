package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

func doctorVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the hosts of a site are usable, and print fixes",
		Long: `Checks the API and its identity, the token and the privileges that this site needs, nodes,
storages, bridges, images and templates, and anything that blocks a plan. With -M it
checks only what that manifest or recipe needs. It changes nothing.

Exits 0 if no check failed (there may be warnings), 6 if only the login or privileges
failed, otherwise 1.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error {
			ctx, cancel := ui.LimitTime(ctx, f.Timeout)
			defer cancel()
			return runDoctor(ctx, a, f)
		}),
	}
	f.Reach(a.ui, c)
	return c
}

func runDoctor(ctx context.Context, a *app, f *session.Flags) error {
	a.ui.Document = func(err error) any {
		return doctor.Report{Hosts: []doctor.HostReport{}, Findings: append(diag.List{}, ui.ErrorFindings(err)...)}
	}
	s, err := a.sites.Open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.CheckLoaded(); err != nil {
		return err
	}
	site, hosts, err := s.Examined(f.Manifest, f.Host)
	if err != nil {
		return err
	}
	a.ui.Findings(s.Desired.Findings)
	doc := doctor.Report{Success: true, Site: site.Name, Hosts: []doctor.HostReport{}, Findings: append(diag.List{}, s.Desired.Findings...)}
	progress := a.ui.Terminal().Watch()
	defer progress.Close()
	for _, h := range hosts {
		want, found := site.Want(h.Name) // a recipe is resolved here for the first time
		if err := s.CheckFindings(found); err != nil {
			return err
		}
		d := doctor.Doctor{Config: s.Access("").Proxmox(site, h), Want: want, Of: site, Progress: func(check string) {
			progress.Waits("checking host " + h.Name + ": " + check)
		}}
		done := doctor.HostReport{Host: h.Name, API: h.API, Checks: d.Examine(ctx)}
		progress.Waits("")
		doc.Hosts = append(doc.Hosts, done)
		doc.Success = doc.Success && done.Count(doctor.Failed) == 0 && ctx.Err() == nil
		if !a.ui.JSON {
			w, color := a.ui.Text()
			done.Text(w, color)
		}
	}
	reported := agentFindings(ctx, a, site)
	a.ui.Findings(reported)
	doc.Findings = append(doc.Findings, reported...)
	if a.ui.JSON {
		if err := a.ui.Emit(doc); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if doc.Success {
		return nil
	}
	code := ui.ExitFailed
	if doc.Denied() {
		code = ui.ExitDenied
	}
	return code.With(errors.New("some checks failed: fix what is marked FAIL, and run doctor again"))
}

// agentFindings reports the notifiers and outputs of a site that fail for the agent of this machine, if it is one of the site.
func agentFindings(ctx context.Context, a *app, site *model.Site) diag.List {
	if len(site.Notify)+len(site.Outputs) == 0 {
		return nil
	}
	f := &session.AgentFlags{}
	f.Find(a.ui, &cobra.Command{})
	r, err := f.Running(ctx)
	if err != nil || site.Hosts[r.Card.Identity] == nil {
		return nil // there is no agent to ask
	}
	s, err := r.Status(ctx)
	if err != nil {
		return nil
	}
	var out diag.List
	for _, n := range s.Notify {
		if rule := site.Notify[n.Name]; rule != nil && n.Error != "" {
			out = append(out, diag.Warnf(rule.At, "notify "+n.Name+" is failing", "%s. To test it: homestak-gitops notify test %s", n.Error, n.Name))
		}
	}
	for _, o := range s.Outputs {
		if is := site.Outputs[o.Name]; is != nil && o.Error != "" {
			out = append(out, diag.Warnf(is.At, "output "+o.Name+" is not written", "%s", o.Error))
		}
	}
	return out
}
