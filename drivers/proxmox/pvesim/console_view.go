package pvesim

import (
	"fmt"
	"net/http"
	"strings"
)

// What looks at consoles from aside: who asks whether a ticket is good, and viewers of
// SPICE, whose pictures are not simulated.

// apiConsoleLogin is POST /access/vncticket: what stands between a browser and a console
// asks whether a ticket is good, and whether its owner may (PVE/API2/AccessControl.pm).
func apiConsoleLogin(w *world, c *call) (any, error) {
	who, path := c.in["authid"], c.in["path"]
	if !w.goodConsoleTicket(c.in["vncticket"], who, path, c.num("port", firstConsolePort)) {
		return nil, badConsoleTicket()
	}
	user, token, _ := strings.Cut(who, "!")
	for _, priv := range c.list("privs") {
		if !w.allowed(identity{user: user, token: token}, path, priv) {
			return nil, &apiError{status: http.StatusUnauthorized, message: "permission denied"}
		}
	}
	return nil, nil
}

// apiSpice is POST …/spiceproxy of a guest: what a viewer needs (remote_viewer_config in
// PVE/AccessControl.pm). A VM has to run, with a display for it.
func apiSpice(w *world, c *call) (any, error) {
	node, kind, vmid := c.in["node"], segments(c.m.Path)[2], c.vmid()
	g := w.guest(node, kind, vmid)
	if g == nil {
		return nil, missing(node, kind, vmid)
	}
	title, port := fmt.Sprintf("VM %d - %s", vmid, w.sample(g).name), 61000
	switch {
	case kind == "lxc":
		title = fmt.Sprintf("CT %d - %s", vmid, w.sample(g).name)
		w.fork(c, node, job{kind: "spiceproxy", id: fmt.Sprint(vmid), takes: consolePatience, end: func(*task) error { return nil }})
	case g.run == nil:
		return nil, fail("VM %d not running", vmid)
	case !strings.HasPrefix(g.present()["vga"], "qxl"):
		return nil, fail("no spice port")
	}
	proxy := c.in["proxy"]
	if proxy == "" {
		proxy = node
	}
	answer := map[string]any{
		"secure-attention": "Ctrl+Alt+Ins", "toggle-fullscreen": "Shift+F11", "release-cursor": "Ctrl+Alt+R", "type": "spice", "title": title,
		"host": fmt.Sprintf("pvespiceproxy:%08X:%d:%s:%d::%s", w.now.Unix(), vmid, strings.ToLower(node), port, w.hex(40)), "proxy": "http://" + proxy + ":3128",
		"tls-port": port, "password": w.hex(40), "delete-this-file": 1,
	}
	if cert := w.certificate; cert != nil {
		answer["host-subject"] = "OU=PVE Cluster Node,O=Proxmox Virtual Environment,CN=" + cert.Subject.CommonName
		answer["ca"] = strings.ReplaceAll(asPEM(w.authority), "\n", "\\n")
	}
	return answer, nil
}

// apiStateHelper is POST …/dbus-vmstate: a helper of migrations, which a VM that runs
// can have.
func apiStateHelper(_ *world, c *call) (any, error) {
	g, err := c.vm()
	if err == nil && g.run == nil {
		err = fail("VM %d not running", g.vmid)
	}
	return nil, err
}
