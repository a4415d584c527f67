package qemu

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiSendKey is PUT …/sendkey: keys are ignored.
func apiSendKey(*core.World, *core.Call, *core.Guest) (any, error) { return nil, nil }

// apiMonitor is POST …/monitor: QEMU's own console, of which a few questions are known.
func apiMonitor(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if g.Run == nil {
		return nil, perl.Fail("VM %d not running", g.Vmid)
	}
	switch command := c.In["command"]; command {
	case "info status":
		if g.Run.Qmp != "" {
			return "VM status: " + g.Run.Qmp + "\r\n", nil
		}
		return "VM status: running\r\n", nil
	case "info version":
		return guests.QemuVersion(w) + "pve-qemu-kvm_" + guests.QemuVersion(w) + "-4\r\n", nil
	case "info name":
		return guestHostname(g) + "\r\n", nil
	default:
		return nil, c.Unimplemented("the command '" + command + "' of QEMU's monitor")
	}
}
