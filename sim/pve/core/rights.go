package core

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Access is user.cfg: users, groups, roles, the access list and pools.
type Access struct {
	Key    string // Signs tickets.
	Users  map[string]*User
	Realms map[string]perl.Config
	Groups map[string]*Group
	Roles  map[string]*Role
	ACL    map[string]*ACLEntry // By path.
	Pools  map[string]*Pool

	// known caches privileges by caller and path; nil after any change of the
	// above or of a pool.
	known map[Identity]map[string]map[string]bool
	// summaries caches the JSON of a caller's privileges on all paths, just as long: every pass of a client begins
	// with it, and it is the longest response.
	summaries map[Identity]json.RawMessage
}

// User is a user; what is nil was never set.
type User struct {
	Enable              bool
	Expire              int
	Password            string
	Comment, Email      *string // nil when never set.
	Firstname, Lastname *string
	Keys                *string
	Tokens              map[string]*Token
}

// Token is an API token of a user.
type Token struct {
	Secret  string
	Comment *string
	Expire  int
	Privsep bool
}

// Group is a group of users.
type Group struct {
	Comment *string
	Users   map[string]bool
}

// Role is a set of privileges.
type Role struct {
	Privs   map[string]bool
	Builtin bool
}

// ACLEntry has the grants on one path: role to whether it propagates, by
// who has it.
type ACLEntry struct {
	Users, Tokens, Groups map[string]map[string]bool
}

func newAccess(c *Config) *Access {
	a := &Access{
		Pools:  map[string]*Pool{},
		Key:    c.Token,
		Realms: builtinRealms(), Users: map[string]*User{}, Groups: map[string]*Group{}, Roles: builtinRoles(c.Version != "8.4"), ACL: map[string]*ACLEntry{},
	}
	parts := TokenForm.FindStringSubmatch(c.Token)
	if parts == nil {
		panic("core: token is not of the form user@realm!name=secret")
	}
	c.Password = cmp.Or(c.Password, parts[3])
	a.Users["root@pam"] = &User{Enable: true, Password: c.Password, Tokens: map[string]*Token{}}
	owner := a.Users[parts[1]]
	if owner == nil {
		owner = &User{Enable: true, Tokens: map[string]*Token{}}
		a.Users[parts[1]] = owner
		a.Grant("/", "Administrator", true, func(e *ACLEntry) map[string]map[string]bool { return e.Users }, parts[1])
	}
	owner.Tokens[parts[2]] = &Token{Secret: parts[3]}
	return a
}

// builtinRoles are those of PVE/AccessControl.pm (create_roles). PVE 9 has no
// VM.Monitor; its successors speak about the guest agent alone.
func builtinRoles(v9 bool) map[string]*Role {
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
	roles := map[string]*Role{}
	for name, privs := range map[string]string{
		"NoAccess": "", "PVEAuditor": auditor,
		"PVEVMUser": vmUser, "PVEVMAdmin": vmAdmin, "PVETemplateUser": "VM.Audit VM.Clone",
		"PVEDatastoreUser": storeUser, "PVEDatastoreAdmin": storeAdmin,
		"PVEUserAdmin": users, "PVESysAdmin": system, "PVESDNUser": "SDN.Audit SDN.Use", "PVESDNAdmin": network,
		"PVEMappingUser": mapping, "PVEMappingAdmin": mapping + " Mapping.Modify",
		"PVEPoolUser": "Pool.Audit", "PVEPoolAdmin": pools, "PVEAdmin": admin,
		"Administrator": admin + " Mapping.Modify Permissions.Modify Realm.Allocate Sys.AccessNetwork Sys.Incoming Sys.Modify Sys.PowerMgmt",
	} {
		r := &Role{Privs: map[string]bool{}, Builtin: true}
		for priv := range strings.FieldsSeq(privs) {
			r.Privs[priv] = true
		}
		roles[name] = r
	}
	return roles
}

// Changed forgets what was computed from the old state.
func (a *Access) Changed() { a.known, a.summaries = nil, nil }

// Summary is the JSON of a caller's privileges on all paths. The result of summarize is cached until something
// changes, so it may only depend on this state.
func (a *Access) Summary(id Identity, summarize func() any) json.RawMessage {
	if text, ok := a.summaries[id]; ok {
		return text
	}
	text, err := json.Marshal(summarize())
	if err != nil {
		panic("core: privileges that are no JSON: " + err.Error()) // A mistake of the caller.
	}
	if a.summaries == nil {
		a.summaries = map[Identity]json.RawMessage{}
	}
	a.summaries[id] = text
	return text
}

// ACLPaths lists the paths that have entries, sorted.
func (a *Access) ACLPaths() []string { return slices.Sorted(maps.Keys(a.ACL)) }

// Grant grants a role on a path.
func (a *Access) Grant(path, roleid string, propagate bool, side func(*ACLEntry) map[string]map[string]bool, who string) {
	e := a.ACL[path]
	if e == nil {
		e = &ACLEntry{Users: map[string]map[string]bool{}, Tokens: map[string]map[string]bool{}, Groups: map[string]map[string]bool{}}
		a.ACL[path] = e
	}
	if side(e)[who] == nil {
		side(e)[who] = map[string]bool{}
	}
	side(e)[who][roleid] = propagate
	a.Changed()
}

// Revoke revokes a role; an empty role revokes all.
func (a *Access) Revoke(path, roleid string, side func(*ACLEntry) map[string]map[string]bool, who string) {
	e := a.ACL[path]
	if e == nil {
		return
	}
	if roles := side(e)[who]; roles != nil {
		delete(roles, roleid)
		if len(roles) == 0 || roleid == "" {
			delete(side(e), who)
		}
	}
	if len(e.Users)+len(e.Tokens)+len(e.Groups) == 0 {
		delete(a.ACL, path)
	}
	a.Changed()
}

// Allowed reports whether a caller has a privilege on a path.
func (a *Access) Allowed(id Identity, path, priv string) bool {
	if !ACLPath().MatchString(path) {
		return false
	}
	_, ok := a.Privileges(id, path)[priv]
	return ok
}

// Privileges are those of a caller on a path, each with whether it propagates (permissions and compile_acl_path in
// PVE/RPCEnvironment.pm). The result is shared and read-only.
func (a *Access) Privileges(id Identity, path string) map[string]bool {
	u := a.Users[id.User]
	if id == (Identity{User: "root@pam"}) {
		return a.Roles["Administrator"].Privs
	}
	if u == nil {
		return nil
	}
	var t *Token
	if id.Token != "" {
		if t = u.Tokens[id.Token]; t == nil {
			return nil
		}
		if !t.Privsep {
			return a.Privileges(Identity{User: id.User}, path)
		}
	}
	if a.known == nil {
		a.known = map[Identity]map[string]map[string]bool{}
	}
	if a.known[id] == nil {
		a.known[id] = map[string]map[string]bool{}
	}
	if privs, ok := a.known[id][path]; ok {
		return privs
	}
	privs := map[string]bool{}
	for roleid, propagate := range a.withPoolRoles(a.rolesOn(id, path), id, path) {
		if r := a.Roles[roleid]; r != nil {
			for priv := range r.Privs {
				privs[priv] = privs[priv] || propagate
			}
		}
	}
	if t != nil {
		owner := a.Privileges(Identity{User: id.User}, path)
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
func (a *Access) rolesOn(id Identity, path string) map[string]bool {
	roles := map[string]bool{}
	apply := func(entry string, final bool) {
		e := a.ACL[entry]
		if e == nil {
			return
		}
		own := e.Users[id.User]
		if id.Token != "" {
			own = e.Tokens[id.String()]
		}
		found := effective(own, final)
		if found == nil && id.Token == "" {
			for name, granted := range e.Groups {
				if g := a.Groups[name]; g != nil && g.Users[id.User] {
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
	prefixes := Prefixes(path)
	for i, prefix := range prefixes {
		apply(prefix, i == len(prefixes)-1)
	}
	if propagate, none := roles["NoAccess"]; none {
		return map[string]bool{"NoAccess": propagate}
	}
	return roles
}

// Prefixes are a path and all above it, from the root down. Entries at the root do not apply to a path that does
// not begin there (roles in PVE/AccessControl.pm).
func Prefixes(path string) []string {
	var list []string
	if strings.HasPrefix(path, "/") {
		list = append(list, "/")
	}
	parts := perl.Segments(path)
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
func (a *Access) withPoolRoles(roles map[string]bool, id Identity, path string) map[string]bool {
	if _, none := roles["NoAccess"]; none {
		return roles
	}
	for roleid := range a.poolRoles(id, path) {
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
func (a *Access) poolRoles(id Identity, path string) map[string]bool {
	roles := map[string]bool{}
	for _, p := range a.Pools {
		_, name, _ := perl.CutLast(path, "/")
		if path == VMPath(perl.Atoi(name)) && p.Vms[perl.Atoi(name)] || path == "/storage/"+name && p.Storages[name] {
			maps.Copy(roles, a.rolesOn(id, "/pool/"+p.Name))
		}
	}
	return roles
}

// forgetGuest removes a guest that is gone from pool and access list
// (remove_vm_access in PVE/AccessControl.pm).
func (a *Access) forgetGuest(g *Guest) {
	for _, p := range a.Pools {
		delete(p.Vms, g.Vmid)
	}
	delete(a.ACL, VMPath(g.Vmid))
	a.Changed()
}

// Pool is a resource pool.
type Pool struct {
	Name     string
	Comment  *string
	Vms      map[int]bool
	Storages map[string]bool
}

// PoolOf says in which pool each guest is.
func (a *Access) PoolOf() map[int]string {
	of := map[int]string{}
	for name, p := range a.Pools {
		for vmid := range p.Vms {
			of[vmid] = name
		}
	}
	return of
}

// builtinRealms are there from the start.
func builtinRealms() map[string]perl.Config {
	return map[string]perl.Config{
		"pam": {"type": "pam", "comment": "Linux PAM standard authentication"},
		"pve": {"type": "pve", "comment": "Proxmox VE authentication server"},
	}
}
