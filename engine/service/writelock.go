package service

import (
	"context"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
)

// Verb is a verb of the command line that changes a host on which an agent may be at work.
type Verb struct {
	Name string
	Env  func(string) string
	Note func(format string, args ...any) // reports to the user
}

// Lock takes the write lock of a host until release is called: the agent of that host is
// paused, if one runs on this machine, and the lock file keeps every other process away.
// ctx is for the whole time.
func (v Verb) Lock(ctx context.Context, h *model.Host) (release func(), err error) {
	resume := func() {}
	c, err := v.agentOf(ctx, h)
	if err == nil && c != nil {
		resume, err = c.Pause(ctx, v.Name, func(s agent.Status) { v.Note("%s; waiting", view.Busy(h.Name, s)) })
	}
	if err != nil {
		return nil, err
	}
	if c != nil && v.Name == "apply" {
		v.Note("an agent converges host %s: its next pass reverts whatever git does not declare", h.Name)
	}
	dir, err := LockDir(v.Env)
	if err != nil {
		resume()
		return nil, err
	}
	unlock, err := control.Folder(dir).LockHost(h, v.Name)
	if err != nil {
		resume()
		return nil, err
	}
	switch found, err := settle(dir, h); {
	case err != nil:
		v.Note("warning: the receipt of a pass that was cut off was not saved: %v", err)
	case found:
		v.Note("an earlier apply or destroy of host %s was cut off; its receipt says which steps are unknown", h.Name)
	}
	return func() { unlock(); resume() }, nil
}

// settle records a pass by hand over a host that was cut off. The caller has its lock in the folder.
func settle(dir string, h *model.Host) (bool, error) {
	dir = control.Folder(dir).Ledger()
	if !ledger.HasBegun(dir, control.HostFile(h)) {
		return false, nil
	}
	l, err := ledger.Open(dir)
	if err != nil {
		return false, err
	}
	return ledger.Settle(l, control.HostFile(h))
}

// Begin stores what a pass is about to do to a host that is locked: if the process is killed, the next one that locks it writes the
// receipt.
func (v Verb) Begin(h *model.Host, c model.Commit, made *plan.Plan) {
	if len(made.Steps) == 0 {
		return
	}
	var l *ledger.Ledger
	dir, err := LockDir(v.Env)
	if err == nil {
		l, err = ledger.Open(control.Folder(dir).Ledger())
	}
	if err == nil {
		err = ledger.Begin(l, control.HostFile(h), agent.Begun(v.Name, h.Name, "cli:"+control.Whoami(), c, made))
	}
	if err != nil {
		v.Note("warning: a receipt is missing if this process is killed: %v", err)
	}
}

// Record writes the receipt of a pass that changed a host into the ledger of the folder with its lock: for root that of the
// agent, else the user's own.
func (v Verb) Record(h *model.Host, r *engine.Report) {
	receipt, changed := agent.Receipt(r, "cli:"+control.Whoami(), false)
	dir, err := LockDir(v.Env)
	dir = control.Folder(dir).Ledger()
	if r.Plan == nil || !changed && !ledger.HasBegun(dir, control.HostFile(h)) {
		return // a pass that panicked is recorded by the next one
	}
	var l *ledger.Ledger
	if err == nil {
		l, err = ledger.Open(dir)
	}
	if err == nil && changed {
		_, err = l.Write(receipt)
	}
	if err == nil {
		err = ledger.End(l, control.HostFile(h))
	}
	if err != nil {
		v.Note("warning: the receipt was not saved: %v", err)
	}
}

// agentOf finds the agent of a host, nil if none runs on this machine.
func (v Verb) agentOf(ctx context.Context, h *model.Host) (*control.Client, error) {
	cfg, _ := Flags{Asks: true}.ReadConfig(v.Env)
	return cfg.Search().OfHost(ctx, h)
}

// AllowDestroy refuses to destroy a manifest that the agent of the host deploys; see
// control.Client.AllowDestroy.
func (v Verb) AllowDestroy(ctx context.Context, h *model.Host, manifest string, suspend bool) error {
	c, err := v.agentOf(ctx, h)
	if err != nil || c == nil {
		return err
	}
	suspended, err := c.AllowDestroy(ctx, manifest, suspend)
	if suspended {
		v.Note("manifest %s is suspended in the agent of host %s; it makes it again after: homestak-gitops resume -M %s", manifest, h.Name, manifest)
	}
	return err
}
