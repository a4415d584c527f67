package push

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A node in mode pull has to learn its parent: it needs node.json, the program, and a unit for the first run. The
// creation of a VM sees to that. A VM that was created otherwise, such as one that was in mode push, is entered as its
// spec says, and gets the script of the first boot, which fetches the program. A container has no cloud-init: if this
// program runs on its node, it gets the program by pct. From then on the node applies its spec itself.
//
// The other direction needs no delivery: a push removes the units and node.json, see package aspect. Before that the runs of the
// node are ended, and its tokens are revoked here. A node whose spec is pushed and which takes its commands from its parent
// learns that in the same way, as a part of the push.

// parent serves nodes in mode pull their specs. Its methods may be called from any goroutine.
type parent interface {
	// NodeFile is the content of node.json for a node, with a token of its own. Earlier reports of the node are
	// dropped. Its error has no secret.
	NodeFile(node, spec string) (string, error)
	// HasReported reports whether the node has reported since then.
	HasReported(node string) bool
	// Accepts says why a token is not one of this node, nil if it is. The error does not show it.
	Accepts(node, token string) error
	// Revoke revokes the tokens of a node, and drops what it reported. Revoked reports whether that was done, and the
	// node has used no new one since.
	Revoke(node string) error
	Revoked(node string) bool
}

// Paths of delivered files on a node.
const (
	nodeFile     = wire.ParentFile
	nodeProgram  = "/usr/local/bin/homestak-gitops"
	programParts = "/usr/local/bin/.homestak-gitops.homestak-new"
	firstUnit    = "homestak-gitops-firstboot.service"
	firstFile    = "/etc/systemd/system/" + firstUnit
)

// The commands of the first run. Each removes the unit when it succeeded: the spec has the timer.
const (
	firstApply  = nodeProgram + ` config apply --fetch && { systemctl disable ` + firstUnit + `; rm -f ` + firstFile + `; systemctl daemon-reload; }`
	firstScript = `exec ` + python + ` ` + client.FirstBootScript
	python      = "/usr/bin/python3"
)

// firstText is the unit of the first run. It waits for node.json, and is tried until it succeeds.
func firstText(command string) string {
	return `[Unit]
Description=homestak-gitops: apply the spec of this node for the first time
Documentation=https://github.com/homestak/homestak-gitops/blob/main/docs/inside.md
Wants=network-online.target
After=network-online.target nss-lookup.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/bin/sh -c 'until [ -s ` + nodeFile + ` ]; do sleep 1; done; ` + command + `'
Restart=on-failure
RestartSec=15s
KillMode=mixed
TimeoutStopSec=15min
LimitCORE=0

[Install]
WantedBy=multi-user.target
`
}

// Delivers reports whether containers of this machine can learn their parent.
func (c Config) Delivers(ctx context.Context) bool {
	if c.Locally == nil {
		c.Locally = local.New()
	}
	return c.Parent != nil && mayEnter(ctx, c.Locally) == nil
}

// delivery is the driver as it leads nodes to their parent, and takes them over.
type delivery struct{ *Driver }

// pulled returns the desired state inside a node in mode pull: that it knows its parent.
func (c Config) pulled(of *model.Resource, in model.Scope) (*model.Resource, diag.List) {
	declared := in.Site.Specs[in.Node.Spec]
	if declared == nil || model.TextOf(of.Spec, "power") == "stopped" {
		return nil, nil
	}
	want := spec.Empty(in.Node.Name)
	want.Name = in.Node.Spec
	r := &model.Resource{Spec: want, At: in.Node.At}
	w := wayInto(of, in.Site, declared)
	w.delivers = true
	switch enters := !in.Node.TakesCommands(); {
	case of.Addr.Kind == lxc && c.Parent == nil && !enters:
		return nil, nil
	case of.Addr.Kind == lxc: // it learns its parent by pct
	case w.via == model.ViaExec:
		w.barred = `via = "exec" in access of its spec is for containers`
	case w.via == model.ViaSSH && isByDefault(declared):
		w.barred = c.cannotLogIn(of, in)
	}
	own, _ := spec.Resolve(in.Site, in.Node) // what is wrong with it is found where it is served
	w.listens(own)
	r.Private, r.Inborn = w, of.Addr.Kind != lxc
	return r, nil
}

// observe finds out whether a node knows its parent: it reported, or it has all that it gets, and its token is not revoked.
// The server forgets the report of a node whose tokens are revoked. A node that cannot be entered, or has no server to
// be led to, is left as it is, with a finding.
func (d delivery) observe(ctx context.Context, want *model.Resource, at model.Guest) (model.Observed, error) {
	none, parent, w := model.Observed{}, d.cfg.Parent, d.wayOf(want.Addr)
	there := model.Observed{State: model.State{want.Addr: {Addr: want.Addr, Spec: model.Clone(want.Spec), Node: want.Node}}}
	left := func(why string) (model.Observed, error) {
		out := there
		out.Findings = diag.List{{
			Severity: diag.Warning, Source: diag.FromHost, Address: want.Inside.String(),
			Summary: want.Inside.String() + " was not created in mode pull, and is not led to its parent", Detail: why,
		}}
		return out, nil
	}
	switch {
	case parent != nil && parent.HasReported(want.Node), at.Pulls && (parent == nil || !parent.Revoked(want.Node)):
		return there, nil
	case !at.Running:
		return none, nil // the plan decides whether it starts, and is entered then
	case w.barred != "":
		return left("It cannot be entered: " + w.barred + ".")
	}
	m := d.into(want.Addr, at)
	if m == nil {
		return none, errors.New("no access to the guests of this host is configured")
	}
	if want.Inside.Kind == lxc {
		if err := isHere(ctx, d.cfg.Locally, at.VMID, at.Node, want.Inside.Name); err != nil {
			return none, err
		}
	}
	switch known, err := d.knows(ctx, m, want); {
	case err != nil:
		return none, err
	case known:
		return there, nil
	case parent == nil:
		return left(fmt.Sprintf("The agent of host %s does that, if its agent.hcl has listen: then a later pass of it makes the change.", d.host.Name))
	}
	return none, nil // it gets the file, also again
}

// into is the way by which a node learns its parent: of containers it is pct.
func (d delivery) into(addr model.Address, at model.Guest) guest.Machine {
	if w := d.wayOf(addr); w != nil && w.guest.Kind == lxc {
		return newContainer(d.cfg.Locally, at.VMID)
	}
	return d.Machine(addr, at, nil)
}

// knows reports whether a machine has the program, or gets it, and a token that its parent accepts. Without a parent any token will do.
func (d delivery) knows(ctx context.Context, m guest.Machine, want *model.Resource) (bool, error) {
	has := "[ -x " + nodeProgram + " ]"
	if want.Inside.Kind != lxc {
		has = "{ " + has + " || [ -f " + client.FirstBootScript + " ]; }"
	}
	out, err := m.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", has + ` && [ -f "$1" ] && head -c 65536 -- "$1"`, "sh", nodeFile}})
	if err != nil || out.Code != 0 {
		return false, err
	}
	p, err := wire.ReadParent([]byte(out.Out))
	return err == nil && (d.cfg.Parent == nil || !errors.Is(d.cfg.Parent.Accepts(want.Node, p.Token), wire.ErrReplaced)), nil
}

// apply gives a node its parent. An old node.json is removed first, since its token is revoked. The unit
// starts before the new one exists, and waits for it, so an interrupted attempt is either repeated or completes on
// its own.
func (d delivery) apply(ctx context.Context, s plan.Step, m guest.Machine) error {
	want := s.Want.Spec.(*spec.Spec)
	program, first := []string{
		"[ -x " + python + " ] || die '" + python + " is missing, which fetches the program: install python3 on this machine'",
		"[ -d " + path.Dir(client.FirstBootScript) + " ] || mkdir -m 0755 " + path.Dir(client.FirstBootScript),
		guest.PutFile(client.FirstBootScript, client.FirstBootProgram(), "0700", "root", "root"),
	}, firstScript
	if s.Want.Inside.Kind == lxc {
		if err := d.pushProgram(ctx, s, m); err != nil {
			return err
		}
		program, first = []string{"chown root:root " + programParts, "sync " + programParts, "mv -fT " + programParts + " " + nodeProgram}, firstApply
	}
	file, err := d.cfg.Parent.NodeFile(want.Node, want.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Address, err)
	}
	return run(ctx, m, guest.Lines(
		"[ -d /run/systemd/system ] || die 'systemd does not run on this machine, and a node in mode pull needs its timers: use mode = \"push\"'",
		guest.Lines(program...),
		guest.PutFile(firstFile, firstText(first), "0644", "root", "root"),
		"rm -f -- "+nodeFile, "systemctl daemon-reload", "systemctl enable -- "+firstUnit+" >/dev/null 2>&1 || die '"+firstUnit+" cannot be enabled'", "systemctl start --no-block -- "+firstUnit,
		"[ -d /etc/homestak-gitops ] || mkdir -m 0755 /etc/homestak-gitops", guest.PutFile(nodeFile, file, "0600", "root", "root")))
}

// pushProgram copies the program into a container of this machine.
func (d delivery) pushProgram(ctx context.Context, s plan.Step, m guest.Machine) error {
	if err := isHere(ctx, d.cfg.Locally, s.Inside.VMID, s.Inside.Node, s.Want.Inside.Name); err != nil {
		return err
	}
	program := d.cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("%s: the program of this machine is not found: %w", s.Address, err)
		}
	}
	if err := run(ctx, m, "mkdir -p /usr/local/bin\n"); err != nil {
		return err
	}
	return pushFile(ctx, d.cfg.Locally, s.Inside.VMID, program, programParts, "0755")
}

// follows reports whether a node that is pushed still follows its parent, as far as that knows: it reported.
func (d delivery) follows(r *model.Resource) bool {
	return d.cfg.Parent != nil && r.Inside.Kind != model.PVEType && r.Inside.Kind != model.HostKind && d.cfg.Parent.HasReported(r.Node)
}

// takeOver ends what a node does for its parent, and revokes its tokens, before a push removes the units by which it pulls. A
// node that shall take its commands from its parent gets a new token then.
func (d delivery) takeOver(ctx context.Context, s plan.Step, m guest.Machine) error {
	runs := func(c plan.Change) bool { return c.Path == "run" || strings.HasPrefix(c.Path, "run.") }
	if !d.follows(s.Want) && !slices.ContainsFunc(s.Changes, runs) && (s.Action != plan.Create || !commands(s.Want)) {
		return nil
	}
	if err := run(ctx, m, aspect.EndPull); err != nil {
		return fmt.Errorf("%s: end what it does for its parent: %w", s.Address, err)
	}
	if d.cfg.Parent == nil {
		return nil
	}
	if err := d.cfg.Parent.Revoke(s.Want.Node); err != nil {
		return fmt.Errorf("%s: revoke its token: %w", s.Address, err)
	}
	if !commands(s.Want) {
		return nil
	}
	to := d.into(s.Address, *s.Inside)
	if err := d.apply(ctx, s, to); err != nil {
		return err
	}
	return run(ctx, to, "_n=0; until [ -x "+nodeProgram+" ] || [ $_n -ge 300 ]; do sleep 1; _n=$((_n + 1)); done\n")
}

// commands reports whether a node takes its commands from its parent while its spec is pushed.
func commands(r *model.Resource) bool {
	want, is := r.Spec.(*spec.Spec)
	return is && want.Run != nil && want.Run.Pushed
}

// adjust adds to what was observed of a node that is pushed what its parent knows of it.
func (d delivery) adjust(ctx context.Context, m guest.Machine, want *model.Resource, at model.Guest, is *spec.Spec) error {
	switch {
	case !commands(want):
		if d.follows(want) && is.Run == nil {
			is.Run = &spec.Run{Timer: "as its parent says, which knows its token"}
		}
		return nil
	case d.cfg.Parent == nil: // an agent with a server leads it to its parent
		is.Run = model.Clone(want.Spec).(*spec.Spec).Run
		return nil
	case d.follows(want):
		is.Run = &spec.Run{Timer: "as its parent says, and it applies its spec itself"}
	case is.Run != nil:
		known, err := d.knows(ctx, m, want)
		if err != nil || known {
			return err
		}
		is.Run = &spec.Run{Timer: "without a token that its parent accepts"}
	}
	if want.Inside.Kind == lxc {
		if err := isHere(ctx, d.cfg.Locally, at.VMID, at.Node, want.Inside.Name); err != nil {
			return fmt.Errorf("it cannot be led to its parent: %w, or write run = \"push\" in execution", err)
		}
	}
	return nil
}

// stillPull warns of nodes in mode push that still follow their parent, since they cannot be entered.
func (d delivery) stillPull(w *model.Want, have model.State) (found diag.List) {
	for _, addr := range w.State.Addresses() {
		n, at := w.Nodes[addr], have[addr]
		if n == nil || n.Mode != model.ModePush || n.Spec == "" || at == nil || at.Guest == nil || w.State[converge.Address(n.Name)] != nil {
			continue
		}
		if d.follows(&model.Resource{Inside: addr, Node: n.Name}) {
			found = append(found, diag.Finding{
				Severity: diag.Warning, Source: diag.FromHost, Address: addr.String(), Summary: addr.String() + " still pulls, since it cannot be entered",
				Detail: "It applies its spec itself until a push can take over. The line about spec says what is missing.",
			})
		}
	}
	return found
}

// run runs a script in a machine.
func run(ctx context.Context, m guest.Machine, body string) error {
	out, err := m.Run(ctx, guest.Script("set -e\n"+body))
	switch {
	case err != nil:
		return outcome(err)
	case out.Code != 0 || out.Signal != 0:
		return errors.New(guest.Excerpt(out.Err))
	}
	return nil
}
