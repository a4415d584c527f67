package trial

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Tree is what a trial of a manifest with children needs in addition to its options: a world in which the host has an
// agent, and so has each child. It is created and destroyed by commits.
type Tree struct {
	Agent   func(cfg *service.Config) (*service.Service, error) // makes the agent of the host
	Running func(identity string) *service.Service              // the agent of a child; nil if none runs
	Address func(node string, vmid int) string                  // of a guest on a PVE node; "" where it is not known

	Files   fs.FS             // of the site
	Secrets *model.Secrets    // nil: none are known
	Mode    string            // of all nodes but those of type pve; "": as the files say
	Vars    map[string]string // values of variables of the site
	Found   diag.List         // in the site
	Paint   view.Paint

	Patience time.Duration // how long nothing may change, while no agent works, before a tree counts as stuck; 0: 45 s
}

// HasChildren reports whether nodes of a manifest live on others.
func HasChildren(m *model.Manifest) bool {
	for _, n := range m.Nodes {
		if len(n.Children) > 0 {
			return true
		}
	}
	return false
}

// growing is a tree under trial.
type growing struct {
	*Trial
	Tree

	dir    string // of all files of the trial
	author *source.Author
	father *service.Service
	commit string               // that is waited for
	tried  bool                 // the manifest is deployed
	since  map[string]time.Time // when a node was seen first
}

// Run tries a manifest with children. The error is that of the first phase that did not pass, with its exit code.
func (tree Tree) Run(ctx context.Context, o Options) (*Trial, error) {
	t := &Trial{o: o, began: time.Now()}
	g := &growing{Trial: t, Tree: tree, since: map[string]time.Time{}}
	t.Report = engine.Report{Verb: "test", Host: o.Host.Name, Outcome: engine.Failed, Began: t.began, Findings: tree.Found}
	for _, n := range o.Manifest.Nodes {
		t.Report.Nodes = append(t.Report.Nodes, engine.Node{Name: n.Name, Status: engine.NodeSkipped})
	}
	err := g.run(ctx)
	t.Report.Seconds = time.Since(t.began).Round(time.Millisecond).Seconds()
	if t.Report.Success = err == nil; t.Report.Success {
		t.Report.Outcome = engine.Done
	}
	return t, err
}

func (g *growing) run(ctx context.Context) (err error) {
	if g.dir, err = os.MkdirTemp("", "homestak-test-"); err != nil {
		return fmt.Errorf("make a folder for the test: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(g.dir)) }()
	end, err := g.plant(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	limited, cancel := ui.LimitTime(ctx, g.o.Timeout)
	defer cancel()
	err = g.phase("create", func() error { return g.create(limited) })
	if err == nil {
		err = g.phase("verify", func() error { return g.verify(limited) })
	}
	cleanup := g.o.Manifest.Settings == nil || g.o.Manifest.Settings.CleanupOnFailure == nil || *g.o.Manifest.Settings.CleanupOnFailure
	if g.o.Keep || !g.tried || err != nil && !cleanup {
		return err
	}
	if derr := g.phase("destroy", func() error { return g.destroy(ctx) }); err == nil {
		err = derr
	}
	return err
}

// plant makes the repository, and starts the agent of the host. The site deploys nothing yet.
func (g *growing) plant(ctx context.Context) (end func() error, err error) {
	empty, data := filepath.Join(g.dir, "empty"), filepath.Join(g.dir, "agent")
	for _, dir := range []string{empty, data} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if g.author, err = source.NewAuthor(g.file("site.git"), g.file("site"), os.DirFS(empty)); err != nil {
		return nil, err
	}
	if err := g.write("", ""); err != nil {
		return nil, err
	}
	cfg := &service.Config{AgentFile: model.AgentFile{Identity: g.o.Host.Name, DataDir: data, Listen: serverOf(g.o.Host), Concurrency: 8, DriftEvery: time.Minute}}
	cfg.Repository = &model.AgentRepository{URL: g.file("site.git"), Branch: source.AuthorBranch, Poll: time.Minute, Auth: &model.AgentAuth{}}
	cfg.Parent, cfg.API, cfg.Access = &model.AgentParent{}, &model.AgentAPI{}, &model.AgentAccess{}
	if g.Secrets != nil {
		text, err := json.Marshal(g.Secrets.Values) // which is YAML, too
		if err != nil {
			return nil, err
		}
		cfg.SecretsFile = g.file("secrets.yaml")
		if err := os.WriteFile(cfg.SecretsFile, text, 0o600); err != nil {
			return nil, err
		}
	}
	if g.father, err = g.Agent(cfg); err != nil {
		return nil, err
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	if g.commit, err = g.author.Push(ctx, "Before the test of "+g.o.Manifest.Name); err != nil {
		return nil, err
	}
	go func() { ended <- g.father.Run(context.WithoutCancel(ctx), control.NoSocket, stop, nil) }()
	return func() error {
		close(stop)
		return <-ended
	}, nil
}

func (g *growing) file(name string) string { return filepath.Join(g.dir, name) }

// serverOf returns the address at which the agent of a host serves its children in the simulated network: at the address of the API, unless each
// machine has one of its own there, as the loopback.
func serverOf(h *model.Host) string {
	at := netip.AddrFrom4([4]byte{192, 0, 2, 253})
	if u, err := url.Parse(h.API); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsGlobalUnicast() {
			at = ip
		}
	}
	return net.JoinHostPort(at.String(), "44443")
}

// write makes the checkout the site, with only this manifest deployed; "" for none. Secrets are not part of it.
func (g *growing) write(manifest, host string) error {
	return fs.WalkDir(g.Files, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(g.file("site"), name), 0o755)
		case !d.Type().IsRegular() || d.Name() == "secrets.yaml":
			return nil
		}
		text, err := fs.ReadFile(g.Files, name)
		if err == nil && filepath.Ext(name) == ".hcl" {
			text, err = hcl.Deployment{Manifest: manifest, Host: host, Mode: g.Mode, Vars: g.Vars}.Rewrite(text, name)
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(g.file("site"), name), text, 0o644)
	})
}

// create deploys the manifest, and waits until the whole tree is there: each node is ready by its own agent. The host converges to
// the site without it first: what is granted for the end of the test counts from a commit that a host converged to.
func (g *growing) create(ctx context.Context) error {
	g.o.Progress.Waits("growing")
	if err := g.until(ctx, func(tree wire.Report) bool { return tree.LastGood == g.commit }); err != nil {
		return err
	}
	if err := g.write(g.o.Manifest.Name, g.o.Host.Name); err != nil {
		return err
	}
	id, err := g.author.Push(ctx, "A test of "+g.o.Manifest.Name)
	if err != nil {
		return err
	}
	g.tried, g.commit, g.Report.Commit = true, id, id
	g.father.Agent.CheckNow()
	err = g.until(ctx, func(tree wire.Report) bool { return g.lacks(tree) == nil })
	tree := g.father.Tree()
	g.note(tree)
	if err == nil {
		g.o.Note("%s", g.Paint.Tree(tree, time.Now()))
	}
	return err
}

const notThere = "is not there"

// lack is the reason why a tree is not complete.
type lack struct {
	node, on string // the node, and where it is
	why      string
}

// lacks says what a tree lacks, nil if it is complete: of all nodes that are not as they must be, the deepest that is there, since
// those that it lives on wait for it.
func (g *growing) lacks(tree wire.Report) *lack {
	on, seen := map[string]string{}, map[string]wire.ReportNode{}
	for _, n := range g.o.Manifest.Nodes {
		on[n.Name] = cmp.Or(n.Parent, g.o.Host.Name)
	}
	for _, n := range tree.Nodes {
		seen[n.Name] = n
	}
	var out *lack
	deepest := -1
	for _, n := range g.o.Manifest.Nodes {
		is, there := seen[n.Name]
		depth, lost := 0, false
		for at := n.Name; on[at] != ""; at = on[at] {
			depth++
			lost = lost || seen[on[at]].Stale
		}
		why := ""
		switch {
		case lost: // what is known of it is of before
		case !there:
			why, depth = notThere, 0
		case is.Parent != on[n.Name]:
			why = fmt.Sprintf("is below %s, not %s", is.Parent, on[n.Name])
		case !is.Ready:
			why = strings.TrimSuffix(fmt.Sprintf("is not ready, in phase %s: %s", is.Phase, is.Error), ": ")
		case n.Type == model.PVEType && is.Commit != g.Report.Commit:
			why = "has not converged to the commit"
		}
		if why != "" && depth > deepest {
			out, deepest = &lack{n.Name, on[n.Name], why}, depth
		}
	}
	if out == nil && tree.LastGood != g.Report.Commit {
		out = &lack{node: g.o.Host.Name, why: "has not converged to the commit"}
	}
	return out
}

// String is for people.
func (l *lack) String() string {
	if l.on == "" {
		return l.node + " " + l.why
	}
	return fmt.Sprintf("%s on %s %s", l.node, l.on, l.why)
}

// verify checks again: the host has nothing left to do, and the tree is as it was.
func (g *growing) verify(ctx context.Context) error {
	ctx, cancel := engine.Until(ctx, g.o.Stop)
	defer cancel()
	g.o.Progress.Waits("verifying")
	pass, err := g.father.Agent.Reconcile(ctx)
	if err != nil {
		return err
	}
	if pass.Outcome != engine.Done {
		return g.failed("", fmt.Sprintf("verify: the pass that verifies it ended %s: %s", pass.Outcome, g.father.Status().Summary))
	}
	if l := g.lacks(g.father.Tree()); l != nil {
		return g.failed(l.node, "verify: "+l.String())
	}
	return nil
}

// destroy takes the manifest out of the site, and waits until all agents have done their part of that. Children that did not get
// so far that they could are let go.
func (g *growing) destroy(ctx context.Context) error {
	g.o.Progress.Waits("destroying")
	began := time.Now()
	if err := g.write("", ""); err != nil {
		return err
	}
	g.o.Stop = nil // clean-up cannot be interrupted
	letGo := g.unable()
	err := g.remove(ctx, began, letGo)
	if left := g.left(); err != nil && len(left) > 0 && !slices.Equal(left, letGo) {
		return errors.Join(err, g.remove(ctx, began, left))
	}
	return err
}

// remove pushes the site without the manifest. The contents of these children are removed with them.
func (g *growing) remove(ctx context.Context, began time.Time, letGo []string) error {
	message := fmt.Sprintf("End of the test\n\nAllow-Deletes: %d", len(g.o.Manifest.Nodes))
	if len(letGo) > 0 {
		message += "\nAllow-Orphans: " + strings.Join(letGo, ", ")
	}
	id, err := g.author.Push(ctx, message)
	if err != nil {
		return err
	}
	g.commit = id
	g.father.Agent.CheckNow()
	return g.until(ctx, func(tree wire.Report) bool {
		left := map[string]bool{}
		for _, n := range tree.Nodes {
			left[n.Name] = true
		}
		for i := range g.Report.Nodes {
			n := &g.Report.Nodes[i]
			if n.Status == engine.NodeCompleted && !left[n.Name] {
				n.Status, n.Seconds = engine.NodeDestroyed, n.Seconds+time.Since(began).Round(time.Millisecond).Seconds()
			}
		}
		return tree.LastGood == id && len(tree.Nodes) == 0
	})
}

// unable lists the children that were never ready: they have no agent to empty them, or never matched the commit,
// so a trailer grants nothing there.
func (g *growing) unable() []string {
	var out []string
	for i, n := range g.o.Manifest.Nodes {
		if n.Type == model.PVEType && g.Report.Nodes[i].Status != engine.NodeCompleted {
			out = append(out, n.Name)
		}
	}
	return out
}

// left lists the children that are still there.
func (g *growing) left() []string {
	var out []string
	for _, n := range g.father.Tree().Nodes {
		if n.Type == model.PVEType {
			out = append(out, n.Name)
		}
	}
	return out
}

const every = 50 * time.Millisecond

// until waits until a tree is as wanted, or nothing changes any more.
func (g *growing) until(ctx context.Context, is func(wire.Report) bool) error {
	ctx, cancel := engine.Until(ctx, g.o.Stop)
	defer cancel()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	was, still := "", stillness{limit: cmp.Or(g.Patience, defaultPatience)}
	for {
		tree := g.father.Tree()
		g.see(tree)
		if is(tree) {
			return nil
		}
		now := fingerprint(tree)
		stands := still.tick(now != was, g.working())
		was = now
		st := g.father.Status()
		switch {
		case st.Refused != nil && st.Refused.Commit == g.commit:
			g.Report.Findings = append(g.Report.Findings, st.Refused.Findings...).Sorted()
			return ui.ExitFailed.With(nil)
		case stands:
			node, why := stuck(g, tree, st)
			return g.failed(node, "nothing has changed for "+still.limit.String()+": "+why)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ui.ExitCode(context.Cause(ctx)).With(context.Cause(ctx))
		}
	}
}

// stuck says what a tree waits for, and the node that this is about: the last real error, if there is one.
func stuck(g *growing, tree wire.Report, st agent.Status) (node, why string) {
	l := g.lacks(tree)
	waits, saw := g.waits()
	switch {
	case saw != "" && (len(tree.Nodes) == 0 || l == nil || l.why == notThere):
		return waits, saw
	case len(tree.Nodes) == 0:
	case g.commit != g.Report.Commit: // it is being removed
		n := tree.Nodes[0]
		return n.Name, strings.TrimSuffix(fmt.Sprintf("%s is still there: %s", n.Name, n.Error), ": ")
	case l != nil:
		return l.node, l.String()
	}
	for _, f := range tree.Findings {
		if f.Severity == diag.Error {
			return "", f.Summary
		}
	}
	return "", st.Summary
}

// waits returns a node that a step of an agent waits for, and what it saw there last; "" if no step waits.
func (g *growing) waits() (node, saw string) {
	for _, s := range g.agents() {
		running := s.Status().Running
		if running == nil {
			continue
		}
		for _, n := range running.Now {
			if n.Waits != "" {
				_, name, _ := strings.Cut(n.Address, ".")
				return name, n.Waits
			}
		}
	}
	return "", ""
}

func fingerprint(tree wire.Report) string {
	var b strings.Builder
	b.WriteString(tree.LastGood)
	for _, n := range tree.Nodes {
		fmt.Fprintf(&b, "\n%s %s %s %v %s", n.Name, n.Commit, n.Phase, n.Ready, n.Error)
	}
	return b.String()
}

// see notes when nodes come, and when they are ready.
func (g *growing) see(tree wire.Report) {
	for _, n := range tree.Nodes {
		if g.since[n.Name].IsZero() {
			g.since[n.Name] = time.Now()
		}
		for i := range g.Report.Nodes {
			r := &g.Report.Nodes[i]
			if r.Name == n.Name && n.Ready && r.Status == engine.NodeSkipped {
				r.Status, r.Seconds = engine.NodeCompleted, time.Since(g.since[n.Name]).Round(time.Millisecond).Seconds()
			}
		}
	}
}

// note takes into the report what agents know of their nodes.
func (g *growing) note(tree wire.Report) {
	seen := map[string]wire.ReportNode{}
	for _, n := range tree.Nodes {
		seen[n.Name] = n
	}
	of := map[string]engine.NodeStatus{}
	for _, s := range g.agents() {
		for _, n := range s.Status().Nodes {
			of[n.Node] = n
		}
	}
	for i := range g.Report.Nodes {
		n := &g.Report.Nodes[i]
		n.VMID = of[n.Name].VMID
		is, there := seen[n.Name]
		if there {
			n.Error = is.Error
		}
		if there && n.Status != engine.NodeCompleted {
			n.Status, n.Error = engine.NodeFailed, cmp.Or(n.Error, "what is on it is not ready")
		}
		if n.VMID != 0 {
			n.IP = g.Address(of[n.Name].PVENode, n.VMID)
		}
	}
}

// agents are all of the tree that run.
func (g *growing) agents() []*service.Service {
	all := []*service.Service{g.father}
	for _, n := range g.o.Manifest.Nodes {
		if s := g.Running(n.Name); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// failed ends a phase with a finding, about a node if it has a name.
func (g *growing) failed(node, why string) error {
	f := diag.Finding{Severity: diag.Error, Source: diag.FromGuard, Summary: why}
	for i, n := range g.o.Manifest.Nodes {
		if n.Name != node {
			continue
		}
		f.Address, f.At = n.Resource.Addr.String(), n.At
		if r := &g.Report.Nodes[i]; r.Status == engine.NodeSkipped {
			r.Status, r.Error = engine.NodeFailed, why
		}
	}
	g.Report.Findings = append(g.Report.Findings, f)
	return ui.ExitFailed.With(nil)
}
