package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Children is the server that the agents of children report to, and get everything from. Its methods are called from
// several goroutines.
type Children interface {
	// Known returns what children know of it now, without identity and token.
	Known() (wire.Parent, error)
	// Parent returns the parent for a child, with a fresh token. Earlier reports are dropped.
	Parent(node, spec string) (wire.Parent, error)
	// Accepts says why a token is not one of this child, nil if it is. The error does not show it.
	Accepts(node, token string) error
	// Forget drops what a child reported.
	Forget(node string)
	// Runs is the version of the program of a child, as it reported; "" if it has not reported, or is silent since then.
	Runs(node string) string
	// Program is the program that children run: its SHA-256 in hex and its version, as reports have it. OpenProgram reads it.
	Program() (sum, version string, err error)
	OpenProgram() (io.ReadCloser, error)
}

const (
	// noSpec is in the token of a child without a spec.
	noSpec = "agent"

	defaultUpgrade = 5 * time.Minute
	hearEvery      = 2 * time.Second
	patience       = 5 * time.Second // how long a server that is starting is waited for
	putBack        = 3 * time.Minute // how long an upgrade that failed may take to be taken back
)

// AgentKind is that of the agents of children.
func (c Config) AgentKind() *model.Kind {
	k := agentKind()
	k.Inside = c.agentInside
	return k
}

// agentInside is the agent that is wanted inside of a node, as model.Kind.Inside gives it.
func (c Config) agentInside(of *model.Resource, in model.Scope) (*model.Resource, diag.List) {
	if in.Node.Type != model.PVEType || in.Host == nil || model.TextOf(of.Spec, "power") == "stopped" {
		return nil, nil
	}
	var found diag.List
	later := func(format string, args ...any) (*model.Resource, diag.List) {
		return &model.Resource{Deferred: "not installed, since " + fmt.Sprintf(format, args...)}, found
	}
	declared := in.Site.Specs[in.Node.Spec]
	via := model.ViaSSH
	if declared != nil && declared.Access != nil {
		via = cmp.Or(declared.Access.Via, via)
	}
	if made := lacksPVE(in.Site, of, declared); made != "" {
		f := diag.Finding{
			Severity: diag.Warning, Source: diag.FromSite, At: of.RangeOf(made), Address: of.Addr.String(), Summary: fmt.Sprintf("node %q has no Proxmox VE", in.Name),
			Detail: fmt.Sprintf("Its %s has Debian or Ubuntu. Use an image with Proxmox VE, or give the node a spec with a pve block, which installs it.", made),
		}
		found = append(found, f)
	}
	switch {
	case c.Children == nil && c.Unserved != "":
		return later("%s", c.Unserved)
	case c.Children == nil:
		return later("only the agent of %s installs it, and only while it serves (listen in agent.hcl)", in.Host.Name)
	case via != model.ViaSSH:
		return later("spec %s says via = %q, and the program is sent by SSH: take via out of access of the spec", declared.Name, via)
	case !c.hasKey(in.Host):
		return later("no SSH key to log in with: set key in ssh of host %s", in.Host.Name)
	case c.Runs != nil && !c.Runs(origin(in.Site, of)):
		return later("only guests from images of Debian 12 or 13 have a simulated system")
	case !hasAddress(of):
		return later("no address is known: set ip in the first nic, or agent = true")
	}
	if declared == nil {
		declared = &model.Spec{At: in.Node.At}
	}
	want, _ := spec.Resolve(in.Site, in.Node) // what is wrong with it is found where it is applied
	w := &way{guest: of.Addr, via: via, user: cmp.Or(model.TextOf(of.Spec, "ci_user"), root), near: declared.Gateways(in.Site), agent: hasAgent(of)}
	w.listens(want)
	return &model.Resource{
		Spec: WantedAgent(in.Name), Private: &agentWay{way: w, spec: in.Node.Spec, site: in.Site, parent: in.Host.Name}, At: in.Node.At, Needs: []model.Address{converge.Address(in.Name)}, Reports: true,
	}, found
}

var (
	plainSystem = regexp.MustCompile(`(?i)debian|ubuntu|bookworm|trixie|jammy|noble`)
	proxmoxVE   = regexp.MustCompile(`(?i)pve|proxmox`)
)

// lacksPVE returns the attribute, image or template, by which a node of type pve is made without Proxmox VE, "" if
// it may have it. Only names and addresses show that, so it is reported where they leave no doubt.
func lacksPVE(site *model.Site, of *model.Resource, declared *model.Spec) string {
	if declared != nil && declared.Config != nil && declared.Config.PVE != nil {
		return ""
	}
	_, from, _ := strings.Cut(origin(site, of), " ") // the kind of the node comes first
	switch {
	case !plainSystem.MatchString(from) || proxmoxVE.MatchString(from):
		return ""
	case model.TextOf(of.Spec, "template") != "":
		return "template"
	default:
		return "image"
	}
}

// agentWay says how the machine of a child is entered, and has its spec.
type agentWay struct {
	*way
	spec   string
	site   *model.Site
	parent string // identity of the agent that installs it
}

// wantedAgent returns the desired state of a child's agent.
func (d *Driver) wantedAgent(ctx context.Context, node string) (AgentWant, error) {
	var w AgentWant
	c := d.cfg.Children()
	known, err := d.serving(ctx, c)
	if err != nil {
		return w, err
	}
	sum, version, err := c.Program()
	if err != nil {
		return w, err
	}
	w = AgentWant{
		Identity: node, Server: known.Server, Pins: known.Pins, Program: Program{Sum: sum, System: runtime.GOOS + "-" + runtime.GOARCH, Version: version},
		Accepts: func(token string) error { return c.Accepts(node, token) }, Roles: kind.ChildRoles(),
	}
	return w, nil
}

// serving returns what children know of their parent. The server of an agent that was just started may take a moment.
func (*Driver) serving(ctx context.Context, c Children) (wire.Parent, error) {
	end := time.NewTimer(patience)
	defer end.Stop()
	every := time.NewTicker(patience / 50)
	defer every.Stop()
	for {
		known, err := c.Known()
		if err == nil {
			return known, nil
		}
		select {
		case <-every.C:
		case <-end.C:
			return known, err
		case <-ctx.Done():
			return known, err
		}
	}
}

// observeAgent reads the agent on a machine.
func (d *Driver) observeAgent(ctx context.Context, m guest.Machine, want *model.Resource) (model.Observed, error) {
	w, err := d.wantedAgent(ctx, want.Node)
	if err != nil {
		return model.Observed{}, err
	}
	way := want.Private.(*agentWay)
	why := way.site.KeepsProgram(way.parent, want.Node, w.Program.Version, w.Program.Sum, d.cfg.Children().Runs, time.Now())
	f, err := w.Observe(ctx, m)
	if err != nil {
		return model.Observed{}, err
	}
	out := model.Observed{State: model.State{}}
	if f.want.Keeps = why != ""; f.want.Keeps && f.program != w.Program.Sum && !f.Outdated() {
		out.Findings = diag.List{{
			Severity: diag.Warning, Source: diag.FromHost, Address: want.Addr.String(),
			Summary: want.Addr.String() + " keeps the program that it has: " + why,
		}}
	}
	if w := way; w.spec == "" && f.Recorded() && !d.isWithdrawing(want.Node) {
		out.Findings = append(out.Findings, want.Inside.StaysInside(guest.RecordFile+" of the machine lists it."))
	}
	if !f.None() {
		out.State[want.Addr] = &model.Resource{Addr: want.Addr, Spec: f.Agent(), Node: want.Node}
	}
	return out, nil
}

// isWithdrawing reports whether this pass withdraws the last spec of a node.
func (d *Driver) isWithdrawing(node string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ways[converge.Address(node)] != nil
}

// applyAgent makes the agent on a machine what it has to be. Whatever was cut off before, it goes on.
func (d *Driver) applyAgent(ctx context.Context, m guest.Machine, s plan.Step) error {
	node, report := s.Want.Node, func(text string) { apply.Report(ctx, fmt.Sprintf("%s: %s", s.Address, text)) }
	w, err := d.wantedAgent(ctx, node)
	if err != nil {
		return err
	}
	planned := func(path string) bool {
		return slices.ContainsFunc(s.Changes, func(p plan.Change) bool { return p.Path == path })
	}
	// One that leaves the site keeps its program, too, but is wanted as it was found: see reconnected.
	w.Keeps = s.Action == plan.Update && !planned("program") && s.Want.Spec.(*Agent).Program == ours
	f, err := w.Observe(ctx, m)
	if err != nil {
		return err
	}
	changes := plan.Differences(s.Want.Spec, f.Agent())
	if len(changes) == 0 {
		return nil
	}
	if s.Action == plan.Update { // what is done is what was shown
		for _, c := range changes {
			// The agent is started again in any case.
			if c.Path != "service" && !planned(c.Path) {
				return fmt.Errorf("%s: %s has changed since it was planned: plan again", s.Address, c.Path)
			}
		}
	}
	if err := f.Check(); err != nil {
		return err
	}
	c := d.cfg.Children()
	var refused error
	replace, upgrade := false, false
	if slices.ContainsFunc(changes, func(c plan.Change) bool { return c.Path == "program" || c.Path == "upgrade" }) { // a child that leaves keeps its own
		refused = f.Refused()
		replace, upgrade = f.Outdated() && refused == nil, f.Upgrades() && refused == nil
	}
	if refused != nil && len(changes) == 1 {
		return refused
	}
	if replace {
		report("sending the program")
		if err := d.send(ctx, m, w.Program.Sum); err != nil {
			return err
		}
	}
	var given *wire.Parent
	if !f.Connects() {
		p, err := c.Parent(node, cmp.Or(s.Want.Private.(*agentWay).spec, noSpec))
		if err != nil {
			return err
		}
		given = &p
	}
	report("installing the agent")
	if err := f.Change(ctx, m, given, replace); err != nil {
		return err
	}
	c.Forget(node) // it does not run, so the next report is from what is there now
	report("starting the agent")
	err = StartAgent(ctx, m)
	if !upgrade {
		return errors.Join(err, refused)
	}
	full := true
	if err == nil {
		report("waiting for a report of the new program")
		var within time.Duration
		within, full = d.hearFor(ctx)
		err = hear(ctx, within, func() error {
			switch runs := c.Runs(node); runs {
			case w.Program.Version:
				return nil
			case "":
				return errors.New("it did not report")
			default:
				return fmt.Errorf("it reported version %s", runs)
			}
		})
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, guest.ErrOutcomeLost):
		return err // the next pass goes on
	case err == nil:
		return FinishAgent(ctx, m)
	case !full && !f.Interrupted(): // the next pass has more time, since the program is there
		return fmt.Errorf("version %s of the program was installed on %s, and this step has too little time left to wait for its report: the next pass continues: %w", w.Program.Version, node, err)
	}
	report("restoring the previous program")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBack)
	defer cancel()
	return errors.Join(fmt.Errorf("version %s of the program does not work on %s, so the previous one is restored: %w\njournalctl -u homestak-gitops on %[2]s shows what it logged", w.Program.Version, node, err), f.Back(ctx, m))
}

// send sends the program. It is large, so one machine gets it at a time.
func (d *Driver) send(ctx context.Context, m guest.Machine, sum string) error {
	select {
	case d.sending <- struct{}{}:
		defer func() { <-d.sending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	file, err := d.cfg.Children().OpenProgram()
	if err != nil {
		return err
	}
	program, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("read the program to send it: %w", err)
	}
	return SendProgram(ctx, m, sum, program)
}

// hearFor returns the time that a new program has to report: a step has to have time left to put the old one back. Full
// reports whether that is as long as usual.
func (d *Driver) hearFor(ctx context.Context) (within time.Duration, full bool) {
	within = cmp.Or(d.cfg.Upgrade, defaultUpgrade)
	ends, bounded := ctx.Deadline()
	if left := time.Until(ends) - putBack; bounded && left < within {
		return max(left, 0), false
	}
	return within, true
}

// isInside reports whether an address is of something inside a guest.
func isInside(addr model.Address) bool {
	return addr.Kind == converge.KindName || addr.Kind == kindName
}

// wayOf returns how to reach the guest of a resource inside one; nil for other resources.
func wayOf(r *model.Resource) *way {
	switch w := r.Private.(type) {
	case *way:
		return w
	case *agentWay:
		return w.way
	}
	return nil
}

// otherGuest reports whether a guest that answers is another one.
func otherGuest(err error) bool {
	_, other := errors.AsType[*ssh.HostKeyError](err)
	return other
}
