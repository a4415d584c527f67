package access

import (
	"maps"
	"net/http"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/calendar"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Directories of users: realms of LDAP and Active Directory can be synchronized, and
// OpenID leads to a provider. There is none of them here, so what asks one fails as it
// does where a server does not answer.

// realmSyncFile describes the jobs of jobs.cfg that do so at times; the API table has
// their methods (PVE/API2/Jobs/RealmSync.pm).
func realmSyncFile() *sections.SectionFile {
	return &sections.SectionFile{
		Name: "jobs/realm-sync", Key: "id", Only: "realm-sync", Plain: true, Lock: "jobs_cfg", Flat: true,
		Kinds: map[string]string{"realm-sync": "realm! schedule enabled? comment? enable-new? remove-vanished? scope?"},
		Props: "enabled: boolean\nenable-new: boolean", Twice: "Job '%s' already exists", Missing: "No such job '%s'", Gone: "no such realm-sync job",
		Check: func(w *core.World, _ *core.Call, id string, conf, old property.Config) error {
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
	jobs := sections.Of(w, f)
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		entry := f.Typed(jobs[id])
		entry["id"] = id
		if next, ok := calendar.NextRun(jobs[id]["schedule"], w.Now); ok {
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// realmJob are the calls on one job.
func realmJob(then func(*sections.SectionFile, *core.World, *core.Call) (any, error)) core.Handler {
	return func(w *core.World, c *core.Call) (any, error) {
		f := realmSyncFile()
		if sections.Of(w, f)[c.In["id"]] == nil && c.Req.Method != http.MethodPut && c.Req.Method != http.MethodPost {
			return nil, perl.BadParam("id", "No such job '"+c.In["id"]+"'")
		}
		return then(f, w, c)
	}
}

func realmJobRoutes() map[string]core.Handler {
	const at = " /cluster/jobs/realm-sync/{id}"
	return map[string]core.Handler{
		"GET" + at: realmJob(func(f *sections.SectionFile, w *core.World, c *core.Call) (any, error) {
			entry := f.Typed(sections.Of(w, f)[c.In["id"]])
			entry["id"] = c.In["id"]
			return entry, nil
		}),
		"POST" + at:   realmJob((*sections.SectionFile).APICreate),
		"PUT" + at:    realmJob((*sections.SectionFile).APIUpdate),
		"DELETE" + at: realmJob((*sections.SectionFile).APIDelete),
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
