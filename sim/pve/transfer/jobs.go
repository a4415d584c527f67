package transfer

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// The jobs of jobs.cfg that back up guests. They are kept and shown; nothing runs them, for
// no clock ticks between requests.

func showJob(w *core.World, id string) map[string]any {
	entry := w.Sections["jobs"][id].Section(map[string]any{"id": id, "type": "vzdump"})
	for _, key := range []string{"fleecing", "performance", "prune-backups"} { // decode_value in PVE/VZDump/JobBase.pm
		if value, ok := w.Sections["jobs"][id][key]; ok {
			entry[key] = perl.Parted("POST /cluster/backup", key, value)
		}
	}
	if paths, ok := w.Sections["jobs"][id]["exclude-path"]; ok { // The one option that is a list.
		entry["exclude-path"] = strings.Split(paths, ",")
	}
	return entry
}

// apiBackupJobs is GET /cluster/backup.
func apiBackupJobs(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(w.Sections["jobs"])) {
		entry := showJob(w, id)
		if next, ok := nextRun(w.Sections["jobs"][id]["schedule"], w.Now); ok { // Also of a job that is switched off.
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// jobOf checks that the job of a call is there.
func jobOf(w *core.World, c *core.Call) (perl.Config, error) {
	if job, ok := w.Sections["jobs"][c.In["id"]]; ok {
		return job, nil
	}
	return nil, perl.BadParam("id", "No such job '"+c.In["id"]+"'")
}

// apiCreateBackupJob is POST /cluster/backup.
func apiCreateBackupJob(w *core.World, c *core.Call) (any, error) {
	if err := cmp.Or(mayWriteJob(c, nil), mayBackUpPool(c), schedule(c, true), w.NeedQuorum()); err != nil {
		return nil, err
	}
	id := c.Take("id")
	if id == "" {
		id = w.Rng.UUID()
	}
	if w.Sections["jobs"][id] != nil {
		return nil, perl.Fail("Job '%s' already exists", id)
	}
	err := selection(c)
	if err == nil && !perl.IsTrue(c.In["vmid"]) && !c.Flag("all") && !c.Flag("stop") && !perl.IsTrue(c.In["pool"]) && !c.Has("exclude") {
		err = perl.BadParam("vmid", "property is missing")
	}
	if err != nil { // Errors while the file is locked are text.
		return nil, perl.Fail("%s", perl.Stringified(err))
	}
	job := perl.Config{"enabled": "1"}
	c.Section(job)
	reselect(c, job)
	w.Sections["jobs"][id] = job
	return nil, nil
}

// apiBackupJob is GET /cluster/backup/{id}.
func apiBackupJob(w *core.World, c *core.Call) (any, error) {
	if _, err := jobOf(w, c); err != nil {
		return nil, err
	}
	return showJob(w, c.In["id"]), nil
}

// apiUpdateBackupJob is PUT /cluster/backup/{id}.
func apiUpdateBackupJob(w *core.World, c *core.Call) (any, error) {
	if err := cmp.Or(mayWriteJob(c, nil), mayBackUpPool(c), schedule(c, false), w.NeedQuorum()); err != nil {
		return nil, err
	}
	id := c.Take("id")
	if len(c.In) == 0 {
		return nil, perl.Fail("no options specified")
	}
	if err := selection(c); err != nil {
		return nil, perl.Fail("%s", perl.Stringified(err))
	}
	job, there := w.Sections["jobs"][id]
	if !there {
		return nil, perl.Fail("no such vzdump job")
	}
	if err := mayWriteJob(c, job); err != nil {
		return nil, perl.Fail("%s", perl.Stringified(err))
	}
	for _, option := range c.List("delete") {
		if _, known := perl.Method("POST /cluster/backup").Param(option); !known {
			return nil, perl.Fail("%s", perl.Stringified(perl.BadParam("delete", "unknown option '"+option+"'")))
		}
	}
	changed := maps.Clone(job)
	for _, option := range c.List("delete") {
		delete(changed, option)
	}
	delete(c.In, "delete")
	c.Section(changed)
	reselect(c, changed)
	if changed["vmid"] == "" && changed["all"] != "1" && changed["pool"] == "" {
		return nil, perl.Fail("%s", perl.Stringified(perl.BadParam("vmid", "property is missing")))
	}
	w.Sections["jobs"][id] = changed
	return nil, nil
}

// mayWriteJob checks the rights beyond the declared ones: to what a call says of a job, or
// to a job as it is (assert_param_permission_create and _update in PVE/API2/Backup.pm).
func mayWriteJob(c *core.Call, current perl.Config) error {
	storage := c.In["storage"]
	switch {
	case c.Root():
		return nil
	case current != nil && current["dumpdir"] != "":
		return perl.Fail("only root@pam may edit jobs with a 'dumpdir' option. at /usr/share/perl5/PVE/API2/Backup.pm line 88.")
	case current != nil:
		return c.Need("/storage/"+cmp.Or(current["storage"], "local"), "Datastore.Allocate")
	}
	for _, key := range []string{"tmpdir", "dumpdir", "script", "job-id"} {
		if c.Has(key) || slices.Contains(c.List("delete"), key) {
			return perl.BadParam(key, "Only root may set this option.")
		}
	}
	for _, key := range []string{"bwlimit", "ionice", "performance"} {
		if c.Has(key) || slices.Contains(c.List("delete"), key) {
			if err := c.Need("/", "Sys.Modify"); err != nil {
				return err
			}
		}
	}
	if fleecing := perl.OptionOf(c.In["fleecing"], "storage"); fleecing != "" {
		if err := c.Need("/storage/"+fleecing, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	switch {
	case storage == "" && c.Req.Method == http.MethodPut && !slices.Contains(c.List("delete"), "storage"):
		return nil
	case storage == "":
		storage = "local"
	}
	return c.Need("/storage/"+storage, "Datastore.Allocate")
}

// mayBackUpPool checks that the pool of a job is there and that its guests may be backed
// up (PVE/API2/Backup.pm).
func mayBackUpPool(c *core.Call) error {
	pool := c.In["pool"]
	if pool == "" {
		return nil
	}
	if c.W.Access.Pools[pool] == nil {
		return perl.Forbidden("pool '" + pool + "' does not exist")
	}
	return c.Need("/pool/"+pool, "VM.Backup")
}

// schedule settles when a job shall run: the day and the time of older clients are an
// event of the calendar, too ($schedule_param_check in PVE/API2/Backup.pm).
func schedule(c *core.Call, required bool) error {
	time, days := c.Take("starttime"), c.Take("dow")
	switch {
	case c.Has("schedule") && time != "":
		return perl.BadParam("starttime", "'starttime' and 'schedule' cannot both be set")
	case c.Has("schedule"):
	case time == "" && required:
		return perl.BadParam("schedule", "neither 'starttime' nor 'schedule' were set")
	case time != "":
		c.In["schedule"] = strings.TrimSpace(days + " " + time)
	}
	return nil
}

// selection fails when a call names guests in two ways (verify_vzdump_parameters in
// PVE/VZDump.pm).
func selection(c *core.Call) error {
	switch {
	case c.Flag("all") && c.Has("vmid"):
		return perl.BadParam("all", "option conflicts with option 'vmid'")
	case c.Has("exclude") && c.Has("vmid"):
		return perl.BadParam("exclude", "option conflicts with option 'vmid'")
	case c.Has("pool") && c.Has("vmid"):
		return perl.BadParam("pool", "option conflicts with option 'vmid'")
	case c.Has("prune-backups") && c.Has("maxfiles"):
		return perl.BadParam("prune-backups", "option conflicts with option 'maxfiles'")
	case strings.Contains(c.In["notes-template"], "\n"):
		return perl.BadParam("notes-template", "contains a line feed")
	}
	return nil
}

// reselect lets a job name its guests in one way, the one that a call brought last
// (update_job in PVE/API2/Backup.pm).
func reselect(c *core.Call, job perl.Config) {
	drop := func(keys ...string) {
		for _, key := range keys {
			delete(job, key)
		}
	}
	if job["exclude"] != "" && job["pool"] == "" {
		job["all"] = "1"
	}
	switch {
	case c.Has("vmid"):
		drop("all", "exclude", "pool")
	case c.Flag("all"):
		drop("vmid", "pool")
	case job["pool"] != "":
		drop("vmid", "all", "exclude")
	}
}

// apiDeleteBackupJob is DELETE /cluster/backup/{id}.
func apiDeleteBackupJob(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	if _, err := jobOf(w, c); err != nil {
		return nil, perl.Fail("%s", perl.Stringified(err))
	}
	delete(w.Sections["jobs"], c.In["id"])
	return nil, nil
}

// apiDumpDefaults is GET /nodes/{node}/vzdump/defaults.
func apiDumpDefaults(w *core.World, c *core.Call) (any, error) {
	defaults := map[string]any{
		"all": 0, "bwlimit": 0, "compress": "0", "fleecing": map[string]any{"enabled": 0}, "ionice": 7, "lockwait": 180, "mode": "snapshot",
		"notification-mode": "auto", "performance": map[string]any{"max-workers": 16, "pbs-entries-max": 1048576}, "pigz": 0,
		"prune-backups": "keep-all=1", "quiet": 0, "remove": 1, "stdexcludes": 1, "stop": 0, "stopwait": 10, "zstd": 1,
	}
	if !w.V9() {
		defaults["mailnotification"], defaults["notification-policy"] = "always", "always"
	}
	name := c.In["storage"]
	if name == "" {
		return defaults, nil
	}
	if !host.Sees(c, name) {
		return nil, perl.Forbidden("/storage/" + name + ", Datastore.Audit|Datastore.AllocateSpace")
	}
	s, err := w.Store(name)
	if err != nil {
		return nil, err
	}
	defaults["storage"], defaults["dumpdir"] = name, s.Path+"/dump"
	return defaults, nil
}
