package pvesim

import (
	"encoding/pem"
	"fmt"
	"strings"
	"time"
)

// Consoles: tickets are given out and the worker waits for whoever calls, as in PVE,
// but nothing listens there: what comes behind the websockets is not simulated.

// consolePatience is how long the worker of a console waits for a caller.
const consolePatience = 10 * time.Second

// apiConsole is POST …/vncproxy and …/termproxy of a guest. The type of the task is
// the same for all of them.
func apiConsole(w *world, c *call) (any, error) {
	kind := "lxc"
	if strings.Contains(c.m.Path, "/qemu/") {
		kind = "qemu"
	}
	node, vmid := c.in["node"], c.vmid()
	g := w.guest(node, kind, vmid)
	if g == nil {
		return nil, missing(node, kind, vmid)
	}
	terminal := strings.HasSuffix(c.m.Path, "/termproxy")
	if terminal && kind == "qemu" {
		if err := g.serialConsole(c.in["serial"]); err != nil {
			return nil, err
		}
	}
	port := "5900"
	upid := w.fork(c, node, job{kind: "vncproxy", id: fmt.Sprint(vmid), takes: consolePatience, begin: func(t *task) error {
		t.logf("starting %s %s", map[bool]string{true: "termproxy", false: "vnc proxy"}[terminal], t.upid)
		return nil
	}, end: func(*task) error {
		return fail("connection timed out")
	}})
	answer := map[string]any{
		"user": c.who.String(), "port": port, "upid": upid,
		"ticket": c.consoleTicket(vmPath(vmid), port),
	}
	if !terminal {
		answer["cert"] = ""
		if w.certificate != nil {
			answer["cert"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.certificate.Raw}))
		}
		if c.flag("generate-password") {
			answer["password"] = w.hex(8)
		}
	}
	return answer, nil
}

// serialConsole says whether a VM has the serial port that its terminal needs: the
// one that was named, else that of its display, else any.
func (g *guest) serialConsole(name string) error {
	conf := g.present()
	if name == "" {
		if display, _, _ := strings.Cut(conf["vga"], ","); strings.HasPrefix(display, "serial") {
			name = display
		}
	}
	if name == "" {
		if len(indexedKeys(conf, "serial")) == 0 {
			return fail("unable to find a serial interface")
		}
		return nil
	}
	if conf[name] != "socket" {
		return fail("unable to find a serial interface")
	}
	return nil
}

// apiSendKey is PUT …/sendkey: nobody looks at the keyboard.
func apiSendKey(_ *world, c *call) (any, error) {
	if _, err := c.runningOnly(); err != nil {
		return nil, err
	}
	return nil, nil
}

// apiMonitor is POST …/monitor: QEMU's own console, of which a few questions are known.
func apiMonitor(w *world, c *call) (any, error) {
	g, err := c.vm()
	switch {
	case err != nil:
		return nil, err
	case g.run == nil:
		return nil, fail("VM %d not running", g.vmid)
	}
	switch command := c.in["command"]; command {
	case "info status":
		if g.run.paused {
			return "VM status: paused\r\n", nil
		}
		return "VM status: running\r\n", nil
	case "info version":
		return w.qemuVersion() + "pve-qemu-kvm_" + w.qemuVersion() + "-4\r\n", nil
	case "info name":
		return guestHostname(g) + "\r\n", nil
	default:
		return nil, c.unimplemented("the command '" + command + "' of QEMU's monitor")
	}
}

const agentBlockSize = 128 << 20

func agentBlockInfo(*world, *guest) any { return map[string]any{"size": agentBlockSize} }

func agentBlocks(_ *world, g *guest) any {
	list := []map[string]any{}
	for n := range memoryMiB(g.conf["memory"]) << 20 / agentBlockSize {
		list = append(list, map[string]any{"phys-index": n, "online": true, "can-offline": true})
	}
	return list
}
