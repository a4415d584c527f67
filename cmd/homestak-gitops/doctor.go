package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/view"
)

func doctorVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the hosts of a site can be worked on, and say how to fix what cannot",
		Long: `Checks every host that the site declares, or the one of --host: whether its API
answers and is the right one, whether the token is good and may do what this site
needs, whether nodes, storages, bridges, images and templates are there, and whether
something on the host stands in the way. Each line says what was seen; below it are
why it matters, and how to fix it.

Nothing is changed. With -M it checks only what that manifest needs, which may be a
recipe. Exits 0 if no check failed (there may be warnings), 6 if all that failed is the
login or privileges, else 1.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error {
			ctx, cancel := exit.Limit(ctx, f.Timeout)
			defer cancel()
			return runDoctor(ctx, a, f)
		}),
	}
	f.Reach(a.ui, c)
	return c
}

func runDoctor(ctx context.Context, a *app, f *session.Flags) error {
	a.ui.Document = func(err error) any {
		return doctor.Report{Hosts: []doctor.HostReport{}, Findings: append(diag.List{}, exit.Findings(err)...)}
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
	progress := view.Watch(a.ui.Terminal())
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
	code := exit.Failed
	if doc.Denied() {
		code = exit.Denied
	}
	return exit.With(code, errors.New("not all is well: fix what is marked FAIL, and check again"))
}
