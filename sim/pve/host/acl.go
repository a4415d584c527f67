package host

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiRoles is GET /access/roles.
func apiRoles(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	for name, r := range perl.Sorted(w.Access.Roles) {
		list = append(list, map[string]any{
			"roleid": name, "special": perl.BoolInt(r.Builtin), "privs": strings.Join(slices.Sorted(maps.Keys(r.Privs)), ","),
		})
	}
	return list, nil
}

// apiGetRole is GET /access/roles/{roleid}.
func apiGetRole(w *core.World, c *core.Call) (any, error) {
	r := w.Access.Roles[c.In["roleid"]]
	if r == nil {
		return nil, perl.Fail("role '%s' does not exist", c.In["roleid"])
	}
	return ones(r.Privs), nil
}

// ones is a set as PVE shows it.
func ones(set map[string]bool) map[string]int {
	shown := make(map[string]int, len(set))
	for name := range set {
		shown[name] = 1
	}
	return shown
}

// checkPrivs fails when a privilege does not exist in this version.
func checkPrivs(w *core.World, privs []string) error {
	known := w.Access.Roles["Administrator"].Privs
	for _, priv := range privs {
		if _, ok := known[priv]; !ok {
			return perl.BadParam("privs", "invalid format - invalid privilege '"+priv+"'\n")
		}
	}
	return nil
}

// apiCreateRole is POST /access/roles.
func apiCreateRole(w *core.World, c *core.Call) (any, error) {
	name := c.In["roleid"]
	privs := c.List("privs")
	if err := checkPrivs(w, privs); err != nil {
		return nil, err
	}
	if strings.HasPrefix(strings.ToUpper(name), "PVE") {
		return nil, perl.BadParam("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
	}
	if w.Access.Roles[name] != nil {
		return nil, perl.Fail("create role failed: role '%s' already exists", name)
	}
	if err := w.NeedUserLock("create role failed"); err != nil {
		return nil, err
	}
	r := &core.Role{Privs: map[string]bool{}}
	for _, priv := range privs {
		r.Privs[priv] = true
	}
	w.Access.Roles[name] = r
	w.Access.Changed()
	return nil, nil
}

// apiUpdateRole is PUT /access/roles/{roleid}.
func apiUpdateRole(w *core.World, c *core.Call) (any, error) {
	name := c.In["roleid"]
	privs := c.List("privs")
	if err := checkPrivs(w, privs); err != nil {
		return nil, err
	}
	r := w.Access.Roles[name]
	if r != nil && r.Builtin {
		return nil, perl.Fail("auto-generated role '%s' cannot be modified", name)
	}
	if err := w.NeedUserLock("update role failed"); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, perl.Fail("update role failed: role '%s' does not exist", name)
	}
	if !c.Flag("append") {
		r.Privs = map[string]bool{}
	}
	for _, priv := range privs {
		r.Privs[priv] = true
	}
	w.Access.Changed()
	return nil, nil
}

// apiDeleteRole is DELETE /access/roles/{roleid}.
func apiDeleteRole(w *core.World, c *core.Call) (any, error) {
	name := c.In["roleid"]
	r := w.Access.Roles[name]
	if r != nil && r.Builtin {
		return nil, perl.Fail("auto-generated role '%s' cannot be deleted", name)
	}
	if err := w.NeedUserLock("delete role failed"); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, perl.Fail("delete role failed: role '%s' does not exist", name)
	}
	for _, path := range w.Access.ACLPaths() {
		e := w.Access.ACL[path]
		for _, side := range []func(*core.ACLEntry) map[string]map[string]bool{sideUsers, sideTokens, sideGroups} {
			for who, roles := range side(e) {
				if _, has := roles[name]; has {
					w.Access.Revoke(path, name, side, who)
				}
			}
		}
	}
	delete(w.Access.Roles, name)
	w.Access.Changed()
	return nil, nil
}

// knownPath reports whether a path can be in the access list (check_path in PVE/AccessControl.pm). No
// letters but those of ASCII pass for software networks and mappings where Perl's
// [[:alnum:]] would take them: the names of those have none.
func knownPath(w *core.World, path string) bool {
	if w.V92() {
		return pathOf92().MatchString(path)
	}
	if w.V9() {
		return pathOf91().MatchString(path)
	}
	return pathOf84().MatchString(path)
}

var pathOf84, pathOf91, pathOf92 = knownPaths(""), knownPaths("fabrics"), knownPaths("fabrics|prefix-lists|route-maps")

// knownPaths are those of a version, of which the further ones are of software networks.
// To compile them is a third of what a process of the program needs to start, so that waits
// until an access list is changed.
func knownPaths(further string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return compileKnownPaths(further) })
}

func compileKnownPaths(further string) *regexp.Regexp {
	const name = `[\p{L}\p{N}.\-_]+`
	paths := []string{
		``, `access`, `access/groups(?:/` + name + `)?`, `access/realm(?:/` + name + `)?`, `mapping(?:/` + name + `){0,2}`,
		`nodes(?:/` + name + `)?`, `pool(?:/[A-Za-z0-9.\-_]+){0,3}`, `sdn`, `sdn/controllers(?:/[\p{L}\p{N}_\-]+)?`, `sdn/(?:dns|ipams)(?:/[\p{L}\p{N}]+)?`,
		`sdn/zones(?:/` + name + `){0,2}`, `sdn/zones/` + name + `/` + name + `/[1-9][0-9]{0,3}`,
		`storage(?:/` + name + `)?`, `vms(?:/[1-9][0-9]{2,})?`,
	}
	if further != "" {
		paths = append(paths, `sdn/(?:`+further+`)(?:/[\p{L}\p{N}]+)?`)
	}
	return regexp.MustCompile(`^/(?:` + strings.Join(paths, "|") + `)$`)
}

// normalPath brings a path into the form of the access list (normalize_path).
func normalPath(path string) string {
	return "/" + strings.Join(perl.Segments(path), "/")
}

// apiGetACL is GET /access/acl: all for who may audit, else only what the
// caller may change.
func apiGetACL(w *core.World, c *core.Call) (any, error) {
	audit := c.Can("/access", "Sys.Audit")
	list := []map[string]any{}
	for _, path := range w.Access.ACLPaths() {
		if !audit && c.NeedModify(path) != nil {
			continue
		}
		e := w.Access.ACL[path]
		for kind, side := range map[string]map[string]map[string]bool{"user": e.Users, "token": e.Tokens, "group": e.Groups} {
			for who, roles := range side {
				for roleid, propagate := range roles {
					list = append(list, map[string]any{
						"path": path, "type": kind, "ugid": who, "roleid": roleid, "propagate": perl.BoolInt(propagate),
					})
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b map[string]any) int {
		key := func(m map[string]any) string {
			return strings.Join([]string{perl.Text(m["path"]), perl.Text(m["type"]), perl.Text(m["ugid"]), perl.Text(m["roleid"])}, " ")
		}
		return strings.Compare(key(a), key(b))
	})
	return list, nil
}

// apiUpdateACL is PUT /access/acl: it grants, or with delete takes back. Nothing of it is
// done when a part cannot be (update_acl in PVE/API2/ACL.pm).
func apiUpdateACL(w *core.World, c *core.Call) (any, error) {
	if !perl.IsTrue(c.In["users"]) && !perl.IsTrue(c.In["groups"]) && !perl.IsTrue(c.In["tokens"]) {
		const needed = "either 'users', 'groups' or 'tokens' is required."
		return nil, &perl.APIError{Status: http.StatusBadRequest, Errors: map[string]string{"users": needed, "groups": needed, "tokens": needed}}
	}
	remove, path := c.Flag("delete"), normalPath(c.In["path"])
	if !perl.IsTrue(c.In["path"]) || !core.ACLPath().MatchString(c.In["path"]) || !remove && !knownPath(w, path) {
		return nil, perl.BadParam("path", "invalid ACL path '"+c.In["path"]+"'")
	}
	if err := w.NeedUserLock("ACL update failed"); err != nil {
		return nil, err
	}
	propagate := !c.Has("propagate") || c.Flag("propagate")
	sides := []struct {
		param string
		side  func(*core.ACLEntry) map[string]map[string]bool
	}{{"groups", sideGroups}, {"users", sideUsers}, {"tokens", sideTokens}}
	roles := c.List("roles")
	for _, roleid := range roles {
		if w.Access.Roles[roleid] == nil {
			return nil, perl.Fail("ACL update failed: role '%s' does not exist", roleid)
		}
		if why := mayHandOn(c, path, roleid, propagate, remove); why != "" {
			return nil, perl.Fail("ACL update failed: 400 Parameter verification failed.\nrole: %s", why)
		}
		for _, s := range sides {
			for _, who := range c.List(s.param) {
				if err := exists(w.Access, s.param, who); err != nil {
					return nil, perl.Fail("ACL update failed: %s", err)
				}
			}
		}
	}
	for _, s := range sides {
		for _, who := range c.List(s.param) {
			for _, roleid := range roles {
				if remove {
					w.Access.Revoke(path, roleid, s.side, who)
				} else {
					w.Access.Grant(path, roleid, propagate, s.side, who)
				}
			}
		}
	}
	return nil, nil
}

// mayHandOn says why a caller may not grant or revoke a role on a path; empty when it may. Without
// Permissions.Modify there, it may only grant its own privileges.
func mayHandOn(c *core.Call, path, roleid string, propagate, remove bool) string {
	own := c.W.Access.Privileges(c.Who, path)
	if _, ok := own["Permissions.Modify"]; ok {
		return ""
	}
	what := map[bool]string{true: "Cannot remove role '", false: "Cannot add role '"}[remove] + roleid + "'"
	for _, priv := range slices.Sorted(maps.Keys(c.W.Access.Roles[roleid].Privs)) {
		switch reaches, ok := own[priv]; {
		case !ok:
			return what + " - requires 'Permissions.Modify' or superset of privileges."
		case propagate && !reaches && !remove:
			return what + " with propagation - requires 'Permissions.Modify' or propagated superset of privileges."
		}
	}
	if roleid == "NoAccess" {
		return what + " - requires 'Permissions.Modify'"
	}
	return ""
}

// exists says whether one is known to whom a role is granted.
func exists(a *core.Access, kind, who string) error {
	switch kind {
	case "groups":
		if a.Groups[who] == nil {
			return perl.Fail("group '%s' does not exist", who)
		}
	case "users":
		if a.Users[who] == nil {
			return perl.Fail("user '%s' does not exist", who)
		}
	default:
		userid, name, _ := perl.CutLast(who, "!")
		if u := a.Users[userid]; u == nil {
			return perl.Fail("no such user ('%s')", userid)
		} else if u.Tokens[name] == nil {
			return perl.Fail("no such token '%s' for user '%s'", name, userid)
		}
	}
	return nil
}

// apiPermissions is GET /access/permissions: one's own, on one path or on all
// that matter; with userid those of others.
func apiPermissions(w *core.World, c *core.Call) (any, error) {
	who := c.Who
	if userid := c.In["userid"]; userid != "" {
		user, name, _ := strings.Cut(userid, "!")
		who = core.Identity{User: user, Token: name}
		if who != c.Who && (c.Who.Token != "" || who.User != c.Who.User) {
			if err := c.Need("/access", "Sys.Audit"); err != nil {
				return nil, err
			}
		}
	}
	result := map[string]map[string]int{}
	show := func(path string) map[string]int {
		shown := map[string]int{}
		for priv, propagate := range w.Access.Privileges(who, path) {
			shown[priv] = perl.BoolInt(propagate)
		}
		return shown
	}
	if path := c.In["path"]; perl.IsTrue(path) { // As it was asked for.
		result[path] = show(path)
		return result, nil
	}
	return w.Access.Summary(who, func() any {
		for path := range relevantPaths(w) {
			if shown := show(path); len(shown) > 0 {
				result[path] = shown
			}
		}
		return result
	}), nil
}

// relevantPaths are those of which GET /access/permissions tells when no path is asked for.
func relevantPaths(w *core.World) map[string]bool {
	paths := map[string]bool{}
	for _, path := range []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"} {
		paths[path] = true
	}
	for path := range w.Access.ACL {
		for _, prefix := range core.Prefixes(path) {
			paths[prefix] = true
		}
	}
	for _, p := range w.Access.Pools {
		for vmid := range p.Vms {
			paths[core.VMPath(vmid)] = true
		}
		for storage := range p.Storages {
			paths["/storage/"+storage] = true
		}
	}
	return paths
}

// apiGroups is GET /access/groups.
func apiGroups(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for name, g := range perl.Sorted(w.Access.Groups) {
		if !c.Can("/access/groups/"+name, "User.Modify") && !c.Can("/access/groups/"+name, "Sys.Audit") && !c.Can("/access/groups/"+name, "Group.Allocate") {
			continue
		}
		entry := map[string]any{"groupid": name, "users": strings.Join(slices.Sorted(maps.Keys(g.Users)), ",")}
		if g.Comment != nil {
			entry["comment"] = *g.Comment
		}
		list = append(list, entry)
	}
	return list, nil
}
