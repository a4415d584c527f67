package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// access is user.cfg: users, groups, roles and the access list.
type access struct {
	key    string // Signs tickets.
	users  map[string]*user
	realms map[string]config
	groups map[string]*group
	roles  map[string]*role
	acl    map[string]*aclEntry // By path.

	// known caches privileges by caller and path; nil after any change of the
	// above or of a pool.
	known map[identity]map[string]map[string]bool
}

type user struct {
	enable              bool
	expire              int
	password            string
	comment, email      *string // nil when never set.
	firstname, lastname *string
	keys                *string
	tokens              map[string]*token
}

type token struct {
	secret  string
	comment *string
	expire  int
	privsep bool
}

type group struct {
	comment *string
	users   map[string]bool
}

type role struct {
	privs   map[string]bool
	builtin bool
}

// aclEntry is what is granted on one path: role to whether it propagates, by
// who has it.
type aclEntry struct {
	users, tokens, groups map[string]map[string]bool
}

func newAccess(c *Config) *access {
	a := &access{
		key:    c.Token,
		realms: builtinRealms(), users: map[string]*user{}, groups: map[string]*group{}, roles: builtinRoles(c.Version != "8.4"), acl: map[string]*aclEntry{},
	}
	parts := tokenForm.FindStringSubmatch(c.Token)
	if parts == nil {
		panic("pvesim: token is not of the form user@realm!name=secret")
	}
	if c.Password == "" {
		c.Password = parts[3]
	}
	a.users["root@pam"] = &user{enable: true, password: c.Password, tokens: map[string]*token{}}
	owner := a.users[parts[1]]
	if owner == nil {
		owner = &user{enable: true, tokens: map[string]*token{}}
		a.users[parts[1]] = owner
		a.grant("/", "Administrator", true, func(e *aclEntry) map[string]map[string]bool { return e.users }, parts[1])
	}
	owner.tokens[parts[2]] = &token{secret: parts[3]}
	return a
}

// builtinRoles are those of PVE/AccessControl.pm (create_roles). PVE 9 has no
// VM.Monitor; its successors speak about the guest agent alone.
func builtinRoles(v9 bool) map[string]*role {
	vmUser := "VM.Audit VM.Backup VM.Config.CDROM VM.Config.Cloudinit VM.Console VM.PowerMgmt"
	vmAdmin := vmUser + " VM.Allocate VM.Clone VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.Migrate VM.Snapshot VM.Snapshot.Rollback"
	auditor := "Datastore.Audit Mapping.Audit Pool.Audit SDN.Audit Sys.Audit VM.Audit"
	if v9 {
		vmUser += " VM.GuestAgent.Audit"
		vmAdmin += " VM.GuestAgent.Audit VM.GuestAgent.FileRead VM.GuestAgent.FileSystemMgmt VM.GuestAgent.FileWrite VM.GuestAgent.Unrestricted VM.Replicate"
		auditor += " VM.GuestAgent.Audit"
	} else {
		vmAdmin += " VM.Monitor"
	}
	storeUser := "Datastore.AllocateSpace Datastore.Audit"
	storeAdmin := storeUser + " Datastore.Allocate Datastore.AllocateTemplate"
	users := "Group.Allocate Realm.AllocateUser User.Modify"
	system := "Sys.Audit Sys.Console Sys.Syslog"
	network := "SDN.Allocate SDN.Audit SDN.Use"
	mapping := "Mapping.Audit Mapping.Use"
	pools := "Pool.Allocate Pool.Audit"
	admin := strings.Join([]string{vmAdmin, storeAdmin, users, system, network, mapping, pools}, " ")
	roles := map[string]*role{}
	for name, privs := range map[string]string{
		"NoAccess": "", "PVEAuditor": auditor,
		"PVEVMUser": vmUser, "PVEVMAdmin": vmAdmin, "PVETemplateUser": "VM.Audit VM.Clone",
		"PVEDatastoreUser": storeUser, "PVEDatastoreAdmin": storeAdmin,
		"PVEUserAdmin": users, "PVESysAdmin": system, "PVESDNUser": "SDN.Audit SDN.Use", "PVESDNAdmin": network,
		"PVEMappingUser": mapping, "PVEMappingAdmin": mapping + " Mapping.Modify",
		"PVEPoolUser": "Pool.Audit", "PVEPoolAdmin": pools, "PVEAdmin": admin,
		"Administrator": admin + " Mapping.Modify Permissions.Modify Realm.Allocate Sys.AccessNetwork Sys.Incoming Sys.Modify Sys.PowerMgmt",
	} {
		r := &role{privs: map[string]bool{}, builtin: true}
		for priv := range strings.FieldsSeq(privs) {
			r.privs[priv] = true
		}
		roles[name] = r
	}
	return roles
}

// changed forgets what was computed from the old state.
func (a *access) changed() { a.known = nil }

// aclPaths lists the paths that have entries, sorted.
func (a *access) aclPaths() []string { return slices.Sorted(maps.Keys(a.acl)) }

// grant gives a role to somebody on a path.
func (a *access) grant(path, roleid string, propagate bool, side func(*aclEntry) map[string]map[string]bool, who string) {
	e := a.acl[path]
	if e == nil {
		e = &aclEntry{users: map[string]map[string]bool{}, tokens: map[string]map[string]bool{}, groups: map[string]map[string]bool{}}
		a.acl[path] = e
	}
	if side(e)[who] == nil {
		side(e)[who] = map[string]bool{}
	}
	side(e)[who][roleid] = propagate
	a.changed()
}

// revoke takes a role back; an empty role takes all of somebody's.
func (a *access) revoke(path, roleid string, side func(*aclEntry) map[string]map[string]bool, who string) {
	e := a.acl[path]
	if e == nil {
		return
	}
	if roles := side(e)[who]; roles != nil {
		delete(roles, roleid)
		if len(roles) == 0 || roleid == "" {
			delete(side(e), who)
		}
	}
	if len(e.users)+len(e.tokens)+len(e.groups) == 0 {
		delete(a.acl, path)
	}
	a.changed()
}

// allowed says whether somebody has a privilege on a path.
func (w *world) allowed(id identity, path, priv string) bool {
	if !aclPath.MatchString(path) {
		return false
	}
	_, ok := w.privileges(id, path)[priv]
	return ok
}

// privileges are those of somebody on a path, each with whether it propagates
// (permissions and compile_acl_path in PVE/RPCEnvironment.pm). The result is
// shared: not to be changed.
func (w *world) privileges(id identity, path string) map[string]bool {
	a := w.access
	u := a.users[id.user]
	if id == (identity{user: "root@pam"}) {
		return a.roles["Administrator"].privs
	}
	if u == nil {
		return nil
	}
	var t *token
	if id.token != "" {
		if t = u.tokens[id.token]; t == nil {
			return nil
		}
		if !t.privsep {
			return w.privileges(identity{user: id.user}, path)
		}
	}
	if a.known == nil {
		a.known = map[identity]map[string]map[string]bool{}
	}
	if a.known[id] == nil {
		a.known[id] = map[string]map[string]bool{}
	}
	if privs, ok := a.known[id][path]; ok {
		return privs
	}
	privs := map[string]bool{}
	for roleid, propagate := range w.withPoolRoles(a.rolesOn(id, path), id, path) {
		if r := a.roles[roleid]; r != nil {
			for priv := range r.privs {
				privs[priv] = privs[priv] || propagate
			}
		}
	}
	if t != nil {
		owner := w.privileges(identity{user: id.user}, path)
		for priv, propagate := range privs {
			if ofOwner, ok := owner[priv]; ok {
				privs[priv] = propagate && ofOwner
			} else {
				delete(privs, priv)
			}
		}
	}
	a.known[id][path] = privs
	return privs
}

// rolesOn finds the roles that the access list gives on a path: an entry
// further down replaces what came from above, one of a user or token counts
// before those of groups (roles in PVE/AccessControl.pm).
func (a *access) rolesOn(id identity, path string) map[string]bool {
	roles := map[string]bool{}
	apply := func(entry string, final bool) {
		e := a.acl[entry]
		if e == nil {
			return
		}
		own := e.users[id.user]
		if id.token != "" {
			own = e.tokens[id.String()]
		}
		found := effective(own, final)
		if found == nil && id.token == "" {
			for name, granted := range e.groups {
				if g := a.groups[name]; g != nil && g.users[id.user] {
					for roleid, propagate := range effective(granted, final) {
						if found == nil {
							found = map[string]bool{}
						}
						found[roleid] = propagate
					}
				}
			}
		}
		if found != nil {
			roles = found
		}
	}
	prefixes := prefixes(path)
	for i, prefix := range prefixes {
		apply(prefix, i == len(prefixes)-1)
	}
	if propagate, none := roles["NoAccess"]; none {
		return map[string]bool{"NoAccess": propagate}
	}
	return roles
}

// prefixes are a path and all above it, from the root down. What stands at the root does
// not reach a path that does not begin there (roles in PVE/AccessControl.pm).
func prefixes(path string) []string {
	var list []string
	if strings.HasPrefix(path, "/") {
		list = append(list, "/")
	}
	parts := segments(path)
	for i := range parts {
		list = append(list, "/"+strings.Join(parts[:i+1], "/"))
	}
	return list
}

// effective picks the roles of an entry that reach the path in question.
func effective(granted map[string]bool, final bool) map[string]bool {
	var found map[string]bool
	for roleid, propagate := range granted {
		if final || propagate {
			if found == nil {
				found = map[string]bool{}
			}
			found[roleid] = propagate
		}
	}
	return found
}

// withPoolRoles adds the roles that a guest or storage inherits from its pools. They do
// not propagate, do not count beside NoAccess on the path itself, and NoAccess on a pool
// leaves nothing else.
func (w *world) withPoolRoles(roles map[string]bool, id identity, path string) map[string]bool {
	if _, none := roles["NoAccess"]; none {
		return roles
	}
	for roleid := range w.poolRoles(id, path) {
		if roleid == "NoAccess" {
			return map[string]bool{"NoAccess": false}
		}
		if _, ok := roles[roleid]; !ok {
			roles[roleid] = false
		}
	}
	return roles
}

// poolRoles are the roles that a guest or storage inherits from its pools.
func (w *world) poolRoles(id identity, path string) map[string]bool {
	roles := map[string]bool{}
	for _, p := range w.pools {
		_, name, _ := cutLast(path, "/")
		if path == vmPath(atoi(name)) && p.vms[atoi(name)] || path == "/storage/"+name && p.storages[name] {
			maps.Copy(roles, w.access.rolesOn(id, "/pool/"+p.name))
		}
	}
	return roles
}

// forgetGuest removes a guest that is gone from pool and access list
// (remove_vm_access in PVE/AccessControl.pm).
func (w *world) forgetGuest(g *guest) {
	for _, p := range w.pools {
		delete(p.vms, g.vmid)
	}
	delete(w.access.acl, vmPath(g.vmid))
	w.access.changed()
}

// pool is a resource pool.
type pool struct {
	name     string
	comment  *string
	vms      map[int]bool
	storages map[string]bool
}

// poolOf says in which pool each guest is.
func (w *world) poolOf() map[int]string {
	of := map[int]string{}
	for name, p := range w.pools {
		for vmid := range p.vms {
			of[vmid] = name
		}
	}
	return of
}

// builtinRealms are there from the start.
func builtinRealms() map[string]config {
	return map[string]config{
		"pam": {"type": "pam", "comment": "Linux PAM standard authentication"},
		"pve": {"type": "pve", "comment": "Proxmox VE authentication server"},
	}
}
