package node

// This part of the package is terminals and screens of nodes and guests, behind websockets.

import (
	"cmp"
	"crypto/hmac"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// ConsoleArea is consoles.
func ConsoleArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/vncwebsocket": apiConsoleSocket,
			"PUT /nodes/{node}/qemu/{vmid}/sendkey":            core.On(qemu.RunningOnly, apiSendKey),
			"POST /access/vncticket":                           apiConsoleLogin,
		},
		Guests: map[string]core.GuestHandler{
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/termproxy":  apiConsole,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/vncproxy":   apiConsole,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/spiceproxy": apiSpice,
			"POST /nodes/{node}/qemu/{vmid}/monitor":          apiMonitor,
			"POST /nodes/{node}/qemu/{vmid}/dbus-vmstate":     apiStateHelper,
		},
		Calls: consoleCalls(),
		Begin: beginConsoles,
	}
}

// Consoles: a call opens one, whose worker waits for whoever calls; the caller comes by
// the websocket that names its port. What is behind it is in socket.go.

// consolePatience is how long the worker of a console waits for a caller.
const consolePatience = 10 * time.Second

// Console is a port behind which a terminal or a screen is.
type Console struct {
	port       int
	path, perm string // What a caller must be allowed.
	node       string
	guest      *core.Guest // Nil for that of the node.
	user       string      // Who opened it.
	terminal   bool
	serial     string // The port of a VM that a terminal was asked for.
	password   string // Of a screen.
	challenge  string // The same.
	worker     *core.Task
	taken      bool
	ended      chan struct{} // Closed when the worker is stopped.
}

// ports are the consoles that are open, by their port.
type ports map[int]*Console

func consolesOf(w *core.World) ports { return core.MapOf[ports](&w.Parts) }

// beginConsoles lets the ticket of a console count where a password does.
func beginConsoles(w *core.World) {
	w.Hooks.Opened = append(w.Hooks.Opened, func(ticket, user, path string) bool {
		for port, con := range consolesOf(w) {
			if con.path == path && goodConsoleTicket(w, ticket, user, path, port) {
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
func openConsole(w *core.World, c *core.Call, con *Console, kind, id, says string) (upid string, err error) {
	for con.port = firstConsolePort; consolesOf(w)[con.port] != nil; {
		if con.port++; con.port == endConsolePort {
			return "", perl.Fail("unable to find free port (%d-%d)", firstConsolePort, endConsolePort)
		}
	}
	consolesOf(w)[con.port], con.ended = con, make(chan struct{})
	upid = w.Fork(c, con.node, core.Job{
		Kind: kind, ID: id, Takes: consolePatience, Continues: func() bool { return con.taken },
		Begin: func(t *core.Task) error {
			t.Logf("%s %s", says, t.UPID)
			return nil
		},
		End: func(*core.Task) error {
			delete(consolesOf(w), con.port)
			return perl.Fail("connection timed out")
		},
		Abort: func(*core.Task) {
			delete(consolesOf(w), con.port)
			close(con.ended)
		},
	})
	con.worker = w.Tasks.ByID[upid]
	return upid, nil
}

// consoleTicket is good for one path and port (assemble_vnc_ticket in
// PVE/AccessControl.pm).
func consoleTicket(w *core.World, user, path string, port int) string {
	plain := fmt.Sprintf("PVEVNC:%08X", w.Now.Unix())
	return plain + "::" + host.Sign(w, fmt.Sprintf("%s:%s:%s:%d", plain, user, path, port))
}

// goodConsoleTicket verifies such a ticket, which is good for forty seconds.
func goodConsoleTicket(w *core.World, ticket, user, path string, port int) bool {
	plain, signature, _ := strings.Cut(ticket, "::")
	stamp, ok := strings.CutPrefix(plain, "PVEVNC:")
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	if !ok || err != nil {
		return false
	}
	age := w.Now.Unix() - seconds
	return age > -20 && age < 40 && hmac.Equal([]byte(signature), []byte(host.Sign(w, fmt.Sprintf("%s:%s:%s:%d", plain, user, path, port))))
}

func badConsoleTicket() error {
	return &perl.APIError{Status: http.StatusUnauthorized, Message: "permission denied - invalid PVEVNC ticket"}
}

// apiConsole is POST …/vncproxy and …/termproxy of a guest. The type of the task is
// the same for all of them.
func apiConsole(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	con := &Console{node: g.Node, guest: g, path: core.VMPath(g.Vmid), perm: "VM.Console", user: c.Who.String()}
	if con.terminal = strings.HasSuffix(c.M.Path, "/termproxy"); con.terminal {
		con.serial = c.In["serial"]
	}
	return consoleAnswer(w, c, con, "vncproxy", fmt.Sprint(g.Vmid))
}

// consoleAnswer opens a console and tells how to get there.
func consoleAnswer(w *core.World, c *core.Call, con *Console, kind, id string) (any, error) {
	upid, err := openConsole(w, c, con, kind, id, map[bool]string{true: "starting termproxy", false: "starting vnc proxy"}[con.terminal])
	if err != nil {
		return nil, err
	}
	ticket := consoleTicket(w, con.user, con.path, con.port)
	answer := map[string]any{"user": con.user, "port": strconv.Itoa(con.port), "upid": upid, "ticket": ticket}
	if con.terminal {
		return answer, nil
	}
	con.password, con.challenge = ticket, w.Rng.Hex(16)
	answer["cert"] = ""
	if w.Authority != nil {
		answer["cert"] = AsPEM(w.Authority) // Of the file that it is read from: pve-root-ca.pem.
	}
	if c.Flag("generate-password") {
		con.password = w.Rng.Hex(8)
		answer["password"] = con.password
	}
	return answer, nil
}

// apiNodeConsole is POST /nodes/{node}/termproxy and vncshell: a shell for root, for
// others a login (PVE/API2/Nodes.pm).
func apiNodeConsole(w *core.World, c *core.Call) (any, error) {
	if c.Who.Token != "" {
		return nil, perl.Fail("value '%s' does not look like a valid user name\n", c.Who)
	}
	con := &Console{
		node: c.In["node"], path: "/nodes/" + c.In["node"], perm: "Sys.Console", user: c.Who.User,
		terminal: strings.HasSuffix(c.M.Path, "/termproxy"),
	}
	return consoleAnswer(w, c, con, "vncshell", "")
}

// apiConsoleSocket is GET …/vncwebsocket: whoever asks with an upgrade is connected to
// the port, whatever is there.
func apiConsoleSocket(w *core.World, c *core.Call) (any, error) {
	path := "/nodes/" + c.In["node"]
	if c.Has("vmid") {
		path = core.VMPath(c.Vmid())
	}
	port := c.Num("port", 0)
	if !goodConsoleTicket(w, c.In["vncticket"], c.Who.String(), path, port) {
		return nil, badConsoleTicket()
	}
	return Socket{consolesOf(w)[port], map[string]any{"port": strconv.Itoa(port)}}, nil
}

// consoleCalls are those of nodes, which the API table leaves out.
func consoleCalls() []core.ExtraCall {
	object := &pveapi.Value{Type: "object"}
	console := &pveapi.Rule{Kind: "perm", Path: "/nodes/{node}", Privs: []string{"Sys.Console"}}
	const shell = "cmd: string login|upgrade|ceph_install\ncmd-opts: string"
	return []core.ExtraCall{
		{Name: "POST /nodes/{node}/termproxy", Perm: console, Params: shell, Returns: object, Handle: apiNodeConsole},
		{Name: "POST /nodes/{node}/vncshell", Perm: console, Params: shell + "\nwebsocket: boolean\nwidth: integer\nheight: integer", Returns: object, Handle: apiNodeConsole},
		{Name: "GET /nodes/{node}/vncwebsocket", Perm: console, Params: "vncticket: string needed <=512\nport: integer needed 5900..5999", Returns: object, Handle: apiConsoleSocket},
	}
}

// serialPort is the port behind the terminal of a VM: the one that was named, else that of
// its display, else the first. Only the program behind the terminal looks for it, when
// somebody calls (termproxy in PVE/API2/Qemu.pm; terminal in PVE/CLI/qm.pm).
func serialPort(g *core.Guest, name string) (string, error) {
	conf := g.Conf
	if name == "" {
		if display := perl.ParseProperty("vga", conf["vga"])["type"]; strings.HasPrefix(display, "serial") {
			name = display
		}
	}
	switch {
	case name != "" && conf[name] == "":
		return "", perl.Fail("serial interface '%s' is not configured", name)
	case name != "" && conf[name] != "socket":
		return "", perl.Fail("wrong serial type on interface '%s'", name)
	case name != "":
		return name, nil
	}
	for _, key := range perl.IndexedKeys(conf, "serial") {
		if conf[key] == "socket" {
			return key, nil
		}
	}
	return "", perl.Fail("unable to find a serial interface")
}

// apiSendKey is PUT …/sendkey: nobody looks at the keyboard.
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
		return qemu.GuestHostname(g) + "\r\n", nil
	default:
		return nil, c.Unimplemented("the command '" + command + "' of QEMU's monitor")
	}
}

// What looks at consoles from aside: who asks whether a ticket is good, and viewers of
// SPICE, whose pictures are not simulated.

// apiConsoleLogin is POST /access/vncticket: what stands between a browser and a console
// asks whether a ticket is good, and whether its owner may (PVE/API2/AccessControl.pm).
func apiConsoleLogin(w *core.World, c *core.Call) (any, error) {
	who, path := c.In["authid"], c.In["path"]
	if !goodConsoleTicket(w, c.In["vncticket"], who, path, c.Num("port", firstConsolePort)) {
		return nil, badConsoleTicket()
	}
	user, token, _ := strings.Cut(who, "!")
	for _, priv := range c.List("privs") {
		if !w.Access.Allowed(core.Identity{User: user, Token: token}, path, priv) {
			return nil, &perl.APIError{Status: http.StatusUnauthorized, Message: "permission denied"}
		}
	}
	return nil, nil
}

// apiSpice is POST …/spiceproxy of a guest: what a viewer needs (remote_viewer_config in
// PVE/AccessControl.pm). A VM has to run, with a display for it.
func apiSpice(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	node, vmid := g.Node, g.Vmid
	title, port := fmt.Sprintf("VM %d - %s", vmid, guests.Sample(w, g).Name), 61000
	switch {
	case g.Kind == "lxc":
		title = fmt.Sprintf("CT %d - %s", vmid, guests.Sample(w, g).Name)
		w.Fork(c, node, core.Job{Kind: "spiceproxy", ID: fmt.Sprint(vmid), Takes: consolePatience, End: func(*core.Task) error { return nil }})
	case g.Run == nil:
		return nil, perl.Fail("VM %d not running", vmid)
	case !strings.HasPrefix(g.Present()["vga"], "qxl"):
		return nil, perl.Fail("no spice port")
	}
	proxy := cmp.Or(c.In["proxy"], node)
	answer := map[string]any{
		"secure-attention": "Ctrl+Alt+Ins", "toggle-fullscreen": "Shift+F11", "release-cursor": "Ctrl+Alt+R", "type": "spice", "title": title,
		"host": fmt.Sprintf("pvespiceproxy:%08X:%d:%s:%d::%s", w.Now.Unix(), vmid, strings.ToLower(node), port, w.Rng.Hex(40)), "proxy": "http://" + proxy + ":3128",
		"tls-port": port, "password": w.Rng.Hex(40), "delete-this-file": 1,
	}
	if cert := w.Certificate; cert != nil {
		answer["host-subject"] = "OU=PVE Cluster Node,O=Proxmox Virtual Environment,CN=" + cert.Subject.CommonName
		answer["ca"] = strings.ReplaceAll(AsPEM(w.Authority), "\n", "\\n")
	}
	return answer, nil
}

// apiStateHelper is POST …/dbus-vmstate: a helper of migrations, which a VM that runs
// can have.
func apiStateHelper(_ *core.World, _ *core.Call, g *core.Guest) (any, error) {
	if g.Run == nil {
		return nil, perl.Fail("VM %d not running", g.Vmid)
	}
	return nil, nil
}
