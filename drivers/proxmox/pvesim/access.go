package pvesim

import (
	"maps"
	"slices"
	"strings"
)

func apiAccessIndex(w *world, _ *call) (any, error) {
	names := []string{"users", "groups", "roles", "acl", "domains", "openid", "tfa", "ticket", "password"}
	if w.v9() {
		names = append(names, "vncticket")
	}
	return subdirs("subdir", names...), nil
}

// shown puts the fields of a user that were ever set into an answer.
func (u *user) shown(to map[string]any) map[string]any {
	to["enable"], to["expire"] = boolInt(u.enable), u.expire
	for key, value := range map[string]*string{"comment": u.comment, "email": u.email, "firstname": u.firstname, "lastname": u.lastname, "keys": u.keys} {
		if value != nil {
			to[key] = *value
		}
	}
	if u.email == nil && (u.comment != nil || u.keys != nil) {
		to["email"] = "" // user.cfg is columns: one that others follow comes back empty, not absent.
	}
	return to
}

func (t *token) shown(to map[string]any) map[string]any {
	to["expire"], to["privsep"] = t.expire, boolInt(t.privsep)
	if t.comment != nil {
		to["comment"] = *t.comment
	}
	return to
}

// apiUsers is GET /access/users: oneself, and who one may manage (PVE/API2/User.pm).
func apiUsers(w *world, c *call) (any, error) {
	list := []map[string]any{}
	manages := false
	for _, priv := range []string{"User.Modify", "Sys.Audit"} {
		manages = manages || c.can("/access/groups", priv)
	}
	members := c.managedMembers()
	for _, userid := range slices.Sorted(maps.Keys(w.access.users)) {
		if !manages && c.who.String() != userid && !members[userid] {
			continue
		}
		u := w.access.users[userid]
		if c.has("enabled") && c.flag("enabled") != u.enable {
			continue
		}
		_, realm, _ := cutLast(userid, "@")
		entry := u.shown(map[string]any{"userid": userid})
		if conf, ok := w.access.realms[realm]; ok {
			entry["realm-type"] = conf["type"]
		}
		if c.flag("full") {
			entry["groups"] = strings.Join(w.access.groupsOf(userid), ",")
			entry["tokens"] = nil // Of a user without tokens the member is there, and null.
			if tokens := u.tokenList(); len(tokens) > 0 {
				entry["tokens"] = tokens
			}
		}
		list = append(list, entry)
	}
	return list, nil
}

// managedMembers are the users of those groups that the caller may manage or audit.
func (c *call) managedMembers() map[string]bool {
	members := map[string]bool{}
	for name, g := range c.w.access.groups {
		if c.can("/access/groups/"+name, "User.Modify") || c.can("/access/groups/"+name, "Sys.Audit") {
			maps.Copy(members, g.users)
		}
	}
	return members
}

func (u *user) tokenList() []map[string]any {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(u.tokens)) {
		list = append(list, u.tokens[name].shown(map[string]any{"tokenid": name}))
	}
	return list
}

func (a *access) groupsOf(userid string) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(a.groups)) {
		if a.groups[name].users[userid] {
			names = append(names, name)
		}
	}
	return names
}

// apiCreateUser is POST /access/users.
func apiCreateUser(w *world, c *call) (any, error) {
	userid := c.in["userid"]
	if err := validUser(userid); err != nil {
		return nil, err
	}
	if w.access.users[userid] != nil {
		return nil, fail("create user failed: user '%s' already exists", userid)
	}
	if err := w.needUserLock("create user failed"); err != nil {
		return nil, err
	}
	u := &user{enable: true, tokens: map[string]*token{}}
	w.access.users[userid] = u
	u.update(c)
	u.password = c.in["password"]
	if err := w.access.setGroups(userid, c.list("groups"), false); err != nil {
		delete(w.access.users, userid)
		return nil, fail("create user failed: %s", err)
	}
	w.access.changed()
	return nil, nil
}

// update takes over the fields that a request has.
func (u *user) update(c *call) {
	if c.has("enable") {
		u.enable = c.flag("enable")
	}
	if c.has("expire") {
		u.expire = c.num("expire", 0)
	}
	for key, field := range map[string]**string{"comment": &u.comment, "email": &u.email, "firstname": &u.firstname, "lastname": &u.lastname, "keys": &u.keys} {
		if c.has(key) {
			*field = kept(c.in[key])
		}
	}
}

// setGroups makes a user member of groups; of no others unless they are added.
func (a *access) setGroups(userid string, groups []string, add bool) error {
	for _, name := range groups {
		if a.groups[name] == nil {
			return fail("no such group '%s'", name)
		}
	}
	for name, g := range a.groups {
		if slices.Contains(groups, name) {
			g.users[userid] = true
		} else if !add {
			delete(g.users, userid)
		}
	}
	return nil
}

// apiGetUser is GET /access/users/{userid}.
func apiGetUser(w *world, c *call) (any, error) {
	u := w.access.users[c.in["userid"]]
	if u == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	entry := u.shown(map[string]any{"groups": w.access.groupsOf(c.in["userid"]), "tokens": nil})
	if len(u.tokens) > 0 {
		tokens := map[string]any{}
		for name, t := range u.tokens {
			tokens[name] = t.shown(map[string]any{})
		}
		entry["tokens"] = tokens
	}
	return entry, nil
}

// apiUpdateUser is PUT /access/users/{userid}.
func apiUpdateUser(w *world, c *call) (any, error) {
	userid := c.in["userid"]
	u := w.access.users[userid]
	if u == nil {
		return nil, fail("no such user ('%s')", userid)
	}
	if err := w.needUserLock("update user failed"); err != nil {
		return nil, err
	}
	u.update(c)
	if c.has("groups") {
		if err := w.access.setGroups(userid, c.list("groups"), c.flag("append")); err != nil {
			return nil, fail("update user failed: %s", err)
		}
	}
	w.access.changed()
	return nil, nil
}

// apiDeleteUser is DELETE /access/users/{userid}; its entries in the access
// list go with it.
func apiDeleteUser(w *world, c *call) (any, error) {
	userid := c.in["userid"]
	u := w.access.users[userid]
	if u == nil {
		return nil, fail("no such user ('%s')", userid)
	}
	if userid == "root@pam" {
		return nil, fail("Unable to delete 'root@pam'")
	}
	for path := range w.access.acl {
		w.access.revoke(path, "", sideUsers, userid)
		for name := range u.tokens {
			w.access.revoke(path, "", sideTokens, userid+"!"+name)
		}
	}
	for _, g := range w.access.groups {
		delete(g.users, userid)
	}
	delete(w.access.users, userid)
	w.access.changed()
	return nil, nil
}

func sideUsers(e *aclEntry) map[string]map[string]bool  { return e.users }
func sideTokens(e *aclEntry) map[string]map[string]bool { return e.tokens }
func sideGroups(e *aclEntry) map[string]map[string]bool { return e.groups }

// callToken finds the token of a call.
func (c *call) callToken() (*user, *token, error) {
	u := c.w.access.users[c.in["userid"]]
	if u == nil {
		return nil, nil, fail("no such user ('%s')", c.in["userid"])
	}
	t := u.tokens[c.in["tokenid"]]
	if t == nil {
		return u, nil, fail("no such token '%s' for user '%s'", c.in["tokenid"], c.in["userid"])
	}
	return u, t, nil
}

// apiTokens is GET /access/users/{userid}/token.
func apiTokens(w *world, c *call) (any, error) {
	u := w.access.users[c.in["userid"]]
	if u == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	return u.tokenList(), nil
}

// apiGetToken is GET /access/users/{userid}/token/{tokenid}.
func apiGetToken(_ *world, c *call) (any, error) {
	_, t, err := c.callToken()
	if err != nil {
		return nil, err
	}
	return t.shown(map[string]any{}), nil
}

// apiCreateToken is POST /access/users/{userid}/token/{tokenid}: the one time
// that the secret is told. What it echoes it echoes as it was sent.
func apiCreateToken(w *world, c *call) (any, error) {
	u, t, _ := c.callToken()
	if u == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	if t != nil {
		return nil, badParam("tokenid", "Token already exists.")
	}
	if err := w.needUserLock("generating token failed"); err != nil {
		return nil, err
	}
	t = &token{secret: w.uuid(), privsep: true}
	info := map[string]any{"privsep": 1}
	if err := t.update(c, info); err != nil {
		return nil, err
	}
	u.tokens[c.in["tokenid"]] = t
	w.access.changed()
	return map[string]any{"full-tokenid": c.in["userid"] + "!" + c.in["tokenid"], "value": t.secret, "info": info}, nil
}

// update takes over what a request says of a token, and shows that as it was sent: a
// number of a form is a text.
func (t *token) update(c *call, info map[string]any) error {
	for _, key := range []string{"expire", "privsep"} {
		if c.has(key) {
			info[key] = c.values[key]
		}
	}
	if c.has("expire") {
		t.expire = c.num("expire", 0)
	}
	if c.has("privsep") {
		t.privsep = c.flag("privsep")
	}
	switch comment := c.in["comment"]; { // That it may be emptied came with its delete.
	case comment != "" && (c.w.v9() || isTrue(comment)):
		t.comment, info["comment"] = kept(comment), comment
	case c.has("comment") && c.w.v9():
		t.comment = nil
		delete(info, "comment")
	}
	for _, key := range c.list("delete") {
		if key != "comment" {
			return fail("updating token info failed: 400 Parameter verification failed.\ndelete: unknown option '%s'", key)
		}
		t.comment = nil
		delete(info, "comment")
	}
	return nil
}

// apiUpdateToken is PUT /access/users/{userid}/token/{tokenid}; since libpve-access-control
// 9.1.0 it can make a new secret.
func apiUpdateToken(w *world, c *call) (any, error) {
	_, t, err := c.callToken()
	if err != nil {
		return nil, err
	}
	if err := w.needUserLock("updating token info failed"); err != nil {
		return nil, err
	}
	changed, info := *t, t.shown(map[string]any{})
	if err := changed.update(c, info); err != nil {
		return nil, err
	}
	if c.flag("regenerate") {
		changed.secret = w.uuid()
		info["value"], info["full-tokenid"] = changed.secret, c.in["userid"]+"!"+c.in["tokenid"]
	}
	*t = changed
	w.access.changed()
	return info, nil
}

// apiDeleteToken is DELETE /access/users/{userid}/token/{tokenid}.
func apiDeleteToken(w *world, c *call) (any, error) {
	u, _, err := c.callToken()
	if err != nil {
		return nil, err
	}
	for path := range w.access.acl {
		w.access.revoke(path, "", sideTokens, c.in["userid"]+"!"+c.in["tokenid"])
	}
	delete(u.tokens, c.in["tokenid"])
	w.access.changed()
	return nil, nil
}
