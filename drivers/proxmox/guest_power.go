package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// shutdownGrace is how much longer than the guest's own time a shutdown may take
// before it counts as hanging: PVE then stops the guest by itself (forceStop).
const shutdownGrace = time.Minute

// power is what a node says of a guest this moment.
type power struct {
	running bool
	qmp     string // what QEMU says of a VM that runs: running, paused, io-error, …
	pid     int    // of its process; 0 where it does not run
	uptime  int    // of its process, in seconds
	managed bool   // by the HA manager
	ha      string // its state there
	at      time.Time
}

// readPowerOf asks the guest's node. It costs a connection (PVE closes it), so only
// steps ask, never a look that finds nothing to do.
func (d worker) readPowerOf(ctx context.Context, at view.GuestRef) (power, error) {
	var doc struct {
		Status string          `json:"status"`
		QMP    string          `json:"qmpstatus"`
		PID    json.RawMessage `json:"pid"`
		Uptime json.RawMessage `json:"uptime"`
		HA     struct {
			Managed json.RawMessage `json:"managed"`
			State   string          `json:"state"`
		} `json:"ha"`
	}
	if err := d.API.Get(ctx, at.Path("status", "current"), &doc); err != nil {
		return power{}, err
	}
	if doc.Status == "" {
		return power{}, &api.NetError{Method: "GET", Path: at.Path("status", "current"), Err: errors.New("the answer holds no status")}
	}
	return power{
		running: doc.Status == "running", qmp: doc.QMP, pid: api.Number(doc.PID), uptime: api.Number(doc.Uptime),
		managed: api.Number(doc.HA.Managed) == 1, ha: doc.HA.State, at: time.Now(),
	}, nil
}

// start starts a guest and waits until it runs; one that runs already is success, one that
// is paused is resumed. Where the HA manager has it, PVE files a request with it in place of
// starting (API2/Qemu.pm, vm_start). Otherwise nothing is read back: a start is refused where
// the guest runs, and its task ends well only when QEMU answered its monitor, or LXC reported
// the container as running (PVE/QemuServer.pm, vm_start_nolock; PVE/LXC.pm, vm_start). So it
// runs then, with a newer start than before.
func (d worker) start(ctx context.Context, at view.GuestRef) error {
	upid, err := d.whenUnlocked(ctx, func() (string, error) { return d.API.Post(ctx, at.Path("status", "start"), nil) })
	switch {
	case err != nil && strings.Contains(err.Error(), "already running"):
		now, lookErr := d.readPowerOf(ctx, at)
		if lookErr == nil && now.qmp == paused {
			return d.unpause(ctx, at)
		}
		return nil
	case err != nil:
		return fmt.Errorf("starting %s: %w", at, err)
	case taskType(upid) == "hastart":
		return d.reached(ctx, at, true, haPatience)
	default:
		return nil
	}
}

// stop shuts a guest down within its own time and stops it hard when that is over:
// PVE does so by forceStop. Where the shutdown itself fails or hangs (no agent, no
// ACPI, a monitor that does not answer), the plug is pulled by a call of its own.
//
// A VM that is down in the middle of a restart is awaited first: for PVE its shutdown
// would be done at once, and the start that follows would undo it.
func (d worker) stop(ctx context.Context, at view.GuestRef, m owner.Tag) error {
	if !at.LXC {
		if now, err := d.readPowerOf(ctx, at); err == nil && !now.running {
			d.rebootsNow(ctx, at)
		}
	}
	limit := time.Duration(m.ShutdownSeconds()) * time.Second
	asked, cancel := context.WithTimeout(ctx, limit+shutdownGrace)
	upid, err := d.whenUnlocked(asked, func() (string, error) {
		return d.API.Post(asked, at.Path("status", "shutdown"), api.Params{"timeout": m.ShutdownSeconds(), "forceStop": true})
	})
	hangs := asked.Err() != nil && ctx.Err() == nil
	cancel()
	task, ended := errors.AsType[*api.TaskError](err)
	switch {
	case err == nil && taskType(upid) == "hastop":
		return d.reached(ctx, at, false, limit+haPatience)
	case err == nil, strings.Contains(err.Error(), at.String()+" not running"): // what PVE says of a container only
		return nil
	case ctx.Err() != nil, !hangs && (!ended || task.Err != nil || task.Class() == api.Busy || task.Class() == api.NotFound):
		return fmt.Errorf("shutting %s down: %w", at, err)
	}
	if now, lookErr := d.readPowerOf(ctx, at); lookErr == nil && !now.running {
		return nil
	}
	return d.pullPlug(ctx, at, upid, err)
}

// pullPlug stops a guest that a shutdown did not end; a shutdown task that still
// hangs holds the guest's lock file, so it is ended first.
func (d worker) pullPlug(ctx context.Context, at view.GuestRef, shutdown string, why error) error {
	if shutdown != "" {
		if _, err := d.API.Delete(ctx, api.Path("nodes", at.Node, "tasks", shutdown), nil); err != nil && api.ClassOf(err) == api.NoLogin {
			return fmt.Errorf("shutting %s down: %w", at, err)
		}
	}
	upid, err := d.whenUnlocked(ctx, func() (string, error) { return d.API.Post(ctx, at.Path("status", "stop"), nil) })
	if err != nil && !strings.Contains(err.Error(), at.String()+" not running") {
		return fmt.Errorf("stopping %s, which its shutdown did not end (%w): %w", at, why, err)
	}
	if taskType(upid) == "hastop" {
		return d.reached(ctx, at, false, haPatience)
	}
	return nil
}

// taskType reads the type of a task from its id; "" if it is none.
func taskType(upid string) string { return api.ParseUPID(upid).Type }
