package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/view"
)

// checkup is the document of doctor --json.
type checkup struct {
	Success  bool      `json:"success"` // no check failed
	Site     string    `json:"site"`
	Hosts    []checked `json:"hosts"`
	Findings diag.List `json:"findings"`
}

// checked is one host of a checkup.
type checked struct {
	Host   string         `json:"host"`
	API    string         `json:"api"`
	Checks []doctor.Check `json:"checks"`
}

func doctorVerb(a *app) *cobra.Command {
	f := &siteFlags{}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the hosts of a site can be worked on, and say how to mend what cannot",
		Long: `Looks at every host that the site declares, or at the one of --host: whether its API
answers and is the right one, whether the token is good and may do what this site
needs, whether nodes, storages, bridges, images and templates are there, and whether
something on the host stands in the way. Each line says what was seen; below it stands
why it matters, and what mends it.

Nothing is changed. With -M it looks only at what that manifest needs, which may be a
recipe. Exits 0 if no check failed (there may be warnings), 6 if all that failed is the
login or privileges, else 1.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := exit.Limit(c.Context(), f.timeout)
			defer cancel()
			ctx, over := a.stopping.soon(ctx) // there is nothing to finish
			defer over()
			return runDoctor(ctx, a, f)
		},
	}
	f.reach(a, c)
	return c
}

func runDoctor(ctx context.Context, a *app, f *siteFlags) error {
	a.ui.document = func(err error) any { return checkup{Hosts: []checked{}, Findings: append(diag.List{}, found(err)...)} }
	s, err := a.open(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.CheckLoaded(); err != nil {
		return err
	}
	site, hosts, err := s.patients()
	if err != nil {
		return err
	}
	a.ui.findings(s.Desired.Findings)
	doc := checkup{Success: true, Site: site.Name, Hosts: []checked{}, Findings: append(diag.List{}, s.Desired.Findings...)}
	progress := view.Watch(a.ui.terminal())
	defer progress.Close()
	for _, h := range hosts {
		want, l := site.Want(h.Name) // a recipe is resolved here for the first time
		if err := s.CheckFindings(l); err != nil {
			return err
		}
		d := doctor.Doctor{Config: s.access("").Proxmox(site, h), Want: want, Of: site, Tell: func(check string) {
			progress.Waits("looking at host " + h.Name + ": " + check)
		}}
		done := checked{Host: h.Name, API: h.API, Checks: d.Examine(ctx)}
		progress.Waits("")
		doc.Hosts = append(doc.Hosts, done)
		doc.Success = doc.Success && done.count(doctor.Failed) == 0 && ctx.Err() == nil
		if !a.ui.json {
			a.ui.examined(done)
		}
	}
	if a.ui.json {
		if err := a.ui.emit(doc); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return doc.ending()
}

// patients are the hosts to look at, and the site as they are to hold it.
func (s *session) patients() (*model.Site, []*model.Host, error) {
	site := s.Desired.Site
	m, err := s.Manifest(s.flags.manifest)
	if err != nil {
		return nil, nil, err
	}
	if m == nil && s.flags.host == "" && len(site.Hosts) > 0 {
		var all []*model.Host
		for _, name := range slices.Sorted(maps.Keys(site.Hosts)) {
			all = append(all, site.Hosts[name])
		}
		return site, all, nil
	}
	h, err := s.Host(s.flags.host, m)
	if err == nil && m != nil {
		site, err = site.Bind(m.Name, h.Name)
	}
	return site, []*model.Host{h}, err
}

func (c checked) count(r doctor.Result) int {
	n := 0
	for _, k := range c.Checks {
		if k.Result == r {
			n++
		}
	}
	return n
}

// alike are the names of the checks from the i-th on that were not made, for one
// and the same reason; of any other check its own name.
func (c checked) alike(i int) []string {
	k := c.Checks[i]
	names := []string{k.Name}
	for _, next := range c.Checks[i+1:] {
		if k.Result != doctor.NotChecked || next.Result != k.Result || next.Seen != k.Seen {
			break
		}
		names = append(names, next.Name)
	}
	return names
}

// ending says how doctor ends: what failed only for want of a login or of
// privileges has a code of its own.
func (d checkup) ending() error {
	if d.Success {
		return nil
	}
	code := exit.Denied
	for _, h := range d.Hosts {
		for _, c := range h.Checks {
			if c.Result == doctor.Failed && !c.Denied {
				code = exit.Failed
			}
		}
	}
	return exit.With(code, errors.New("not all is well: mend what FAIL stands before, and look again"))
}

// examined draws what was found on one host.
func (u *ui) examined(c checked) {
	_, color := u.text()
	u.printf("host %s  %s\n", c.Host, c.API)
	width := 0
	for _, k := range c.Checks {
		width = max(width, len(k.Name))
	}
	for i, k := range c.Checks {
		if i > 0 && k.Result == doctor.NotChecked && c.Checks[i-1].Result == k.Result && c.Checks[i-1].Seen == k.Seen {
			continue // one line is enough for all that hangs on one trouble
		}
		k.Name = strings.Join(c.alike(i), ", ")
		label, paint := word(k.Result)
		label += strings.Repeat(" ", len("not checked")-len(label))
		if color && paint != "" {
			label = paint + label + "\x1b[0m"
		}
		u.printf("  %s  %s%s  %s\n", label, k.Name, strings.Repeat(" ", max(width-len(k.Name), 0)), indented(k.Seen, "      "))
		if k.Why != "" {
			u.printf("      why: %s\n", indented(k.Why, "           "))
		}
		for _, line := range k.Fix {
			u.printf("      fix: %s\n", indented(line, "           "))
		}
	}
	u.printf("%s: %d ok, %s, %d failed, %d not checked\n", c.Host, c.count(doctor.OK),
		view.Count(c.count(doctor.Warning), "warning"), c.count(doctor.Failed), c.count(doctor.NotChecked))
}

// indented keeps the lines of a text, which may be a host's, below one another.
func indented(s, by string) string {
	return strings.ReplaceAll(strings.TrimSpace(view.Printable(s)), "\n", "\n"+by)
}

// word is how a result is shown, and its colour.
func word(r doctor.Result) (label, paint string) {
	switch r {
	case doctor.Failed:
		return "FAIL", "\x1b[31;1m"
	case doctor.Warning:
		return "warning", "\x1b[33m"
	case doctor.OK:
		return "ok", "\x1b[32m"
	default:
		return string(r), ""
	}
}
