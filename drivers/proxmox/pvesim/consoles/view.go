package consoles

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/certs"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

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
func apiSpice(w *core.World, c *core.Call) (any, error) {
	node, kind, vmid := c.In["node"], perl.Segments(c.M.Path)[2], c.Vmid()
	g := w.Guest(node, kind, vmid)
	if g == nil {
		return nil, core.Missing(node, kind, vmid)
	}
	title, port := fmt.Sprintf("VM %d - %s", vmid, guests.Sample(w, g).Name), 61000
	switch {
	case kind == "lxc":
		title = fmt.Sprintf("CT %d - %s", vmid, guests.Sample(w, g).Name)
		w.Fork(c, node, core.Job{Kind: "spiceproxy", ID: fmt.Sprint(vmid), Takes: consolePatience, End: func(*core.Task) error { return nil }})
	case g.Run == nil:
		return nil, perl.Fail("VM %d not running", vmid)
	case !strings.HasPrefix(g.Present()["vga"], "qxl"):
		return nil, perl.Fail("no spice port")
	}
	proxy := c.In["proxy"]
	if proxy == "" {
		proxy = node
	}
	answer := map[string]any{
		"secure-attention": "Ctrl+Alt+Ins", "toggle-fullscreen": "Shift+F11", "release-cursor": "Ctrl+Alt+R", "type": "spice", "title": title,
		"host": fmt.Sprintf("pvespiceproxy:%08X:%d:%s:%d::%s", w.Now.Unix(), vmid, strings.ToLower(node), port, w.Rng.Hex(40)), "proxy": "http://" + proxy + ":3128",
		"tls-port": port, "password": w.Rng.Hex(40), "delete-this-file": 1,
	}
	if cert := w.Certificate; cert != nil {
		answer["host-subject"] = "OU=PVE Cluster Node,O=Proxmox Virtual Environment,CN=" + cert.Subject.CommonName
		answer["ca"] = strings.ReplaceAll(certs.AsPEM(w.Authority), "\n", "\\n")
	}
	return answer, nil
}

// apiStateHelper is POST …/dbus-vmstate: a helper of migrations, which a VM that runs
// can have.
func apiStateHelper(_ *core.World, c *core.Call) (any, error) {
	g, err := c.VM()
	if err == nil && g.Run == nil {
		err = perl.Fail("VM %d not running", g.Vmid)
	}
	return nil, err
}
