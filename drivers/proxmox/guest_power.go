package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// shutdownGrace is how much longer than the guest's own time a shutdown may take
// before it counts as hanging: PVE then stops the guest by itself (forceStop).
const shutdownGrace = time.Minute

// power is what a node says of a guest this moment.
type power struct {
	running bool
	managed bool   // by the HA manager
	ha      string // its state there
}

// readPowerOf asks the guest's node. It costs a connection (PVE closes it), so only
// steps ask, never a look that finds nothing to do.
func (d *Driver) readPowerOf(ctx context.Context, at place) (power, error) {
	var doc struct {
		Status string `json:"status"`
		HA     struct {
			Managed json.RawMessage `json:"managed"`
			State   string          `json:"state"`
		} `json:"ha"`
	}
	if err := d.c.get(ctx, at.path("status", "current"), &doc); err != nil {
		return power{}, err
	}
	if doc.Status == "" {
		return power{}, &netError{"GET", at.path("status", "current"), errors.New("the answer holds no status")}
	}
	return power{running: doc.Status == "running", managed: number(doc.HA.Managed) == 1, ha: doc.HA.State}, nil
}

// start starts a guest; one that runs already is success. Where the HA manager has
// it, PVE files a request with it in place of starting (API2/Qemu.pm, vm_start), and
// the guest is waited for.
func (d *Driver) start(ctx context.Context, at place) error {
	upid, err := d.c.post(ctx, at.path("status", "start"), nil)
	err = d.settled(ctx, upid, err)
	switch {
	case err != nil && strings.Contains(err.Error(), "already running"):
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
func (d *Driver) stop(ctx context.Context, at place, m mark) error {
	limit := time.Duration(m.down()) * time.Second
	asked, cancel := context.WithTimeout(ctx, limit+shutdownGrace)
	upid, err := d.c.post(asked, at.path("status", "shutdown"), params{"timeout": m.down(), "forceStop": true})
	err = d.settled(asked, upid, err)
	hangs := asked.Err() != nil && ctx.Err() == nil
	cancel()
	task, ended := errors.AsType[*taskError](err)
	switch {
	case err == nil && taskType(upid) == "hastop":
		return d.reached(ctx, at, false, limit+haPatience)
	case err == nil, strings.Contains(err.Error(), at.String()+" not running"): // what PVE says of a container only
		return nil
	case ctx.Err() != nil, !hangs && (!ended || task.Err != nil || task.class() == classBusy || task.class() == classNotFound):
		return fmt.Errorf("shutting %s down: %w", at, err)
	}
	if now, lookErr := d.readPowerOf(ctx, at); lookErr == nil && !now.running {
		return nil
	}
	return d.pullPlug(ctx, at, upid, err)
}

// pullPlug stops a guest that a shutdown did not end; a shutdown task that still
// hangs holds the guest's lock file, so it is ended first.
func (d *Driver) pullPlug(ctx context.Context, at place, shutdown string, why error) error {
	if shutdown != "" {
		if _, err := d.c.remove(ctx, seg("nodes", at.node, "tasks", shutdown), nil); err != nil && classOf(err) == classNoLogin {
			return fmt.Errorf("shutting %s down: %w", at, err)
		}
	}
	upid, err := d.c.post(ctx, at.path("status", "stop"), nil)
	if err = d.settled(ctx, upid, err); err != nil && !strings.Contains(err.Error(), at.String()+" not running") {
		return fmt.Errorf("stopping %s, which its shutdown did not end (%w): %w", at, why, err)
	}
	if taskType(upid) == "hastop" {
		return d.reached(ctx, at, false, haPatience)
	}
	return nil
}

// restart shuts a guest down and starts it, which applies what is pending. PVE does
// it in one task, also under the HA manager, which does not get to see it stopped.
func (d *Driver) restart(ctx context.Context, at place, m mark) error {
	upid, err := d.c.post(ctx, at.path("status", "reboot"), params{"timeout": m.down()})
	err = d.settled(ctx, upid, err)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), fmt.Sprintf("%d not running", at.vmid)): // it was stopped meanwhile, and what is pending waits for a start only; of a container PVE says VM, too (LXC/Status.pm, vm_reboot)
		return d.start(ctx, at)
	case strings.Contains(err.Error(), "powerdown failed"):
		return fmt.Errorf("restarting %s: it did not shut down within %d s, and is not stopped hard: what was written waits for its next full restart; see to its guest agent or ACPI, or give it longer by startup { down }: %w", at, m.down(), err)
	default:
		return fmt.Errorf("restarting %s: %w", at, err)
	}
}

// down is how many seconds a guest gets to shut down.
func (m mark) down() int {
	if m.Destroy != nil && m.Destroy.Down > 0 {
		return m.Destroy.Down
	}
	return 60
}

// taskType reads the type of a task from its id; "" if it is none.
func taskType(upid string) string { return parseUPID(upid).kind }
