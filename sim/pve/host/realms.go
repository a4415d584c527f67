package host

import (
	"crypto/subtle"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

func realmDigest(a *core.Access) string { return perl.DigestOf(a.Realms) }

// apiDomains is GET /access/domains, which anybody may read: a login form needs it.
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
	entry := perl.TypedBy("POST /access/domains", conf)
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

// apiSetPassword is PUT /access/password. Whoever is not root has to confirm it with
// his own.
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
func apiUserFactors(*core.World, *core.Call, *core.User) (any, error) {
	return []any{}, nil
}

// apiFactor is GET, PUT and DELETE of /access/tfa/{userid}/{id}.
func apiFactor(_ *core.World, c *core.Call) (any, error) {
	return nil, &perl.APIError{Status: http.StatusNotFound, Message: "no such tfa entry '" + c.In["id"] + "'"}
}

// apiUserFactorTypes is GET /access/users/{userid}/tfa.
func apiUserFactorTypes(_ *core.World, c *core.Call, _ *core.User) (any, error) {
	if c.Flag("multiple") {
		return map[string]any{"types": []string{}}, nil
	}
	return map[string]any{}, nil
}

// apiUnlockFactors is PUT /access/users/{userid}/unlock-tfa: whether it was locked.
func apiUnlockFactors(*core.World, *core.Call, *core.User) (any, error) {
	return 0, nil
}

// Directories of users: realms of LDAP and Active Directory can be synchronized, and
// OpenID leads to a provider. There is none of them here, so what asks one fails as it
// does where a server does not answer.

// realmSyncFile describes the jobs of jobs.cfg that do so at times; the API table has
// their methods (PVE/API2/Jobs/RealmSync.pm).
func realmSyncFile() *core.SectionFile {
	return &core.SectionFile{
		Name: "jobs/realm-sync", Key: "id", Only: "realm-sync", Plain: true, Lock: "jobs_cfg", Flat: true,
		Kinds: map[string]string{"realm-sync": "realm! schedule enabled? comment? enable-new? remove-vanished? scope?"},
		Props: "enabled: boolean\nenable-new: boolean", Twice: "Job '%s' already exists", Missing: "No such job '%s'", Gone: "no such realm-sync job",
		Check: func(w *core.World, _ *core.Call, id string, conf, old perl.Config) error {
			if w.Sections["jobs"][id] != nil && old == nil {
				return perl.Fail("Job '%s' already exists", id)
			}
			if conf["enabled"] == "" {
				conf["enabled"] = "1"
			}
			realm, ok := w.Access.Realms[conf["realm"]]
			switch {
			case !ok:
				return perl.BadParam("realm", "No such realm '"+conf["realm"]+"'")
			case realm["type"] != "ldap" && realm["type"] != "ad":
				return perl.BadParam("realm", "Only LDAP/AD realms can be synced.")
			}
			return nil
		},
	}
}

// apiRealmJobs is GET /cluster/jobs/realm-sync.
func apiRealmJobs(w *core.World, _ *core.Call) (any, error) {
	f, list := realmSyncFile(), []map[string]any{}
	jobs := core.SectionsOf(w, f)
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		entry := f.Typed(jobs[id])
		entry["id"] = id
		if next, ok := perl.NextRun(jobs[id]["schedule"], w.Now); ok {
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// realmJob are the calls on one job.
func realmJob(then func(*core.SectionFile, *core.World, *core.Call) (any, error)) core.Handler {
	return func(w *core.World, c *core.Call) (any, error) {
		f := realmSyncFile()
		if core.SectionsOf(w, f)[c.In["id"]] == nil && c.Req.Method != http.MethodPut && c.Req.Method != http.MethodPost {
			return nil, perl.BadParam("id", "No such job '"+c.In["id"]+"'")
		}
		return then(f, w, c)
	}
}

func realmJobRoutes() map[string]core.Handler {
	const at = " /cluster/jobs/realm-sync/{id}"
	return map[string]core.Handler{
		"GET" + at: realmJob(func(f *core.SectionFile, w *core.World, c *core.Call) (any, error) {
			entry := f.Typed(core.SectionsOf(w, f)[c.In["id"]])
			entry["id"] = c.In["id"]
			return entry, nil
		}),
		"POST" + at:   realmJob((*core.SectionFile).APICreate),
		"PUT" + at:    realmJob((*core.SectionFile).APIUpdate),
		"DELETE" + at: realmJob((*core.SectionFile).APIDelete),
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

// apiOpenIDStart is POST /access/openid/auth-url, apiOpenIDLogin …/login.
func apiOpenIDStart(w *core.World, c *core.Call) (any, error) {
	conf, ok := w.Access.Realms[c.In["realm"]]
	switch {
	case !ok:
		return nil, perl.Fail("authentication domain '%s' does not exist", c.In["realm"])
	case conf["type"] != "openid":
		return nil, perl.Fail("wrong realm type (%s != openid)", conf["type"])
	}
	return nil, perl.Fail("Failed to discover OpenID Provider: Request failed")
}

func apiOpenIDLogin(*core.World, *core.Call) (any, error) {
	return nil, &perl.APIError{Status: 401, Message: "openid authentication failure; no pending authentication"}
}
