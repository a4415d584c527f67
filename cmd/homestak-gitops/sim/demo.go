package sim

// The demo: a repository, an agent and a simulated host, from the first push to the end. After each chapter it
// checks the host itself, not what this program reports.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/examples"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// DemoOptions configure the demo.
type DemoOptions struct {
	Out   io.Writer
	Stop  <-chan struct{} // closed: the user wants to end it
	Serve bool            // keep everything up after the story, until Stop

	// Page shows the agent until ctx ends, beside the story. Nil: there is none.
	Page func(ctx context.Context, agent *control.Client) error

	// Plan plans what is in a folder, for the hosts of sim.
	Plan func(ctx context.Context, dir, host, secrets string, sim sim.Hosts) (engine.Report, error)
	// Import adds the guests of a host to the site in a folder, and returns its report.
	Import func(ctx context.Context, dir, host, secrets string, sim sim.Hosts) (string, error)
	// Show draws a plan on Out.
	Show  func(*plan.Plan)
	Paint view.Paint
}

const (
	hostName   = "father"               // the host of the example site
	server     = "192.0.2.10:44443"     // of its agent, in the network of the simulation
	poll       = 200 * time.Millisecond // a person watches; an agent at work takes a minute
	driftEvery = time.Second
	taskTime   = 100 * time.Millisecond // how long a task takes on the simulated host
	patience   = 5 * time.Minute        // for anything that a chapter waits for: only a hang takes as long
	every      = 20 * time.Millisecond  // how often it is checked then
)

// secrets are those of the site: the key of a user who logs in to all guests.
const secrets = "ssh_keys:\n  ops@laptop: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKs0yWTTQ3pjiPkvS4Q2CKfWwvVbmQYgxfuGKZJT0cJy ops@laptop\n"

// demo is the story under way. It belongs to one goroutine; the agent and the simulated
// host synchronise by themselves.
type demo struct {
	o         DemoOptions
	origin    string // the repository
	dir       string // the author's checkout of it
	secrets   string // the file with the keys of the site
	data      string // folder of the agent
	author    *source.Author
	world     *World
	history   History
	sim       *pve.Host
	guests    *sim.Guests // what runs inside of its guests
	elsewhere *sim.Guests // what runs on no host of the site
	service   *service.Service
	agent     *agent.Agent // of the service
	receipts  *ledger.Ledger
	unmanaged map[int]pve.Guest // what was on the host before the agent
	chapter   int
	failed    int // checks that did not hold
}

// Run runs the story, and returns an error where a check does not hold.
func (o DemoOptions) Run(ctx context.Context) (err error) {
	began := time.Now()
	work, err := os.MkdirTemp("", "homestak-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	d := &demo{
		o: o, origin: filepath.Join(work, "site.git"), dir: filepath.Join(work, "site"), secrets: filepath.Join(work, "secrets.yaml"),
		data: filepath.Join(work, "agent"), unmanaged: map[int]pve.Guest{},
	}
	if err := d.setUp(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	stop := make(chan struct{})
	go func() { ended <- d.service.Run(ctx, control.NoSocket, stop, nil) }()
	showing, hide := context.WithCancel(ctx)
	shown := make(chan error, 1)
	if o.Page == nil {
		shown <- nil
	} else {
		go func() { shown <- o.Page(showing, service.Client(showing, d.service)) }()
	}
	err = d.story(ctx)
	if err == nil {
		d.printf("\nAll checks passed, in %.1f s.\n", time.Since(began).Seconds())
		if o.Serve {
			err = d.serve(ctx)
		} else {
			d.printf("Try it yourself: homestak-gitops demo --serve, or homestak-gitops init my-site\n")
		}
	}
	hide()
	close(stop)
	err = errors.Join(err, <-shown, <-ended)
	d.elsewhere.Close()
	return errors.Join(err, d.world.Close())
}

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.o.Out, format, args...) }

// setUp makes repository, host and agent.
func (d *demo) setUp() error {
	site, err := fs.Sub(examples.Site, "site")
	if err == nil {
		d.author, err = source.NewAuthor(d.origin, d.dir, site)
	}
	if err != nil {
		return fmt.Errorf("make the repository of the demo: %w", err)
	}
	if err := os.WriteFile(d.secrets, []byte(secrets), 0o600); err != nil {
		return fmt.Errorf("write the secrets of the demo: %w", err)
	}
	hosts := sim.Hosts{}
	d.world, err = NewWorld(WorldOptions{Hosts: hosts, Log: slog.New(slog.DiscardHandler), Version: "demo", Record: d.history.Record})
	if err != nil {
		return err
	}
	d.guests, d.elsewhere = d.world.Guests(), d.world.Guests()
	d.sim = pve.New(pve.Config{Node: hostName, Guests: 3, TaskTime: taskTime, Systems: d.guests, Record: d.history.Record})
	hosts[hostName] = d.sim
	for _, g := range d.sim.Snapshot().Guests {
		d.unmanaged[g.VMID] = g
	}
	cfg := &service.Config{AgentFile: model.AgentFile{Identity: hostName, DataDir: d.data, SecretsFile: d.secrets, Listen: server, DriftEvery: driftEvery, Concurrency: 8}}
	cfg.Repository = &model.AgentRepository{URL: d.origin, Branch: source.AuthorBranch, Poll: poll, Auth: &model.AgentAuth{}}
	cfg.Parent, cfg.API, cfg.Access = &model.AgentParent{}, &model.AgentAPI{}, &model.AgentAccess{}
	if d.service, err = d.world.Agent(cfg); err != nil {
		return err
	}
	d.agent, d.receipts = d.service.Agent, d.service.Ledger
	d.printf(`A simulated Proxmox VE host, %q, with %s.
A repository, %s, and a checkout of it with the example site.
An agent that polls the repository %d times a second. From here on, everything is a push.
`, hostName, diag.Count(len(d.unmanaged), "unmanaged guest"), d.origin, time.Second/poll)
	return nil
}

// story runs the chapters, until one does not hold.
func (d *demo) story(ctx context.Context) error {
	tree := levels{d}
	for _, chapter := range []func(context.Context) error{
		d.create, d.edit, d.drift, d.handwork, d.mistake, d.forbidden, d.accident, d.stranded, d.adoption, lives{d}.life, d.farewell, tree.two, tree.three, tree.upwards, tree.remote,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
		d.checkUnmanaged()
		if d.failed > 0 {
			return fmt.Errorf("the demo stopped: %s failed", diag.Count(d.failed, "check"))
		}
	}
	return nil
}

// serve keeps everything running, and reports the agent's response to pushes.
func (d *demo) serve(ctx context.Context) error {
	manifests, err := fs.Sub(examples.Site, "site/manifests")
	if err == nil {
		err = os.CopyFS(filepath.Join(d.dir, "manifests"), manifests)
	}
	if err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.printf("\nThe manifests come back, for pushes of your own.\n")
	if _, err := d.push(ctx, "Bring the manifests back"); err != nil {
		return err
	}
	d.printf(`In another terminal:

    git clone %[1]s my-site && cd my-site
    ${EDITOR:-vi} manifests/web.hcl
    git commit -a -m "My first change" && git push

Ctrl-C ends it, and removes all of it.

`, d.origin)
	last, _ := d.receipt()
	reported := d.agent.Status().Summary
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			st := d.agent.Status()
			if r, err := d.receipt(); err == nil && r.ID != last.ID {
				last = r
				d.printf("%s: %s\n", view.Short(r.Commit), steps(r))
			}
			if st.State == agent.Idle && st.Summary != reported {
				reported = st.Summary
				d.printf("%s\n", reported)
				d.findings(st)
			}
		case <-d.o.Stop:
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
	d.printf("\n%s\n%s\n\n", line, strings.Repeat("─", len([]rune(line))))
}

// check holds the story against the simulated host.
func (d *demo) check(holds bool, format string, args ...any) {
	sign := "✓"
	if !holds {
		sign = "✗"
		d.failed++
	}
	d.printf("  %s %s\n", sign, fmt.Sprintf(format, args...))
}

// push commits the checkout, pushes it, and waits until the agent is done with it: the
// host is as the commit says, or the commit is refused.
func (d *demo) push(ctx context.Context, message string) (agent.Status, error) {
	id, err := d.author.Push(ctx, message)
	if err != nil {
		return agent.Status{}, err
	}
	subject, _, _ := strings.Cut(message, "\n")
	d.printf("  git push  [%s] %s\n\n", view.Short(id), subject)
	st, err := d.until(ctx, "the agent is done with "+view.Short(id), func(s agent.Status) bool {
		return s.State == agent.Idle && (is(s.Converged, id) || s.Refused != nil && s.Refused.Commit == id)
	})
	if err == nil {
		d.printf("  agent     %s\n\n", st.Summary)
	}
	return st, err
}

func is(c *agent.CommitStatus, id string) bool { return c != nil && c.ID == id }

// until waits until the status of the agent is as wanted.
func (d *demo) until(ctx context.Context, what string, wanted func(agent.Status) bool) (agent.Status, error) {
	limit, ticker := time.NewTimer(patience), time.NewTicker(every)
	defer limit.Stop()
	defer ticker.Stop()
	for {
		st := d.agent.Status()
		if wanted(st) {
			return st, nil
		}
		select {
		case <-ticker.C:
		case <-d.o.Stop:
			return st, engine.ErrInterrupted
		case <-ctx.Done():
			return st, context.Cause(ctx)
		case <-limit.C:
			return st, fmt.Errorf("waited %s until %s; the agent says: %s", patience, what, st.Summary)
		}
	}
}

// hosts are the simulated hosts.
func (d *demo) hosts() sim.Hosts { return d.world.Hosts }

// show draws the plan of what is in the checkout, as the verb plan does before anything is
// pushed.
func (d *demo) show(ctx context.Context) (*plan.Plan, error) {
	r, err := d.o.Plan(ctx, d.dir, hostName, d.secrets, d.hosts())
	if err != nil {
		return nil, err
	}
	d.printf("  homestak-gitops plan\n\n")
	if r.Plan == nil {
		return nil, cmp.Or(r.Err, errors.New("no plan could be made"))
	}
	d.o.Show(r.Plan)
	d.printf("\n")
	return r.Plan, r.Err
}

// rewrite edits a file of the checkout, as its author would, and reports it.
func (d *demo) rewrite(name, before, after string) error {
	d.printf("  edit      %s: %s → %s\n", name, before, after)
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

// managed are the guests on the host that were not there before, by name.
func (d *demo) managed() map[string]pve.Guest {
	out := map[string]pve.Guest{}
	for _, g := range d.sim.Snapshot().Guests {
		if _, unmanaged := d.unmanaged[g.VMID]; !unmanaged {
			out[g.Name()] = g
		}
	}
	return out
}

// checkUnmanaged checks that unmanaged guests are as they were, byte for byte.
func (d *demo) checkUnmanaged() {
	now := map[int]pve.Guest{}
	for _, g := range d.sim.Snapshot().Guests {
		now[g.VMID] = g
	}
	same := true
	for id, g := range d.unmanaged {
		same = same && now[id].Digest == g.Digest && now[id].Running == g.Running
	}
	d.check(same, "unmanaged guests are unchanged")
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

func tagged(g pve.Guest) bool {
	return strings.Contains(g.Config["description"], `"owner":"`+hostName+`"`)
}

func isRunning(g pve.Guest) bool { return g.Running }

func all(guests map[string]pve.Guest, holds func(pve.Guest) bool) bool {
	for _, g := range guests {
		if !holds(g) {
			return false
		}
	}
	return len(guests) > 0
}

func names(guests map[string]pve.Guest) string {
	return strings.Join(slices.Sorted(maps.Keys(guests)), " ")
}
