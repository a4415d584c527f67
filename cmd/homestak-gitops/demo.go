package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source/author"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/examples"
)

func (a *app) demoVerb() *cobra.Command {
	var serve bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Tell the whole story: a repository, pushes, an agent, a simulated host",
		Long: `Makes a repository of the example site and a simulated Proxmox VE host, starts an
agent between them, and then only pushes: what is new is made, what is edited is changed,
what was changed by hand is put back, bad commits are refused, what leaves the site
leaves the host. After every chapter the simulated host itself is checked, not what this
program says about it. It needs no privileges, no network, not even git, and leaves
nothing behind. Exits 0 if all of it held.

With --serve repository, agent and host stay up afterwards, for pushes of your own.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.demo(c.Context(), serve) },
	}
	c.Flags().BoolVar(&serve, "serve", false, "keep all of it up after the story, until Ctrl-C")
	return c
}

const (
	demoHost  = "father"               // the host of the example site
	demoPoll  = 200 * time.Millisecond // a person watches; an agent at work takes a minute
	demoDrift = time.Second
	demoTask  = 100 * time.Millisecond // how long a task takes on the simulated host
	demoWait  = 30 * time.Second       // for anything that a chapter waits for
)

// demo is the story under way. All of it belongs to the goroutine that tells it, but
// for the agent and the simulated host, which keep themselves.
type demo struct {
	app      *app
	bare     string // the repository
	dir      string // the author's checkout of it
	author   *author.Author
	sim      *pvesim.Host
	agent    *agent.Agent
	receipts *ledger.Ledger
	news     mailbox              // what the agent tells of itself
	stranger map[int]pvesim.Guest // what was on the host before us
	chapter  int
	failed   int // checks that did not hold
}

func (a *app) demo(ctx context.Context, serve bool) (err error) {
	// One story, one stream: what the agent says stands between the lines of the tale.
	a.ui.stderr, a.ui.errTerminal = a.ui.stdout, a.ui.outTerminal
	began := time.Now()
	work, err := os.MkdirTemp("", "homestak-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	d := &demo{app: a, bare: filepath.Join(work, "site.git"), dir: filepath.Join(work, "site"), news: make(mailbox, 1), stranger: map[int]pvesim.Guest{}}
	if err := d.set(filepath.Join(work, "agent")); err != nil {
		return err
	}
	ended := make(chan error, 1)
	stop := make(chan struct{})
	go func() { ended <- d.agent.Run(ctx, stop) }()
	err = d.story(ctx)
	if err == nil {
		a.ui.printf("\nAll of it held, in %.1f s.\n", time.Since(began).Seconds())
		if serve {
			err = d.serve(ctx)
		} else {
			a.ui.printf("Now try it yourself: homestak-gitops demo --serve, or homestak-gitops init my-site\n")
		}
	}
	close(stop)
	return errors.Join(err, <-ended)
}

// set makes repository, host and agent.
func (d *demo) set(data string) error {
	site, err := fs.Sub(examples.Site, "site")
	if err == nil {
		d.author, err = author.Begin(d.bare, d.dir, site)
	}
	if err != nil {
		return fmt.Errorf("make the repository of the demo: %w", err)
	}
	d.sim = pvesim.New(pvesim.Config{Node: demoHost, Guests: 3, TaskTime: demoTask})
	for _, g := range d.sim.Snapshot().Guests {
		d.stranger[g.VMID] = g
	}
	cfg := &agentConfig{AgentFile: model.AgentFile{Identity: demoHost, DataDir: data, DriftEvery: demoDrift, Concurrency: 8}}
	cfg.Repository = &model.AgentRepository{URL: d.bare, Branch: author.Branch, Poll: demoPoll, Auth: &model.AgentAuth{}}
	s, err := d.app.assemble(cfg, map[string]*pvesim.Host{demoHost: d.sim}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.notify = d.news.put
	d.agent, d.receipts = s.agent, s.ledger
	d.app.ui.printf(`A simulated Proxmox VE host, %q, with %s of somebody else on it.
A repository, %s, and a checkout of it with the example site.
An agent that looks at the repository %d times a second. From here on there are only pushes.
`, demoHost, view.Count(len(d.stranger), "guest"), d.bare, time.Second/demoPoll)
	return nil
}

// story tells the chapters, until one does not hold.
func (d *demo) story(ctx context.Context) error {
	for _, tell := range []func(context.Context) error{
		d.birth, d.edit, d.drift, d.mistake, d.forbidden, d.accident, d.stranded, d.farewell,
	} {
		if err := tell(ctx); err != nil {
			return err
		}
		d.strangersStay()
		if d.failed > 0 {
			return &ending{exitError, fmt.Errorf("the story broke off: %s did not hold", view.Count(d.failed, "check"))}
		}
	}
	return nil
}

// serve keeps all of it up, and tells what the agent makes of the user's pushes.
func (d *demo) serve(ctx context.Context) error {
	manifests, err := fs.Sub(examples.Site, "site/manifests")
	if err == nil {
		err = os.CopyFS(filepath.Join(d.dir, "manifests"), manifests)
	}
	if err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.app.ui.printf("\nThe manifests come back, for pushes of your own.\n")
	if _, err := d.push(ctx, "Bring the manifests back"); err != nil {
		return err
	}
	d.app.ui.printf(`In another terminal:

    git clone %[1]s my-site && cd my-site
    ${EDITOR:-vi} manifests/web.hcl
    git commit -a -m "My first change" && git push

Ctrl-C ends it, and removes all of it.

`, d.bare)
	last, _ := d.receipt()
	reported := d.agent.Status().Summary
	for {
		select {
		case st := <-d.news:
			if r, err := d.receipt(); err == nil && r.ID != last.ID {
				last = r
				d.app.ui.printf("%s: %s\n", view.Short(r.Commit), steps(r))
			}
			if st.State == agent.Idle && st.Summary != reported {
				reported = st.Summary
				d.app.ui.printf("%s\n", reported)
				d.findings(st)
			}
		case <-d.app.stopping.once:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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

// push commits the checkout, pushes it, and waits until the agent is done with it: the
// host is as the commit says, or the commit is refused.
func (d *demo) push(ctx context.Context, message string) (agent.Status, error) {
	id, err := d.author.Push(ctx, message)
	if err != nil {
		return agent.Status{}, err
	}
	subject, _, _ := strings.Cut(message, "\n")
	d.app.ui.printf("  git push  [%s] %s\n\n", view.Short(id), subject)
	st, err := d.until(ctx, "the agent is done with "+view.Short(id), func(s agent.Status) bool {
		return s.State == agent.Idle && (is(s.Converged, id) || s.Refused != nil && s.Refused.Commit == id)
	})
	if err == nil {
		d.app.ui.printf("  agent     %s\n\n", st.Summary)
	}
	return st, err
}

func is(c *agent.CommitStatus, id string) bool { return c != nil && c.ID == id }

// until waits until what the agent tells of itself is as wanted.
func (d *demo) until(ctx context.Context, what string, wanted func(agent.Status) bool) (agent.Status, error) {
	limit := time.NewTimer(demoWait)
	defer limit.Stop()
	for st := d.agent.Status(); ; {
		if wanted(st) {
			return st, nil
		}
		select {
		case st = <-d.news:
		case <-d.app.stopping.once:
			return st, engine.ErrInterrupted
		case <-ctx.Done():
			return st, context.Cause(ctx)
		case <-limit.C:
			return st, fmt.Errorf("waited %s until %s; the agent says: %s", demoWait, what, st.Summary)
		}
	}
}

// show draws the plan of what lies in the checkout, as the verb plan does before
// anything is pushed.
func (d *demo) show(ctx context.Context) (*plan.Plan, error) {
	s, err := d.app.open(ctx, &siteFlags{dir: d.dir, host: demoHost, sim: true})
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.sims[demoHost] = d.sim
	_, h, err := s.choose()
	if err != nil {
		return nil, err
	}
	d.app.ui.printf("  homestak-gitops plan\n\n")
	r := s.pass(h, h.Name).Run(ctx)
	if r.Plan == nil {
		return nil, cmp.Or(r.Err, errors.New("no plan could be made"))
	}
	d.app.ui.plan(r.Plan)
	d.app.ui.printf("\n")
	return r.Plan, r.Err
}

// rewrite edits a file of the checkout, as its author would, and tells.
func (d *demo) rewrite(name, before, after string) error {
	d.app.ui.printf("  edit      %s: %s → %s\n", name, before, after)
	return d.replace(name, before, after)
}

// replace edits a file of the checkout.
func (d *demo) replace(name, before, after string) error {
	file := filepath.Join(d.dir, filepath.FromSlash(name))
	text, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(text), before) {
		err = fmt.Errorf("%s does not say %s any more", name, before)
	}
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), before, after, 1)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
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

func isRunning(g pvesim.Guest) bool { return g.Running }

func all(guests map[string]pvesim.Guest, holds func(pvesim.Guest) bool) bool {
	for _, g := range guests {
		if !holds(g) {
			return false
		}
	}
	return len(guests) > 0
}

func names(guests map[string]pvesim.Guest) string {
	return strings.Join(slices.Sorted(maps.Keys(guests)), " ")
}
