package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/examples"
)

func (a *app) demoVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Tell the whole story on a simulated host",
		Long: `Applies the example site to a simulated Proxmox VE host, changes it, mends what
somebody changed by hand, and removes it all again. After every chapter the
simulated host itself is checked, not what this program says about it. It needs
no privileges, no network, and leaves nothing behind. Exits 0 if all of it held.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.demo(c.Context()) },
	}
}

// demoHost is the host of the example site.
const demoHost = "father"

// demo is the story under way.
type demo struct {
	app      *app
	dir      string // the site, a copy that is edited
	sim      *pvesim.Host
	stranger map[int]pvesim.Guest // what was on the host before us
	chapter  int
	failed   int // checks that did not hold
	grant    int // so many deletions are allowed
}

func (a *app) demo(ctx context.Context) error {
	// One story, one stream: progress between the lines of the tale.
	a.ui.stderr, a.ui.errTerminal = a.ui.stdout, a.ui.outTerminal
	began := time.Now()
	dir, err := os.MkdirTemp("", "homestak-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the site: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	site, err := fs.Sub(examples.Site, "site")
	if err == nil {
		err = os.CopyFS(dir, site)
	}
	if err != nil {
		return fmt.Errorf("unpack the example site: %w", err)
	}
	d := &demo{app: a, dir: dir, stranger: map[int]pvesim.Guest{}}
	d.sim = pvesim.New(pvesim.Config{Node: demoHost, Guests: 3, TaskTime: 150 * time.Millisecond})
	for _, g := range d.sim.Snapshot().Guests {
		d.stranger[g.VMID] = g
	}
	a.ui.printf("A simulated Proxmox VE host, %q, with %s of somebody else on it, and the\nexample site, which the host knows nothing of yet.\n", demoHost, count(len(d.stranger), "guest"))
	for _, tell := range []func(context.Context) error{d.birth, d.edit, d.drift, d.farewell} {
		if err := tell(ctx); err != nil {
			return err
		}
		d.strangersStay()
		if d.failed > 0 {
			return &ending{exitError, fmt.Errorf("the story broke off: %s did not hold", count(d.failed, "check"))}
		}
	}
	a.ui.printf("\nAll of it held, in %.1f s. Now try it yourself: homestak-gitops init my-site\n", time.Since(began).Seconds())
	return nil
}

// title begins a chapter.
func (d *demo) title(text string) {
	d.chapter++
	line := fmt.Sprintf("%d. %s", d.chapter, text)
	d.app.ui.printf("\n%s\n%s\n\n", line, strings.Repeat("─", len([]rune(line))))
}

// check holds the story against the simulated host.
func (d *demo) check(holds bool, format string, args ...any) {
	sign := "✓"
	if !holds {
		sign = "✗"
		d.failed++
	}
	d.app.ui.printf("  %s %s\n", sign, fmt.Sprintf(format, args...))
}

// birth: a host becomes what the site says.
func (d *demo) birth(ctx context.Context) error {
	d.title("The site says what shall be, and apply makes it so")
	if _, err := d.apply(ctx); err != nil {
		return err
	}
	ours := d.ours()
	d.check(names(ours) == "db ns-a ns-b web-1 web-2", "on the host: %s", names(ours))
	d.check(all(ours, func(g pvesim.Guest) bool { return g.Running }), "all of them run")
	d.check(all(ours, marked), "each carries its owner mark")
	d.check(d.tasks("download") == 2, "each image was downloaded once")
	return d.again(ctx)
}

// again: what is so already is left alone.
func (d *demo) again(ctx context.Context) error {
	before := d.sim.Snapshot().Writes
	r, err := d.look(ctx)
	if err != nil {
		return err
	}
	d.check(r.Plan.InSync(), "a second plan is empty")
	d.check(d.sim.Snapshot().Writes == before, "and looking wrote nothing")
	return nil
}

// edit: the site changes, and the host follows.
func (d *demo) edit(ctx context.Context) error {
	d.title("Somebody edits the site: a third web server, another tag")
	before := d.ours()
	if err := d.rewrite("site.hcl", "default = 2", "default = 3"); err != nil {
		return err
	}
	if err := d.rewrite("manifests/web.hcl", `["web"]`, `["web", "public"]`); err != nil {
		return err
	}
	r, err := d.apply(ctx)
	if err != nil {
		return err
	}
	d.check(steps(r) == "create vm.web-3, update vm.web-1, update vm.web-2", "the plan held just that: %s", steps(r))
	ours := d.ours()
	d.check(names(ours) == "db ns-a ns-b web-1 web-2 web-3", "on the host: %s", names(ours))
	d.check(strings.Contains(ours["web-1"].Config["tags"], "public"), "web-1 has the tags %s", ours["web-1"].Config["tags"])
	d.check(ours["web-1"].VMID == before["web-1"].VMID && ours["web-1"].Running, "web-1 is the same guest as before, and ran on")
	d.check(ours["db"].Digest == before["db"].Digest, "db was not touched")
	return d.again(ctx)
}

// drift: somebody changes the host by hand, and it is put back.
func (d *demo) drift(ctx context.Context) error {
	d.title("Somebody works on the host by hand: web-2 is gone, ns-a is off, db renamed")
	before := d.ours()
	d.sim.Edit(func(e *pvesim.Edit) {
		e.Delete(before["web-2"].VMID)
		e.Stop(before["ns-a"].VMID)
		e.Set(before["db"].VMID, "name", "database")
	})
	r, err := d.apply(ctx)
	if err != nil {
		return err
	}
	d.check(steps(r) == "create vm.web-2, update vm.db, update vm.ns-a", "found within one look: %s", steps(r))
	ours := d.ours()
	d.check(names(ours) == "db ns-a ns-b web-1 web-2 web-3", "on the host: %s", names(ours))
	d.check(all(ours, func(g pvesim.Guest) bool { return g.Running }), "all of them run")
	return d.again(ctx)
}

// farewell: what leaves the site leaves the host.
func (d *demo) farewell(ctx context.Context) error {
	d.title("The manifests are deleted from the site")
	if err := os.RemoveAll(filepath.Join(d.dir, "manifests")); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	r, err := d.look(ctx)
	if err != nil {
		return err
	}
	d.check(r.Denied && r.Outcome == engine.Refused, "a guard refuses to remove so many guests at once")
	d.grant = len(d.ours())
	d.app.ui.printf("\n  Said again with --allow-deletes %d:\n\n", d.grant)
	if _, err := d.apply(ctx); err != nil {
		return err
	}
	ours := d.ours()
	disks := 0
	for _, list := range d.sim.Snapshot().Volumes {
		for _, v := range list {
			if _, stranger := d.stranger[v.VMID]; v.VMID != 0 && !stranger {
				disks++
			}
		}
	}
	d.check(len(ours) == 0 && disks == 0, "nothing of ours is left: %s, %s", count(len(ours), "guest"), count(disks, "disk"))
	return d.again(ctx)
}

// strangersStay: what is not ours is as it was, byte for byte.
func (d *demo) strangersStay() {
	now := map[int]pvesim.Guest{}
	for _, g := range d.sim.Snapshot().Guests {
		now[g.VMID] = g
	}
	same := true
	for id, g := range d.stranger {
		same = same && now[id].Digest == g.Digest && now[id].Running == g.Running
	}
	d.check(same, "somebody else's guests are as they were")
}

// apply plans the site as it is now, shows the plan and carries it out.
func (d *demo) apply(ctx context.Context) (engine.Report, error) {
	progress := d.app.ui.watch()
	r, err := d.pass(ctx, func(p *engine.Pass) {
		p.Notify = progress.notify
		p.Verdict = func(_ context.Context, made *plan.Plan) (bool, error) {
			d.app.ui.plan(made)
			return true, nil
		}
	})
	progress.close()
	if err != nil {
		return r, err
	}
	if end := endingOf(r); end != nil {
		return r, end
	}
	d.app.ui.printf("\n")
	return r, nil
}

// look plans, and does nothing.
func (d *demo) look(ctx context.Context) (engine.Report, error) {
	r, err := d.pass(ctx, func(*engine.Pass) {})
	return r, errors.Join(err, r.Err)
}

// pass loads the site anew and makes a pass over the simulated host.
func (d *demo) pass(ctx context.Context, with func(*engine.Pass)) (engine.Report, error) {
	s, err := d.app.open(ctx, &siteFlags{dir: d.dir, host: demoHost, sim: true})
	if err != nil {
		return engine.Report{}, err
	}
	defer s.close()
	s.sims[demoHost] = d.sim
	_, h, err := s.choose()
	if err != nil {
		return engine.Report{}, err
	}
	p := s.pass(h, h.Name)
	p.Verb, p.AllowDeletes = "apply", d.grant
	with(p)
	return p.Run(ctx), nil
}

// rewrite edits a file of the site, as its author would.
func (d *demo) rewrite(name, before, after string) error {
	file := filepath.Join(d.dir, filepath.FromSlash(name))
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	if !bytes.Contains(text, []byte(before)) {
		return fmt.Errorf("edit the site: %s does not say %s any more", name, before)
	}
	if err := os.WriteFile(file, bytes.Replace(text, []byte(before), []byte(after), 1), 0o644); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.app.ui.printf("  %s: %s → %s\n\n", name, before, after)
	return nil
}

// ours are the guests on the host that were not there before, by name.
func (d *demo) ours() map[string]pvesim.Guest {
	out := map[string]pvesim.Guest{}
	for _, g := range d.sim.Snapshot().Guests {
		if _, stranger := d.stranger[g.VMID]; !stranger {
			out[g.Name()] = g
		}
	}
	return out
}

// tasks counts the tasks of a type that the host has run.
func (d *demo) tasks(kind string) int {
	n := 0
	for _, t := range d.sim.Snapshot().Tasks {
		if t.Type == kind {
			n++
		}
	}
	return n
}

func marked(g pvesim.Guest) bool {
	return strings.Contains(g.Config["description"], `"owner":"`+demoHost+`"`)
}

func all(guests map[string]pvesim.Guest, holds func(pvesim.Guest) bool) bool {
	for _, g := range guests {
		if !holds(g) {
			return false
		}
	}
	return len(guests) > 0
}

func names(guests map[string]pvesim.Guest) string {
	out := make([]string, 0, len(guests))
	for name := range guests {
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// steps names what a plan did, sorted.
func steps(r engine.Report) string {
	var out []string
	for _, res := range r.Results {
		out = append(out, fmt.Sprintf("%s %s", res.Step.Action, res.Step.Address))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
