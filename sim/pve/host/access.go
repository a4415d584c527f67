package host

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// userOfCall finds the user of a call.
func userOfCall(c *core.Call) (*core.User, error) {
	if u := c.W.Access.Users[c.In["userid"]]; u != nil {
		return u, nil
	}
	return nil, perl.Fail("no such user ('%s')", c.In["userid"])
}

// shownUser puts the fields of a user that were ever set into an answer.
func shownUser(u *core.User, to map[string]any) map[string]any {
	to["enable"], to["expire"] = perl.BoolInt(u.Enable), u.Expire
	for key, value := range map[string]*string{"comment": u.Comment, "email": u.Email, "firstname": u.Firstname, "lastname": u.Lastname, "keys": u.Keys} {
		if value != nil {
			to[key] = *value
		}
	}
	if u.Email == nil && (u.Comment != nil || u.Keys != nil) {
		to["email"] = "" // user.cfg is columns: one that others follow comes back empty, not absent.
	}
	return to
}

func shownToken(t *core.Token, to map[string]any) map[string]any {
	to["expire"], to["privsep"] = t.Expire, perl.BoolInt(t.Privsep)
	if t.Comment != nil {
		to["comment"] = *t.Comment
	}
	return to
}

// apiUsers is GET /access/users: oneself, and who one may manage (PVE/API2/User.pm).
func apiUsers(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	manages := false
	for _, priv := range []string{"User.Modify", "Sys.Audit"} {
		manages = manages || c.Can("/access/groups", priv)
	}
	members := managedMembers(c)
	for _, userid := range slices.Sorted(maps.Keys(w.Access.Users)) {
		if !manages && c.Who.String() != userid && !members[userid] {
			continue
		}
		u := w.Access.Users[userid]
		if c.Has("enabled") && c.Flag("enabled") != u.Enable {
			continue
		}
		_, realm, _ := perl.CutLast(userid, "@")
		entry := shownUser(u, map[string]any{"userid": userid})
		if conf, ok := w.Access.Realms[realm]; ok {
			entry["realm-type"] = conf["type"]
		}
		if c.Flag("full") {
			entry["groups"] = strings.Join(groupsOf(w.Access, userid), ",")
			entry["tokens"] = nil // Of a user without tokens the member is there, and null.
			if tokens := tokenList(u); len(tokens) > 0 {
				entry["tokens"] = tokens
			}
		}
		list = append(list, entry)
	}
	return list, nil
}

// managedMembers are the users of those groups that the caller may manage or audit.
func managedMembers(c *core.Call) map[string]bool {
	members := map[string]bool{}
	for name, g := range c.W.Access.Groups {
		if c.Can("/access/groups/"+name, "User.Modify") || c.Can("/access/groups/"+name, "Sys.Audit") {
			maps.Copy(members, g.Users)
		}
	}
	return members
}

func tokenList(u *core.User) []map[string]any {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(u.Tokens)) {
		list = append(list, shownToken(u.Tokens[name], map[string]any{"tokenid": name}))
	}
	return list
}

func groupsOf(a *core.Access, userid string) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(a.Groups)) {
		if a.Groups[name].Users[userid] {
			names = append(names, name)
		}
	}
	return names
}

// apiCreateUser is POST /access/users.
func apiCreateUser(w *core.World, c *core.Call) (any, error) {
	userid := c.In["userid"]
	if err := core.ValidUser(userid); err != nil {
		return nil, err
	}
	if w.Access.Users[userid] != nil {
		return nil, perl.Fail("create user failed: user '%s' already exists", userid)
	}
	if err := w.NeedUserLock("create user failed"); err != nil {
		return nil, err
	}
	u := &core.User{Enable: true, Tokens: map[string]*core.Token{}}
	w.Access.Users[userid] = u
	updateUser(u, c)
	u.Password = c.In["password"]
	if err := setGroups(w.Access, userid, c.List("groups"), false); err != nil {
		delete(w.Access.Users, userid)
		return nil, perl.Fail("create user failed: %s", err)
	}
	w.Access.Changed()
	return nil, nil
}

// updateUser takes over the fields that a request has.
func updateUser(u *core.User, c *core.Call) {
	if c.Has("enable") {
		u.Enable = c.Flag("enable")
	}
	if c.Has("expire") {
		u.Expire = c.Num("expire", 0)
	}
	for key, field := range map[string]**string{"comment": &u.Comment, "email": &u.Email, "firstname": &u.Firstname, "lastname": &u.Lastname, "keys": &u.Keys} {
		if c.Has(key) {
			*field = kept(c.In[key])
		}
	}
}

// setGroups makes a user member of groups; of no others unless they are added.
func setGroups(a *core.Access, userid string, groups []string, add bool) error {
	for _, name := range groups {
		if a.Groups[name] == nil {
			return perl.Fail("no such group '%s'", name)
		}
	}
	for name, g := range a.Groups {
		if slices.Contains(groups, name) {
			g.Users[userid] = true
		} else if !add {
			delete(g.Users, userid)
		}
	}
	return nil
}

// apiGetUser is GET /access/users/{userid}.
func apiGetUser(w *core.World, c *core.Call, u *core.User) (any, error) {
	entry := shownUser(u, map[string]any{"groups": groupsOf(w.Access, c.In["userid"]), "tokens": nil})
	if len(u.Tokens) > 0 {
		tokens := map[string]any{}
		for name, t := range u.Tokens {
			tokens[name] = shownToken(t, map[string]any{})
		}
		entry["tokens"] = tokens
	}
	return entry, nil
}

// apiUpdateUser is PUT /access/users/{userid}.
func apiUpdateUser(w *core.World, c *core.Call, u *core.User) (any, error) {
	userid := c.In["userid"]
	if err := w.NeedUserLock("update user failed"); err != nil {
		return nil, err
	}
	updateUser(u, c)
	if c.Has("groups") {
		if err := setGroups(w.Access, userid, c.List("groups"), c.Flag("append")); err != nil {
			return nil, perl.Fail("update user failed: %s", err)
		}
	}
	w.Access.Changed()
	return nil, nil
}

// apiDeleteUser is DELETE /access/users/{userid}; its entries in the access
// list go with it.
func apiDeleteUser(w *core.World, c *core.Call, u *core.User) (any, error) {
	userid := c.In["userid"]
	if userid == "root@pam" {
		return nil, perl.Fail("Unable to delete 'root@pam'")
	}
	for path := range w.Access.ACL {
		w.Access.Revoke(path, "", sideUsers, userid)
		for name := range u.Tokens {
			w.Access.Revoke(path, "", sideTokens, userid+"!"+name)
		}
	}
	for _, g := range w.Access.Groups {
		delete(g.Users, userid)
	}
	delete(w.Access.Users, userid)
	w.Access.Changed()
	return nil, nil
}

func sideUsers(e *core.ACLEntry) map[string]map[string]bool  { return e.Users }
func sideTokens(e *core.ACLEntry) map[string]map[string]bool { return e.Tokens }
func sideGroups(e *core.ACLEntry) map[string]map[string]bool { return e.Groups }

// tokenOfCall finds the token of a call.
func tokenOfCall(c *core.Call) (*core.Token, error) {
	u, err := userOfCall(c)
	if err != nil {
		return nil, err
	}
	if t := u.Tokens[c.In["tokenid"]]; t != nil {
		return t, nil
	}
	return nil, perl.Fail("no such token '%s' for user '%s'", c.In["tokenid"], c.In["userid"])
}

// apiTokens is GET /access/users/{userid}/token.
func apiTokens(_ *core.World, _ *core.Call, u *core.User) (any, error) {
	return tokenList(u), nil
}

// apiGetToken is GET /access/users/{userid}/token/{tokenid}.
func apiGetToken(_ *core.World, _ *core.Call, t *core.Token) (any, error) {
	return shownToken(t, map[string]any{}), nil
}

// apiCreateToken is POST /access/users/{userid}/token/{tokenid}, which returns the secret only once. It echoes
// values as they were sent.
func apiCreateToken(w *core.World, c *core.Call, u *core.User) (any, error) {
	if u.Tokens[c.In["tokenid"]] != nil {
		return nil, perl.BadParam("tokenid", "Token already exists.")
	}
	if err := w.NeedUserLock("generating token failed"); err != nil {
		return nil, err
	}
	t := &core.Token{Secret: w.Rng.UUID(), Privsep: true}
	info := map[string]any{"privsep": 1}
	if err := updateToken(t, c, info); err != nil {
		return nil, err
	}
	u.Tokens[c.In["tokenid"]] = t
	w.Access.Changed()
	return map[string]any{"full-tokenid": c.In["userid"] + "!" + c.In["tokenid"], "value": t.Secret, "info": info}, nil
}

// updateToken takes over what a request says of a token, and shows that as it was sent: a
// number of a form is a text.
func updateToken(t *core.Token, c *core.Call, info map[string]any) error {
	for _, key := range []string{"expire", "privsep"} {
		if c.Has(key) {
			info[key] = c.Values[key]
		}
	}
	if c.Has("expire") {
		t.Expire = c.Num("expire", 0)
	}
	if c.Has("privsep") {
		t.Privsep = c.Flag("privsep")
	}
	switch comment := c.In["comment"]; { // That it may be emptied came with its delete.
	case comment != "" && (c.W.V9() || perl.IsTrue(comment)):
		t.Comment, info["comment"] = kept(comment), comment
	case c.Has("comment") && c.W.V9():
		t.Comment = nil
		delete(info, "comment")
	}
	for _, key := range c.List("delete") {
		if key != "comment" {
			return perl.Fail("updating token info failed: 400 Parameter verification failed.\ndelete: unknown option '%s'", key)
		}
		t.Comment = nil
		delete(info, "comment")
	}
	return nil
}

// apiUpdateToken is PUT /access/users/{userid}/token/{tokenid}; since libpve-access-control
// 9.1.0 it can make a new secret.
func apiUpdateToken(w *core.World, c *core.Call, t *core.Token) (any, error) {
	if err := w.NeedUserLock("updating token info failed"); err != nil {
		return nil, err
	}
	changed, info := *t, shownToken(t, map[string]any{})
	if err := updateToken(&changed, c, info); err != nil {
		return nil, err
	}
	if c.Flag("regenerate") {
		changed.Secret = w.Rng.UUID()
		info["value"], info["full-tokenid"] = changed.Secret, c.In["userid"]+"!"+c.In["tokenid"]
	}
	*t = changed
	w.Access.Changed()
	return info, nil
}

// apiDeleteToken is DELETE /access/users/{userid}/token/{tokenid}.
func apiDeleteToken(w *core.World, c *core.Call, _ *core.Token) (any, error) {
	for path := range w.Access.ACL {
		w.Access.Revoke(path, "", sideTokens, c.In["userid"]+"!"+c.In["tokenid"])
	}
	delete(w.Access.Users[c.In["userid"]].Tokens, c.In["tokenid"])
	w.Access.Changed()
	return nil, nil
}
