package pvesim

import (
	"crypto/subtle"
	"maps"
	"net/http"
	"slices"
	"strings"
)

func (a *access) realmDigest() string { return digestOf(a.realms) }

// apiDomains is GET /access/domains, which anybody may read: a login form needs it.
func apiDomains(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	for _, realm := range slices.Sorted(maps.Keys(w.access.realms)) {
		conf := w.access.realms[realm]
		entry := map[string]any{"realm": realm, "type": conf["type"]}
		if conf["comment"] != "" {
			entry["comment"] = conf["comment"]
		}
		if conf["default"] == "1" {
			entry["default"] = 1
		}
		list = append(list, entry)
	}
	return list, nil
}

// realmCall finds the realm of a call.
func (c *call) realmCall(what string) (config, error) {
	conf, ok := c.w.access.realms[c.in["realm"]]
	if !ok {
		return nil, fail("%sdomain '%s' does not exist", what, c.in["realm"])
	}
	return conf, nil
}

// apiGetDomain is GET /access/domains/{realm}.
func apiGetDomain(w *world, c *call) (any, error) {
	conf, err := c.realmCall("")
	if err != nil {
		return nil, err
	}
	entry := typedBy("POST /access/domains", conf)
	delete(entry, "password")
	entry["digest"] = w.access.realmDigest()
	return entry, nil
}

// realmNeeds are the parameters without which a type of realm cannot be.
var realmNeeds = map[string][]string{
	"ad": {"domain", "server1"}, "ldap": {"base_dn", "server1", "user_attr"}, "openid": {"client-id", "issuer-url"},
}

// apiCreateDomain is POST /access/domains. Nobody of it can log in, for there is no
// server to ask.
func apiCreateDomain(w *world, c *call) (any, error) {
	realm, kind := c.in["realm"], c.in["type"]
	if kind == "pam" || kind == "pve" {
		return nil, fail("add auth server failed: unable to create builtin type '%s'", kind)
	}
	if err := w.needUserLock("add auth server failed"); err != nil {
		return nil, err
	}
	if _, there := w.access.realms[realm]; there {
		return nil, fail("add auth server failed: domain '%s' already exists", realm)
	}
	for _, name := range realmNeeds[kind] {
		if !c.has(name) {
			return nil, fail("add auth server failed: missing value for required option '%s'", name)
		}
	}
	conf := config{}
	c.section(conf, "realm", "check-connection")
	w.access.realms[realm] = conf
	return nil, nil
}

// apiUpdateDomain is PUT /access/domains/{realm}.
func apiUpdateDomain(w *world, c *call) (any, error) {
	if err := c.modified(w.access.realmDigest()); err != nil {
		return nil, err
	}
	conf, err := c.realmCall("update auth server failed: ")
	if err == nil {
		err = w.needUserLock("update auth server failed")
	}
	if err == nil {
		c.section(conf, "realm", "check-connection")
	}
	return nil, err
}

// apiDeleteDomain is DELETE /access/domains/{realm}.
func apiDeleteDomain(w *world, c *call) (any, error) {
	_, err := c.realmCall("delete auth server failed: ")
	if err == nil {
		err = w.needUserLock("delete auth server failed")
	}
	if err == nil {
		delete(w.access.realms, c.in["realm"])
	}
	return nil, err
}

// apiSetPassword is PUT /access/password. Whoever is not root has to confirm it with
// his own.
func apiSetPassword(w *world, c *call) (any, error) {
	userid := c.in["userid"]
	u := w.access.users[userid]
	if u == nil {
		return nil, fail("no such user ('%s')", userid)
	}
	if err := c.confirmed(userid); err != nil {
		return nil, err
	}
	if _, realm, _ := cutLast(userid, "@"); realm != "pve" && realm != "pam" {
		return nil, fail("can't change password on auth type '%s'", w.access.realms[realm]["type"])
	}
	u.password = c.in["password"]
	return nil, nil
}

// confirmed checks that whoever changes a user's password knows his own
// (reauth_user_for_user_modification in PVE/RPCEnvironment.pm); root need not.
func (c *call) confirmed(userid string) error {
	switch own := c.w.access.users[c.who.user]; {
	case c.root():
		return nil
	case userid == "root@pam":
		return forbidden("")
	case !c.has("confirmation-password"):
		return badParam("confirmation-password", "password is required to modify user")
	case subtle.ConstantTimeCompare([]byte(own.password), []byte(c.in["confirmation-password"])) == 1:
		return nil
	case strings.HasSuffix(c.who.user, "@pam"):
		return fail("Authentication failure")
	default:
		return fail("invalid credentials")
	}
}

// Nobody has a second factor here.

// apiUserFactors is GET /access/tfa/{userid}.
func apiUserFactors(w *world, c *call) (any, error) {
	if w.access.users[c.in["userid"]] == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	return []any{}, nil
}

// apiFactor is GET, PUT and DELETE of /access/tfa/{userid}/{id}.
func apiFactor(_ *world, c *call) (any, error) {
	return nil, &apiError{status: http.StatusNotFound, message: "no such tfa entry '" + c.in["id"] + "'"}
}

// apiUserFactorTypes is GET /access/users/{userid}/tfa.
func apiUserFactorTypes(w *world, c *call) (any, error) {
	if w.access.users[c.in["userid"]] == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	if c.flag("multiple") {
		return map[string]any{"types": []string{}}, nil
	}
	return map[string]any{}, nil
}

// apiUnlockFactors is PUT /access/users/{userid}/unlock-tfa: whether it was locked.
func apiUnlockFactors(w *world, c *call) (any, error) {
	if w.access.users[c.in["userid"]] == nil {
		return nil, fail("no such user ('%s')", c.in["userid"])
	}
	return 0, nil
}
