package pvesim

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
)

// apiCreateTicket is POST /access/ticket: a login, or a new ticket for an old one.
func apiCreateTicket(w *world, c *call) (any, error) {
	username := c.in["username"]
	if realm := c.in["realm"]; realm != "" {
		username += "@" + realm
	}
	u := w.access.users[username]
	password := c.in["password"]
	renewed, byTicket := w.byTicket(password)
	good := u != nil && u.active(w.now) &&
		(byTicket && renewed == username || u.password != "" && subtle.ConstantTimeCompare([]byte(u.password), []byte(password)) == 1)
	if path, privs := c.in["path"], c.in["privs"]; path != "" && privs != "" {
		return w.verified(c, username, good)
	}
	if !good {
		return nil, &apiError{status: http.StatusUnauthorized, message: "authentication failure"}
	}
	return map[string]any{
		"username":            username,
		"ticket":              w.ticket(username),
		"CSRFPreventionToken": w.csrf(username),
		"cap":                 w.capabilities(identity{user: username}),
	}, nil
}

// verified answers a program that wants to know whether somebody, who showed a password
// or ticket, has privileges on a path ($verify_auth in PVE/API2/AccessControl.pm). There
// the ticket of a console is good, too; it is bound to the console's port.
func (w *world) verified(c *call, username string, good bool) (any, error) {
	path := c.in["path"]
	for _, opened := range w.hooks.opened {
		good = good || opened(c.in["password"], username, path)
	}
	if !good || !w.hasAll(username, path, c.list("privs")) {
		return nil, &apiError{status: http.StatusUnauthorized, message: "authentication failure"}
	}
	return map[string]any{"username": username, "cap": w.capabilities(identity{user: username})}, nil
}

func (w *world) hasAll(username, path string, privs []string) bool {
	has := w.privileges(identity{user: username}, path)
	return !slices.ContainsFunc(privs, func(priv string) bool { return !has[priv] })
}

// apiGetTicket is GET /access/ticket, a dummy also in PVE.
func apiGetTicket(*world, *call) (any, error) { return nil, nil }

// capabilities says roughly what a user may do, for the menus of a user
// interface (compute_api_permission in PVE/API2/AccessControl.pm).
func (w *world) capabilities(id identity) map[string]map[string]int {
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
	for _, path := range append(paths, w.access.aclPaths()...) {
		family := "dc"
		if parts := segments(path); len(parts) > 0 {
			family = parts[0]
		}
		for priv := range w.privileges(id, path) {
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
