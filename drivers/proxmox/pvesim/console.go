package pvesim

import (
	"crypto/hmac"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Consoles: a call opens one, whose worker waits for whoever calls; the caller comes by
// the websocket that names its port. What is behind it is in console_socket.go.

// consolePatience is how long the worker of a console waits for a caller.
const consolePatience = 10 * time.Second

// console is a port behind which a terminal or a screen is.
type console struct {
	port       int
	path, perm string // What a caller must be allowed.
	node       string
	guest      *guest // Nil for that of the node.
	user       string // Who opened it.
	terminal   bool
	serial     string // The port of a VM that a terminal was asked for.
	password   string // Of a screen.
	challenge  string // The same.
	worker     *task
	taken      bool
	ended      chan struct{} // Closed when the worker is stopped.
}

// ports are the consoles that are open, by their port.
type ports struct{ open map[int]*console }

func consolesOf(w *world) map[int]*console {
	all := partOf[ports](&w.parts)
	if all.open == nil {
		all.open = map[int]*console{}
	}
	return all.open
}

// beginConsoles lets the ticket of a console count where a password does.
func beginConsoles(w *world) {
	w.hooks.opened = append(w.hooks.opened, func(ticket, user, path string) bool {
		for port, con := range consolesOf(w) {
			if con.path == path && w.goodConsoleTicket(ticket, user, path, port) {
				return true
			}
		}
		return false
	})
}

// The first free port from firstConsolePort on and before endConsolePort is taken
// (next_vnc_port in PVE/Tools.pm).
const firstConsolePort, endConsolePort = 5900, 6000

// openConsole starts the worker of a console.
func (w *world) openConsole(c *call, con *console, kind, id, says string) (upid string, err error) {
	for con.port = firstConsolePort; consolesOf(w)[con.port] != nil; {
		if con.port++; con.port == endConsolePort {
			return "", fail("unable to find free port (%d-%d)", firstConsolePort, endConsolePort)
		}
	}
	consolesOf(w)[con.port], con.ended = con, make(chan struct{})
	upid = w.fork(c, con.node, job{
		kind: kind, id: id, takes: consolePatience, held: func() bool { return con.taken },
		begin: func(t *task) error {
			t.logf("%s %s", says, t.upid)
			return nil
		},
		end: func(*task) error {
			delete(consolesOf(w), con.port)
			return fail("connection timed out")
		},
		abort: func(*task) {
			delete(consolesOf(w), con.port)
			close(con.ended)
		},
	})
	con.worker = w.tasks.byID[upid]
	return upid, nil
}

// consoleTicket is good for one path and port (assemble_vnc_ticket in
// PVE/AccessControl.pm).
func (w *world) consoleTicket(user, path string, port int) string {
	plain := fmt.Sprintf("PVEVNC:%08X", w.now.Unix())
	return plain + "::" + w.sign(fmt.Sprintf("%s:%s:%s:%d", plain, user, path, port))
}

// goodConsoleTicket verifies such a ticket, which is good for forty seconds.
func (w *world) goodConsoleTicket(ticket, user, path string, port int) bool {
	plain, signature, _ := strings.Cut(ticket, "::")
	stamp, ok := strings.CutPrefix(plain, "PVEVNC:")
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	if !ok || err != nil {
		return false
	}
	age := w.now.Unix() - seconds
	return age > -20 && age < 40 && hmac.Equal([]byte(signature), []byte(w.sign(fmt.Sprintf("%s:%s:%s:%d", plain, user, path, port))))
}

func badConsoleTicket() error {
	return &apiError{status: http.StatusUnauthorized, message: "permission denied - invalid PVEVNC ticket"}
}

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
	con := &console{node: node, guest: g, path: vmPath(vmid), perm: "VM.Console", user: c.who.String()}
	if con.terminal = strings.HasSuffix(c.m.Path, "/termproxy"); con.terminal {
		con.serial = c.in["serial"]
	}
	return w.consoleAnswer(c, con, "vncproxy", fmt.Sprint(vmid))
}

// consoleAnswer opens a console and tells how to get there.
func (w *world) consoleAnswer(c *call, con *console, kind, id string) (any, error) {
	upid, err := w.openConsole(c, con, kind, id, map[bool]string{true: "starting termproxy", false: "starting vnc proxy"}[con.terminal])
	if err != nil {
		return nil, err
	}
	ticket := w.consoleTicket(con.user, con.path, con.port)
	answer := map[string]any{"user": con.user, "port": strconv.Itoa(con.port), "upid": upid, "ticket": ticket}
	if con.terminal {
		return answer, nil
	}
	con.password, con.challenge = ticket, w.hex(16)
	answer["cert"] = ""
	if w.authority != nil {
		answer["cert"] = asPEM(w.authority) // Of the file that it is read from: pve-root-ca.pem.
	}
	if c.flag("generate-password") {
		con.password = w.hex(8)
		answer["password"] = con.password
	}
	return answer, nil
}

// apiNodeConsole is POST /nodes/{node}/termproxy and vncshell: a shell for root, for
// others a login (PVE/API2/Nodes.pm).
func apiNodeConsole(w *world, c *call) (any, error) {
	if c.who.token != "" {
		return nil, fail("value '%s' does not look like a valid user name\n", c.who)
	}
	con := &console{
		node: c.in["node"], path: "/nodes/" + c.in["node"], perm: "Sys.Console", user: c.who.user,
		terminal: strings.HasSuffix(c.m.Path, "/termproxy"),
	}
	return w.consoleAnswer(c, con, "vncshell", "")
}

// apiConsoleSocket is GET …/vncwebsocket: whoever asks with an upgrade is connected to
// the port, whatever is there.
func apiConsoleSocket(w *world, c *call) (any, error) {
	path := "/nodes/" + c.in["node"]
	if c.has("vmid") {
		path = vmPath(c.vmid())
	}
	port := c.num("port", 0)
	if !w.goodConsoleTicket(c.in["vncticket"], c.who.String(), path, port) {
		return nil, badConsoleTicket()
	}
	return socket{consolesOf(w)[port], map[string]any{"port": strconv.Itoa(port)}}, nil
}

// consoleCalls are those of nodes, which the API table leaves out.
func consoleCalls() []pastCall {
	object := &pveapi.Value{Type: "object"}
	console := &pveapi.Rule{Kind: "perm", Path: "/nodes/{node}", Privs: []string{"Sys.Console"}}
	const shell = "cmd: string login|upgrade|ceph_install\ncmd-opts: string"
	return []pastCall{
		{name: "POST /nodes/{node}/termproxy", perm: console, params: shell, returns: object, handle: apiNodeConsole},
		{name: "POST /nodes/{node}/vncshell", perm: console, params: shell + "\nwebsocket: boolean\nwidth: integer\nheight: integer", returns: object, handle: apiNodeConsole},
		{name: "GET /nodes/{node}/vncwebsocket", perm: console, params: "vncticket: string needed <=512\nport: integer needed 5900..5999", returns: object, handle: apiConsoleSocket},
	}
}

// serialPort is the port behind the terminal of a VM: the one that was named, else that of
// its display, else the first. Only the program behind the terminal looks for it, when
// somebody calls (termproxy in PVE/API2/Qemu.pm; terminal in PVE/CLI/qm.pm).
func (g *guest) serialPort(name string) (string, error) {
	conf := g.conf
	if name == "" {
		if display := parseProperty("vga", conf["vga"])["type"]; strings.HasPrefix(display, "serial") {
			name = display
		}
	}
	switch {
	case name != "" && conf[name] == "":
		return "", fail("serial interface '%s' is not configured", name)
	case name != "" && conf[name] != "socket":
		return "", fail("wrong serial type on interface '%s'", name)
	case name != "":
		return name, nil
	}
	for _, key := range indexedKeys(conf, "serial") {
		if conf[key] == "socket" {
			return key, nil
		}
	}
	return "", fail("unable to find a serial interface")
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
		if g.run.qmp != "" {
			return "VM status: " + g.run.qmp + "\r\n", nil
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
