package access

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/logins"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiCreateTicket is POST /access/ticket: a login, or a new ticket for an old one.
func apiCreateTicket(w *core.World, c *core.Call) (any, error) {
	username := c.In["username"]
	if realm := c.In["realm"]; realm != "" {
		username += "@" + realm
	}
	u := w.Access.Users[username]
	password := c.In["password"]
	renewed, byTicket := logins.ByTicket(w, password)
	good := u != nil && u.Active(w.Now) &&
		(byTicket && renewed == username || u.Password != "" && subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) == 1)
	if path, privs := c.In["path"], c.In["privs"]; path != "" && privs != "" {
		return verified(w, c, username, good)
	}
	if !good {
		return nil, &perl.APIError{Status: http.StatusUnauthorized, Message: "authentication failure"}
	}
	return map[string]any{
		"username":            username,
		"ticket":              logins.Ticket(w, username),
		"CSRFPreventionToken": logins.Csrf(w, username),
		"cap":                 capabilities(w, core.Identity{User: username}),
	}, nil
}

// verified answers a program that wants to know whether somebody, who showed a password
// or ticket, has privileges on a path ($verify_auth in PVE/API2/AccessControl.pm). There
// the ticket of a console is good, too; it is bound to the console's port.
func verified(w *core.World, c *core.Call, username string, good bool) (any, error) {
	path := c.In["path"]
	for _, opened := range w.Hooks.Opened {
		good = good || opened(c.In["password"], username, path)
	}
	if !good || !hasAll(w, username, path, c.List("privs")) {
		return nil, &perl.APIError{Status: http.StatusUnauthorized, Message: "authentication failure"}
	}
	return map[string]any{"username": username, "cap": capabilities(w, core.Identity{User: username})}, nil
}

func hasAll(w *core.World, username, path string, privs []string) bool {
	has := w.Access.Privileges(core.Identity{User: username}, path)
	return !slices.ContainsFunc(privs, func(priv string) bool { return !has[priv] })
}

// apiGetTicket is GET /access/ticket, a dummy also in PVE.
func apiGetTicket(*core.World, *core.Call) (any, error) { return nil, nil }

// capabilities says roughly what a user may do, for the menus of a user
// interface (compute_api_permission in PVE/API2/AccessControl.pm).
func capabilities(w *core.World, id core.Identity) map[string]map[string]int {
	families := map[string]func(priv string) bool{
		"vms":     prefixed("VM."),
		"access":  prefixed("User.", "Group."),
		"storage": prefixed("Datastore."),
		"nodes":   prefixed("Sys."),
		"sdn":     prefixed("SDN."),
		"dc":      func(p string) bool { return p == "Sys.Audit" || p == "Sys.Modify" || strings.HasPrefix(p, "SDN.") },
		"mapping": prefixed("Mapping."),
	}
	result := map[string]map[string]int{}
	for family := range families {
		result[family] = map[string]int{}
	}
	paths := []string{"/", "/nodes", "/access/groups", "/vms", "/storage", "/sdn", "/mapping"}
	for _, path := range append(paths, w.Access.ACLPaths()...) {
		family := "dc"
		if parts := perl.Segments(path); len(parts) > 0 {
			family = parts[0]
		}
		for priv := range w.Access.Privileges(id, path) {
			switch {
			case family == "pool" && strings.HasPrefix(priv, "VM."):
				result["vms"][priv] = 1
			case family == "pool" && strings.HasPrefix(priv, "Datastore."):
				result["storage"][priv] = 1
			case families[family] != nil && families[family](priv),
				families[family] != nil && family != "dc" && priv == "Permissions.Modify":
				result[family][priv] = 1
			}
		}
	}
	return result
}

func prefixed(prefixes ...string) func(string) bool {
	return func(priv string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(priv, p) {
				return true
			}
		}
		return false
	}
}
