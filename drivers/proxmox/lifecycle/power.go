// Package lifecycle manages a guest as a whole, apart from its configuration: power (power.go), the seed for its
// first boot (seed.go, nocloud.go), and removal (removal.go).
package lifecycle

// Start, stop and restart of a guest. Each waits for the result: PVE does part of the work in later tasks, and the
// HA manager acts later.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// shutdownGrace is the time beyond the guest's own that a shutdown may take before it counts as hanging: PVE
// then stops the guest (forceStop).
const shutdownGrace = time.Minute

// Guest is a guest of a host that can be started and stopped.
type Guest struct {
	Host *kind.Host
	Ref  api.GuestRef
}

// GuestAt is the guest of a host.
func GuestAt(h *kind.Host, at api.GuestRef) Guest { return Guest{h, at} }

// GuestState is the current state of a guest, from its node.
type GuestState struct {
	Running bool
	QMP     string // what QEMU says of a VM that runs: running, paused, io-error, …
	PID     int    // of its process; 0 where it does not run
	Uptime  int    // of its process, in seconds
	Managed bool   // by the HA manager
	HA      string // its state there
	Read    time.Time
}

// State asks the guest's node. It costs a connection (PVE closes it), so only
// steps ask, never an observation that finds nothing to do.
func (g Guest) State(ctx context.Context) (GuestState, error) {
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
	if err := g.Host.API.Get(ctx, g.Ref.Path("status", "current"), &doc); err != nil {
		return GuestState{}, err
	}
	if doc.Status == "" {
		return GuestState{}, &api.NetError{Method: "GET", Path: g.Ref.Path("status", "current"), Err: errors.New("the answer contains no status")}
	}
	return GuestState{
		Running: doc.Status == "running", QMP: doc.QMP, PID: api.Number(doc.PID), Uptime: api.Number(doc.Uptime),
		Managed: api.Number(doc.HA.Managed) == 1, HA: doc.HA.State, Read: time.Now(),
	}, nil
}

// Start starts a guest and waits until it runs; a running one is success, a paused one is resumed. If the HA
// manager has it, PVE files a request with it instead of starting (API2/Qemu.pm, vm_start). Otherwise nothing is
// read back: a start is refused if the guest runs, and its task succeeds only when QEMU responded on its monitor,
// or LXC reported the container as running (PVE/QemuServer.pm, vm_start_nolock; PVE/LXC.pm, vm_start). So it runs
// then, with a newer start than before.
func (g Guest) Start(ctx context.Context) error {
	upid, err := g.whenUnlocked(ctx, func() (string, error) { return g.Host.API.Post(ctx, g.Ref.Path("status", "start"), nil) })
	switch {
	case err != nil && strings.Contains(err.Error(), "already running"):
		now, stateErr := g.State(ctx)
		if stateErr == nil && now.QMP == Paused {
			return g.Unpause(ctx)
		}
		return nil
	case err != nil:
		return fmt.Errorf("starting %s: %w", g.Ref, err)
	case api.TaskType(upid) == "hastart":
		return g.await(ctx, true, haPatience)
	default:
		return nil
	}
}

// Stop shuts a guest down within its own time (shutdown, in seconds), after which PVE stops it hard (forceStop). If
// the shutdown itself fails or hangs (no agent, no ACPI, a monitor that does not respond), it sends a separate
// stop.
//
// It first waits for a VM that is down in the middle of a restart: for PVE its shutdown would be done at once, and
// the start that follows would undo it.
func (g Guest) Stop(ctx context.Context, shutdown int) error {
	if !g.Ref.LXC {
		if now, err := g.State(ctx); err == nil && !now.Running {
			g.AwaitReboot(ctx)
		}
	}
	limit := time.Duration(shutdown) * time.Second
	asked, cancel := context.WithTimeout(ctx, limit+shutdownGrace)
	upid, err := g.whenUnlocked(asked, func() (string, error) {
		return g.Host.API.Post(asked, g.Ref.Path("status", "shutdown"), api.Params{"timeout": shutdown, "forceStop": true})
	})
	hangs := asked.Err() != nil && ctx.Err() == nil
	cancel()
	task, ended := errors.AsType[*api.TaskError](err)
	switch {
	case err == nil && api.TaskType(upid) == "hastop":
		return g.await(ctx, false, limit+haPatience)
	case err == nil, strings.Contains(err.Error(), g.Ref.String()+" not running"): // what PVE says of a container only
		return nil
	case ctx.Err() != nil, !hangs && (!ended || task.Err != nil || task.Class() == api.Busy || task.Class() == api.NotFound):
		return fmt.Errorf("shutting %s down: %w", g.Ref, err)
	}
	if now, stateErr := g.State(ctx); stateErr == nil && !now.Running {
		return nil
	}
	return g.pullPlug(ctx, upid, err)
}

// pullPlug stops a guest that a shutdown did not end; a shutdown task that still
// hangs has the guest's lock file, so it is ended first.
func (g Guest) pullPlug(ctx context.Context, task string, why error) error {
	if task != "" {
		if _, err := g.Host.API.Delete(ctx, api.Path("nodes", g.Ref.Node, "tasks", task), nil); err != nil && api.ClassOf(err) == api.NoLogin {
			return fmt.Errorf("shutting %s down: %w", g.Ref, err)
		}
	}
	upid, err := g.whenUnlocked(ctx, func() (string, error) { return g.Host.API.Post(ctx, g.Ref.Path("status", "stop"), nil) })
	if err != nil && !strings.Contains(err.Error(), g.Ref.String()+" not running") {
		return fmt.Errorf("stopping %s after its shutdown failed (%w): %w", g.Ref, why, err)
	}
	if api.TaskType(upid) == "hastop" {
		return g.await(ctx, false, haPatience)
	}
	return nil
}
