package access

import (
	"crypto/subtle"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

func realmDigest(a *core.Access) string { return property.DigestOf(a.Realms) }

// apiDomains is GET /access/domains, which anybody may read: a login form needs it.
func apiDomains(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	for _, realm := range slices.Sorted(maps.Keys(w.Access.Realms)) {
		conf := w.Access.Realms[realm]
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
func realmCall(c *core.Call, what string) (property.Config, error) {
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
	entry := property.TypedBy("POST /access/domains", conf)
	delete(entry, "password")
	entry["digest"] = realmDigest(w.Access)
	return entry, nil
}

// realmNeeds are the parameters without which a type of realm cannot be.
var realmNeeds = map[string][]string{
	"ad": {"domain", "server1"}, "ldap": {"base_dn", "server1", "user_attr"}, "openid": {"client-id", "issuer-url"},
}

// apiCreateDomain is POST /access/domains. Nobody of it can log in, for there is no
// server to ask.
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
	conf := property.Config{}
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

// apiSetPassword is PUT /access/password. Whoever is not root has to confirm it with
// his own.
func apiSetPassword(w *core.World, c *core.Call) (any, error) {
	userid := c.In["userid"]
	u := w.Access.Users[userid]
	if u == nil {
		return nil, perl.Fail("no such user ('%s')", userid)
	}
	if err := confirmed(c, userid); err != nil {
		return nil, err
	}
	if _, realm, _ := perl.CutLast(userid, "@"); realm != "pve" && realm != "pam" {
		return nil, perl.Fail("can't change password on auth type '%s'", w.Access.Realms[realm]["type"])
	}
	u.Password = c.In["password"]
	return nil, nil
}

// confirmed checks that whoever changes a user's password knows his own
// (reauth_user_for_user_modification in PVE/RPCEnvironment.pm); root need not.
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

// Nobody has a second factor here.

// apiUserFactors is GET /access/tfa/{userid}.
func apiUserFactors(w *core.World, c *core.Call) (any, error) {
	if w.Access.Users[c.In["userid"]] == nil {
		return nil, perl.Fail("no such user ('%s')", c.In["userid"])
	}
	return []any{}, nil
}

// apiFactor is GET, PUT and DELETE of /access/tfa/{userid}/{id}.
func apiFactor(_ *core.World, c *core.Call) (any, error) {
	return nil, &perl.APIError{Status: http.StatusNotFound, Message: "no such tfa entry '" + c.In["id"] + "'"}
}

// apiUserFactorTypes is GET /access/users/{userid}/tfa.
func apiUserFactorTypes(w *core.World, c *core.Call) (any, error) {
	if w.Access.Users[c.In["userid"]] == nil {
		return nil, perl.Fail("no such user ('%s')", c.In["userid"])
	}
	if c.Flag("multiple") {
		return map[string]any{"types": []string{}}, nil
	}
	return map[string]any{}, nil
}

// apiUnlockFactors is PUT /access/users/{userid}/unlock-tfa: whether it was locked.
func apiUnlockFactors(w *core.World, c *core.Call) (any, error) {
	if w.Access.Users[c.In["userid"]] == nil {
		return nil, perl.Fail("no such user ('%s')", c.In["userid"])
	}
	return 0, nil
}
