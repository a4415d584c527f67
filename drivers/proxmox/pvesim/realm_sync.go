package pvesim

import (
	"maps"
	"slices"
)

// Directories of users: realms of LDAP and Active Directory can be synchronized, and
// OpenID leads to a provider. There is none of them here, so what asks one fails as it
// does where a server does not answer.

// realmSyncFile describes the jobs of jobs.cfg that do so at times; the API table has
// their methods (PVE/API2/Jobs/RealmSync.pm).
func realmSyncFile() *sectionFile {
	return &sectionFile{
		name: "jobs/realm-sync", key: "id", only: "realm-sync", plain: true, lock: "jobs_cfg", flat: true,
		kinds: map[string]string{"realm-sync": "realm! schedule enabled? comment? enable-new? remove-vanished? scope?"},
		props: "enabled: boolean\nenable-new: boolean", twice: "Job '%s' already exists", missing: "No such job '%s'", gone: "no such realm-sync job",
		check: func(w *world, _ *call, id string, conf, old config) error {
			if w.sections["jobs"][id] != nil && old == nil {
				return fail("Job '%s' already exists", id)
			}
			if conf["enabled"] == "" {
				conf["enabled"] = "1"
			}
			realm, ok := w.access.realms[conf["realm"]]
			switch {
			case !ok:
				return badParam("realm", "No such realm '"+conf["realm"]+"'")
			case realm["type"] != "ldap" && realm["type"] != "ad":
				return badParam("realm", "Only LDAP/AD realms can be synced.")
			}
			return nil
		},
	}
}

// apiRealmJobs is GET /cluster/jobs/realm-sync.
func apiRealmJobs(w *world, _ *call) (any, error) {
	f, list := realmSyncFile(), []map[string]any{}
	jobs := w.sectionsOf(f)
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		entry := f.typed(jobs[id])
		entry["id"] = id
		if next, ok := nextRun(jobs[id]["schedule"], w.now); ok {
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// realmJob are the calls on one job.
func realmJob(then func(*sectionFile, *world, *call) (any, error)) handler {
	return func(w *world, c *call) (any, error) {
		f := realmSyncFile()
		if w.sectionsOf(f)[c.in["id"]] == nil && c.req.method != "PUT" && c.req.method != "POST" {
			return nil, badParam("id", "No such job '"+c.in["id"]+"'")
		}
		return then(f, w, c)
	}
}

func realmJobRoutes() map[string]handler {
	const at = " /cluster/jobs/realm-sync/{id}"
	return map[string]handler{
		"GET" + at: realmJob(func(f *sectionFile, w *world, c *call) (any, error) {
			entry := f.typed(w.sectionsOf(f)[c.in["id"]])
			entry["id"] = c.in["id"]
			return entry, nil
		}),
		"POST" + at:   realmJob((*sectionFile).apiCreate),
		"PUT" + at:    realmJob((*sectionFile).apiUpdate),
		"DELETE" + at: realmJob((*sectionFile).apiDelete),
	}
}

// apiSyncRealm is POST /access/domains/{realm}/sync: a task that finds no server.
func apiSyncRealm(w *world, c *call) (any, error) {
	realm := c.in["realm"]
	conf, ok := w.access.realms[realm]
	if !ok {
		return nil, badParam("realm", "Realm does not exist.")
	}
	if conf["type"] != "ldap" && conf["type"] != "ad" {
		return nil, fail("Cannot sync realm type '%s'! Only LDAP/AD realms can be synced.", conf["type"])
	}
	if !c.has("scope") && optionOf(conf["sync-defaults-options"], "scope") == "" {
		return nil, badParam("scope", "Not passed as parameter and not defined in realm default sync options.")
	}
	return w.fork(c, w.cfg.Node, job{kind: "auth-realm-sync", id: realm, begin: func(t *task) error {
		t.logf("starting sync for realm %s", realm)
		return nil
	}, end: func(*task) error {
		return fail("unable to connect to LDAP server: %s", conf["server1"])
	}}), nil
}

// apiOpenIDStart is POST /access/openid/auth-url, apiOpenIDLogin …/login.
func apiOpenIDStart(w *world, c *call) (any, error) {
	conf, ok := w.access.realms[c.in["realm"]]
	switch {
	case !ok:
		return nil, fail("authentication domain '%s' does not exist", c.in["realm"])
	case conf["type"] != "openid":
		return nil, fail("wrong realm type (%s != openid)", conf["type"])
	}
	return nil, fail("Failed to discover OpenID Provider: Request failed")
}

func apiOpenIDLogin(*world, *call) (any, error) {
	return nil, &apiError{status: 401, message: "openid authentication failure; no pending authentication"}
}
