package pvesim

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// apiRoles is GET /access/roles.
func apiRoles(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(w.access.roles)) {
		r := w.access.roles[name]
		list = append(list, map[string]any{
			"roleid": name, "special": boolInt(r.builtin), "privs": strings.Join(slices.Sorted(maps.Keys(r.privs)), ","),
		})
	}
	return list, nil
}

// apiGetRole is GET /access/roles/{roleid}.
func apiGetRole(w *world, c *call) (any, error) {
	r := w.access.roles[c.in["roleid"]]
	if r == nil {
		return nil, fail("role '%s' does not exist", c.in["roleid"])
	}
	return ones(r.privs), nil
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
func (w *world) checkPrivs(privs []string) error {
	known := w.access.roles["Administrator"].privs
	for _, priv := range privs {
		if _, ok := known[priv]; !ok {
			return badParam("privs", "invalid format - invalid privilege '"+priv+"'\n")
		}
	}
	return nil
}

// apiCreateRole is POST /access/roles.
func apiCreateRole(w *world, c *call) (any, error) {
	name := c.in["roleid"]
	privs := c.list("privs")
	if err := w.checkPrivs(privs); err != nil {
		return nil, err
	}
	if strings.HasPrefix(strings.ToUpper(name), "PVE") {
		return nil, badParam("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
	}
	if w.access.roles[name] != nil {
		return nil, fail("create role failed: role '%s' already exists", name)
	}
	if err := w.needUserLock("create role failed"); err != nil {
		return nil, err
	}
	r := &role{privs: map[string]bool{}}
	for _, priv := range privs {
		r.privs[priv] = true
	}
	w.access.roles[name] = r
	w.access.changed()
	return nil, nil
}

// apiUpdateRole is PUT /access/roles/{roleid}.
func apiUpdateRole(w *world, c *call) (any, error) {
	name := c.in["roleid"]
	privs := c.list("privs")
	if err := w.checkPrivs(privs); err != nil {
		return nil, err
	}
	r := w.access.roles[name]
	if r != nil && r.builtin {
		return nil, fail("auto-generated role '%s' cannot be modified", name)
	}
	if err := w.needUserLock("update role failed"); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail("update role failed: role '%s' does not exist", name)
	}
	if !c.flag("append") {
		r.privs = map[string]bool{}
	}
	for _, priv := range privs {
		r.privs[priv] = true
	}
	w.access.changed()
	return nil, nil
}

// apiDeleteRole is DELETE /access/roles/{roleid}.
func apiDeleteRole(w *world, c *call) (any, error) {
	name := c.in["roleid"]
	r := w.access.roles[name]
	if r != nil && r.builtin {
		return nil, fail("auto-generated role '%s' cannot be deleted", name)
	}
	if err := w.needUserLock("delete role failed"); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail("delete role failed: role '%s' does not exist", name)
	}
	for _, path := range w.access.aclPaths() {
		e := w.access.acl[path]
		for _, side := range []func(*aclEntry) map[string]map[string]bool{sideUsers, sideTokens, sideGroups} {
			for who, roles := range side(e) {
				if _, has := roles[name]; has {
					w.access.revoke(path, name, side, who)
				}
			}
		}
	}
	delete(w.access.roles, name)
	w.access.changed()
	return nil, nil
}

// knownPath is what can stand in the access list (check_path in PVE/AccessControl.pm). No
// letters but those of ASCII pass for software networks and mappings where Perl's
// [[:alnum:]] would take them: the names of those have none.
func (w *world) knownPath(path string) bool {
	if w.v92() {
		return pathOf92.MatchString(path)
	}
	if w.v9() {
		return pathOf91.MatchString(path)
	}
	return pathOf84.MatchString(path)
}

var pathOf84, pathOf91, pathOf92 = knownPaths(""), knownPaths("fabrics"), knownPaths("fabrics|prefix-lists|route-maps")

// knownPaths are those of a version, of which the further ones are of software networks.
func knownPaths(further string) *regexp.Regexp {
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
	return "/" + strings.Join(segments(path), "/")
}

// apiGetACL is GET /access/acl: all for who may audit, else only what the
// caller may change.
func apiGetACL(w *world, c *call) (any, error) {
	audit := c.can("/access", "Sys.Audit")
	list := []map[string]any{}
	for _, path := range w.access.aclPaths() {
		if !audit && c.needModify(path) != nil {
			continue
		}
		e := w.access.acl[path]
		for kind, side := range map[string]map[string]map[string]bool{"user": e.users, "token": e.tokens, "group": e.groups} {
			for who, roles := range side {
				for roleid, propagate := range roles {
					list = append(list, map[string]any{
						"path": path, "type": kind, "ugid": who, "roleid": roleid, "propagate": boolInt(propagate),
					})
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b map[string]any) int {
		key := func(m map[string]any) string {
			return strings.Join([]string{text(m["path"]), text(m["type"]), text(m["ugid"]), text(m["roleid"])}, " ")
		}
		return strings.Compare(key(a), key(b))
	})
	return list, nil
}

// apiUpdateACL is PUT /access/acl: it grants, or with delete takes back. Nothing of it is
// done when a part cannot be (update_acl in PVE/API2/ACL.pm).
func apiUpdateACL(w *world, c *call) (any, error) {
	if !isTrue(c.in["users"]) && !isTrue(c.in["groups"]) && !isTrue(c.in["tokens"]) {
		const needed = "either 'users', 'groups' or 'tokens' is required."
		return nil, &apiError{status: http.StatusBadRequest, errors: map[string]string{"users": needed, "groups": needed, "tokens": needed}}
	}
	remove, path := c.flag("delete"), normalPath(c.in["path"])
	if !isTrue(c.in["path"]) || !aclPath.MatchString(c.in["path"]) || !remove && !w.knownPath(path) {
		return nil, badParam("path", "invalid ACL path '"+c.in["path"]+"'")
	}
	if err := w.needUserLock("ACL update failed"); err != nil {
		return nil, err
	}
	propagate := !c.has("propagate") || c.flag("propagate")
	sides := []struct {
		param string
		side  func(*aclEntry) map[string]map[string]bool
	}{{"groups", sideGroups}, {"users", sideUsers}, {"tokens", sideTokens}}
	roles := c.list("roles")
	for _, roleid := range roles {
		if w.access.roles[roleid] == nil {
			return nil, fail("ACL update failed: role '%s' does not exist", roleid)
		}
		if why := c.mayHandOn(path, roleid, propagate, remove); why != "" {
			return nil, fail("ACL update failed: 400 Parameter verification failed.\nrole: %s", why)
		}
		for _, s := range sides {
			for _, who := range c.list(s.param) {
				if err := w.access.exists(s.param, who); err != nil {
					return nil, fail("ACL update failed: %s", err)
				}
			}
		}
	}
	for _, s := range sides {
		for _, who := range c.list(s.param) {
			for _, roleid := range roles {
				if remove {
					w.access.revoke(path, roleid, s.side, who)
				} else {
					w.access.grant(path, roleid, propagate, s.side, who)
				}
			}
		}
	}
	return nil, nil
}

// mayHandOn says why a caller may not grant or take back a role on a path; empty when it
// may. Who lacks Permissions.Modify there hands on its own privileges alone.
func (c *call) mayHandOn(path, roleid string, propagate, remove bool) string {
	own := c.w.privileges(c.who, path)
	if _, ok := own["Permissions.Modify"]; ok {
		return ""
	}
	what := map[bool]string{true: "Cannot remove role '", false: "Cannot add role '"}[remove] + roleid + "'"
	for _, priv := range slices.Sorted(maps.Keys(c.w.access.roles[roleid].privs)) {
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
func (a *access) exists(kind, who string) error {
	switch kind {
	case "groups":
		if a.groups[who] == nil {
			return fail("group '%s' does not exist", who)
		}
	case "users":
		if a.users[who] == nil {
			return fail("user '%s' does not exist", who)
		}
	default:
		userid, name, _ := cutLast(who, "!")
		if u := a.users[userid]; u == nil {
			return fail("no such user ('%s')", userid)
		} else if u.tokens[name] == nil {
			return fail("no such token '%s' for user '%s'", name, userid)
		}
	}
	return nil
}

// apiPermissions is GET /access/permissions: one's own, on one path or on all
// that matter; with userid those of others.
func apiPermissions(w *world, c *call) (any, error) {
	who := c.who
	if userid := c.in["userid"]; userid != "" {
		user, name, _ := strings.Cut(userid, "!")
		who = identity{user, name}
		if who != c.who && (c.who.token != "" || who.user != c.who.user) {
			if err := c.need("/access", "Sys.Audit"); err != nil {
				return nil, err
			}
		}
	}
	result := map[string]map[string]int{}
	show := func(path string) map[string]int {
		shown := map[string]int{}
		for priv, propagate := range w.privileges(who, path) {
			shown[priv] = boolInt(propagate)
		}
		return shown
	}
	if path := c.in["path"]; isTrue(path) { // As it was asked for.
		result[path] = show(path)
		return result, nil
	}
	paths := map[string]bool{}
	for _, path := range []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"} {
		paths[path] = true
	}
	for path := range w.access.acl {
		for _, prefix := range prefixes(path) {
			paths[prefix] = true
		}
	}
	for _, p := range w.pools {
		for vmid := range p.vms {
			paths[vmPath(vmid)] = true
		}
		for storage := range p.storages {
			paths["/storage/"+storage] = true
		}
	}
	for path := range paths {
		if shown := show(path); len(shown) > 0 {
			result[path] = shown
		}
	}
	return result, nil
}

// apiGroups is GET /access/groups.
func apiGroups(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(w.access.groups)) {
		g := w.access.groups[name]
		if !c.can("/access/groups/"+name, "User.Modify") && !c.can("/access/groups/"+name, "Sys.Audit") && !c.can("/access/groups/"+name, "Group.Allocate") {
			continue
		}
		entry := map[string]any{"groupid": name, "users": strings.Join(slices.Sorted(maps.Keys(g.users)), ",")}
		if g.comment != nil {
			entry["comment"] = *g.comment
		}
		list = append(list, entry)
	}
	return list, nil
}
