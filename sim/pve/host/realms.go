package host

import (
	"crypto/subtle"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

func realmDigest(a *core.Access) string { return perl.DigestOf(a.Realms) }

// apiDomains is GET /access/domains, which needs no login: a login form reads it.
func apiDomains(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	for realm, conf := range perl.Sorted(w.Access.Realms) {
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
func realmCall(c *core.Call, what string) (perl.Config, error) {
	conf, ok := c.W.Access.Realms[c.In["realm"]]
	if !ok {
		return nil, perl.Fail("%sdomain '%s' does not exist", what, c.In["realm"])
	}
	return conf, nil
}

// apiGetDomain is GET /access/domains/{realm}.
func apiGetDomain(w *core.World, c *core.Call) (any, error) {
	conf, err := realmCall(c, "")
	if err != nil {
		return nil, err
	}
	entry := conf.TypedBy("POST /access/domains")
	delete(entry, "password")
	entry["digest"] = realmDigest(w.Access)
	return entry, nil
}

// realmNeeds are the parameters without which a type of realm cannot be.
var realmNeeds = map[string][]string{
	"ad": {"domain", "server1"}, "ldap": {"base_dn", "server1", "user_attr"}, "openid": {"client-id", "issuer-url"},
}

// apiCreateDomain is POST /access/domains. Its users cannot log in, for there is no server to ask.
func apiCreateDomain(w *core.World, c *core.Call) (any, error) {
	realm, kind := c.In["realm"], c.In["type"]
	if kind == "pam" || kind == "pve" {
		return nil, perl.Fail("add auth server failed: unable to create builtin type '%s'", kind)
	}
	if err := w.NeedUserLock("add auth server failed"); err != nil {
		return nil, err
	}
	if _, there := w.Access.Realms[realm]; there {
		return nil, perl.Fail("add auth server failed: domain '%s' already exists", realm)
	}
	for _, name := range realmNeeds[kind] {
		if !c.Has(name) {
			return nil, perl.Fail("add auth server failed: missing value for required option '%s'", name)
		}
	}
	conf := perl.Config{}
	c.Section(conf, "realm", "check-connection")
	w.Access.Realms[realm] = conf
	return nil, nil
}

// apiUpdateDomain is PUT /access/domains/{realm}.
func apiUpdateDomain(w *core.World, c *core.Call) (any, error) {
	if err := c.Modified(realmDigest(w.Access)); err != nil {
		return nil, err
	}
	conf, err := realmCall(c, "update auth server failed: ")
	if err == nil {
		err = w.NeedUserLock("update auth server failed")
	}
	if err == nil {
		c.Section(conf, "realm", "check-connection")
	}
	return nil, err
}

// apiDeleteDomain is DELETE /access/domains/{realm}.
func apiDeleteDomain(w *core.World, c *core.Call) (any, error) {
	_, err := realmCall(c, "delete auth server failed: ")
	if err == nil {
		err = w.NeedUserLock("delete auth server failed")
	}
	if err == nil {
		delete(w.Access.Realms, c.In["realm"])
	}
	return nil, err
}

// apiSetPassword is PUT /access/password. Users other than root have to confirm it with their own.
func apiSetPassword(w *core.World, c *core.Call, u *core.User) (any, error) {
	userid := c.In["userid"]
	if err := confirmed(c, userid); err != nil {
		return nil, err
	}
	if _, realm, _ := perl.CutLast(userid, "@"); realm != "pve" && realm != "pam" {
		return nil, perl.Fail("can't change password on auth type '%s'", w.Access.Realms[realm]["type"])
	}
	u.Password = c.In["password"]
	return nil, nil
}

// confirmed checks the caller's own password for a change of a user's password (reauth_user_for_user_modification
// in PVE/RPCEnvironment.pm); root needs none.
func confirmed(c *core.Call, userid string) error {
	switch own := c.W.Access.Users[c.Who.User]; {
	case c.Root():
		return nil
	case userid == "root@pam":
		return perl.Forbidden("")
	case !c.Has("confirmation-password"):
		return perl.BadParam("confirmation-password", "password is required to modify user")
	case subtle.ConstantTimeCompare([]byte(own.Password), []byte(c.In["confirmation-password"])) == 1:
		return nil
	case strings.HasSuffix(c.Who.User, "@pam"):
		return perl.Fail("Authentication failure")
	default:
		return perl.Fail("invalid credentials")
	}
}

// apiSyncRealm is POST /access/domains/{realm}/sync: a task that finds no server.
func apiSyncRealm(w *core.World, c *core.Call) (any, error) {
	realm := c.In["realm"]
	conf, ok := w.Access.Realms[realm]
	if !ok {
		return nil, perl.BadParam("realm", "Realm does not exist.")
	}
	if conf["type"] != "ldap" && conf["type"] != "ad" {
		return nil, perl.Fail("Cannot sync realm type '%s'! Only LDAP/AD realms can be synced.", conf["type"])
	}
	if !c.Has("scope") && perl.OptionOf(conf["sync-defaults-options"], "scope") == "" {
		return nil, perl.BadParam("scope", "Not passed as parameter and not defined in realm default sync options.")
	}
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "auth-realm-sync", ID: realm, Begin: func(t *core.Task) error {
		t.Logf("starting sync for realm %s", realm)
		return nil
	}, End: func(*core.Task) error {
		return perl.Fail("unable to connect to LDAP server: %s", conf["server1"])
	}}), nil
}
