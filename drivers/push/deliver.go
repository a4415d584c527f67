package push

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A container has no cloud-init that could name its parent. If this program runs on its node, it installs the
// program, a unit for the first run, and node.json by pct; from then on it is a node like any other in mode pull.
// Only that delivery is wanted inside: the container applies its spec itself.

// parent serves nodes in mode pull their specs. Its methods may be called from any goroutine.
type parent interface {
	// NodeFile is the content of node.json for a node, with a token of its own. Earlier reports of the node are
	// dropped. Its error has no secret.
	NodeFile(node, spec string) (string, error)
	// HasReported reports whether the node has reported since then.
	HasReported(node string) bool
	// Accepts says why a token is not one of this node, nil if it is. The error does not show it.
	Accepts(node, token string) error
}

// viaDelivery is the way into a container in mode pull: once, by pct.
const viaDelivery = "delivery"

// Paths of delivered files on a node.
const (
	nodeFile     = wire.ParentFile
	nodeProgram  = "/usr/local/bin/homestak-gitops"
	programParts = "/usr/local/bin/.homestak-gitops.homestak-new"
	firstUnit    = "homestak-gitops-firstboot.service"
	firstFile    = "/etc/systemd/system/" + firstUnit
)

// firstText is the unit of the first run. It waits for node.json, is tried until it succeeds, and then removes itself: the
// spec has the timer.
const firstText = `[Unit]
Description=homestak-gitops: apply the spec of this node for the first time
Documentation=https://github.com/homestak/homestak-gitops/blob/main/docs/inside.md
Wants=network-online.target
After=network-online.target nss-lookup.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/bin/sh -c 'until [ -s ` + nodeFile + ` ]; do sleep 1; done; ` + nodeProgram + ` config apply --fetch && { systemctl disable ` + firstUnit + `; rm -f ` + firstFile + `; systemctl daemon-reload; }'
Restart=on-failure
RestartSec=15s
KillMode=mixed
TimeoutStopSec=15min
LimitCORE=0

[Install]
WantedBy=multi-user.target
`

// Delivers reports whether containers of this machine can get to know their parent.
func (c Config) Delivers(ctx context.Context) bool {
	if c.Locally == nil {
		c.Locally = local.New()
	}
	return c.Parent != nil && local.MayEnter(ctx, c.Locally) == nil
}

// pulled returns the desired state inside a node in mode pull: that a container got to know its parent.
func (c Config) pulled(of *model.Resource, in model.Scope) (*model.Resource, diag.List) {
	if of.Addr.Kind != lxc || c.Parent == nil || in.Node.Spec == "" || text(of.Spec, "power") == "stopped" {
		return nil, nil
	}
	want := spec.Empty(in.Node.Name)
	want.Name = in.Node.Spec
	return &model.Resource{Spec: want, Private: &way{guest: of.Addr, via: viaDelivery}, At: in.Node.At}, nil
}

// observeDelivery finds out whether a container got to know its parent: it reported, or it has all that it gets, and its token is not revoked.
// The server forgets the report of a node whose tokens are revoked.
func (d *Driver) observeDelivery(ctx context.Context, want *model.Resource, at model.Guest) (model.Observed, error) {
	none := model.Observed{}
	there := model.Observed{State: model.State{want.Addr: {Addr: want.Addr, Spec: model.Clone(want.Spec), Node: want.Node}}}
	if d.cfg.Parent.HasReported(want.Node) {
		return there, nil
	}
	if err := local.IsHere(ctx, d.cfg.Locally, at.VMID, at.Node, want.Inside.Name); err != nil {
		return none, err
	}
	out, err := local.Container(d.cfg.Locally, at.VMID).Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", `[ -x "$2" ] && [ -f "$1" ] && head -c 65536 -- "$1"`, "sh", nodeFile, nodeProgram}})
	if err != nil || out.Code != 0 {
		return none, err
	}
	if p, err := wire.ReadParent([]byte(out.Out)); err != nil || errors.Is(d.cfg.Parent.Accepts(want.Node, p.Token), wire.ErrReplaced) {
		return none, nil //nolint:nilerr // it gets the file again
	}
	return there, nil
}

// deliver gives a container its parent. An old node.json is removed first, since its token is revoked. The unit
// starts before the new one exists, and waits for it, so an interrupted attempt is either repeated or completes on
// its own.
func (d *Driver) deliver(ctx context.Context, s plan.Step, m guest.Machine) error {
	want := s.Want.Spec.(*spec.Spec)
	if err := local.IsHere(ctx, d.cfg.Locally, s.Inside.VMID, s.Inside.Node, s.Want.Inside.Name); err != nil {
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
	if err := local.Push(ctx, d.cfg.Locally, s.Inside.VMID, program, programParts, "0755"); err != nil {
		return err
	}
	file, err := d.cfg.Parent.NodeFile(want.Node, want.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Address, err)
	}
	return run(ctx, m, guest.Lines(
		"[ -d /run/systemd/system ] || die 'systemd does not run in this container, and a node in mode pull needs its timers: use mode = \"push\"'",
		"chown root:root "+programParts, "sync "+programParts, "mv -fT "+programParts+" "+nodeProgram,
		guest.PutFile(firstFile, firstText, "0644", "root", "root"),
		"rm -f -- "+nodeFile, "systemctl daemon-reload", "systemctl enable -- "+firstUnit+" >/dev/null 2>&1 || die '"+firstUnit+" cannot be enabled'", "systemctl start --no-block -- "+firstUnit,
		"[ -d /etc/homestak-gitops ] || mkdir -m 0755 /etc/homestak-gitops", guest.PutFile(nodeFile, file, "0600", "root", "root")))
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
