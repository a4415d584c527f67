package pvesim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// The jobs of jobs.cfg that back up guests. They are kept and shown; nothing runs them, for
// no clock ticks between requests.

func (w *world) showJob(id string) map[string]any {
	entry := section(w.sections["jobs"][id], map[string]any{"id": id, "type": "vzdump"})
	for _, key := range []string{"fleecing", "performance", "prune-backups"} { // decode_value in PVE/VZDump/JobBase.pm
		if value, ok := w.sections["jobs"][id][key]; ok {
			entry[key] = parted("POST /cluster/backup", key, value)
		}
	}
	if paths, ok := w.sections["jobs"][id]["exclude-path"]; ok { // The one option that is a list.
		entry["exclude-path"] = strings.Split(paths, ",")
	}
	return entry
}

// apiBackupJobs is GET /cluster/backup.
func apiBackupJobs(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(w.sections["jobs"])) {
		entry := w.showJob(id)
		if next, ok := nextRun(w.sections["jobs"][id]["schedule"], w.now); ok { // Also of a job that is switched off.
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// backupJob checks that the job of a call is there.
func (w *world) backupJob(c *call) (config, error) {
	if job, ok := w.sections["jobs"][c.in["id"]]; ok {
		return job, nil
	}
	return nil, badParam("id", "No such job '"+c.in["id"]+"'")
}

// apiCreateBackupJob is POST /cluster/backup.
func apiCreateBackupJob(w *world, c *call) (any, error) {
	if err := c.mayWriteJob(nil); err != nil {
		return nil, err
	}
	if err := c.mayBackUpPool(); err != nil {
		return nil, err
	}
	if err := c.schedule(true); err != nil {
		return nil, err
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	id := c.take("id")
	if id == "" {
		id = w.uuid()
	}
	if w.sections["jobs"][id] != nil {
		return nil, fail("Job '%s' already exists", id)
	}
	err := c.selection()
	if err == nil && !isTrue(c.in["vmid"]) && !c.flag("all") && !c.flag("stop") && !isTrue(c.in["pool"]) && !c.has("exclude") {
		err = badParam("vmid", "property is missing")
	}
	if err != nil { // What dies while the file is locked is a text.
		return nil, fail("%s", stringified(err))
	}
	job := config{"enabled": "1"}
	c.section(job)
	c.reselect(job)
	w.sections["jobs"][id] = job
	return nil, nil
}

// apiBackupJob is GET /cluster/backup/{id}.
func apiBackupJob(w *world, c *call) (any, error) {
	if _, err := w.backupJob(c); err != nil {
		return nil, err
	}
	return w.showJob(c.in["id"]), nil
}

// apiUpdateBackupJob is PUT /cluster/backup/{id}.
func apiUpdateBackupJob(w *world, c *call) (any, error) {
	if err := c.mayWriteJob(nil); err != nil {
		return nil, err
	}
	if err := c.mayBackUpPool(); err != nil {
		return nil, err
	}
	if err := c.schedule(false); err != nil {
		return nil, err
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	id := c.take("id")
	if len(c.in) == 0 {
		return nil, fail("no options specified")
	}
	if err := c.selection(); err != nil {
		return nil, fail("%s", stringified(err))
	}
	job, there := w.sections["jobs"][id]
	if !there {
		return nil, fail("no such vzdump job")
	}
	if err := c.mayWriteJob(job); err != nil {
		return nil, fail("%s", stringified(err))
	}
	for _, option := range c.list("delete") {
		if _, known := method("POST /cluster/backup").Param(option); !known {
			return nil, fail("%s", stringified(badParam("delete", "unknown option '"+option+"'")))
		}
	}
	changed := maps.Clone(job)
	for _, option := range c.list("delete") {
		delete(changed, option)
	}
	delete(c.in, "delete")
	c.section(changed)
	c.reselect(changed)
	if changed["vmid"] == "" && changed["all"] != "1" && changed["pool"] == "" {
		return nil, fail("%s", stringified(badParam("vmid", "property is missing")))
	}
	w.sections["jobs"][id] = changed
	return nil, nil
}

// mayWriteJob checks the rights beyond the declared ones: to what a call says of a job, or
// to a job as it is (assert_param_permission_create and _update in PVE/API2/Backup.pm).
func (c *call) mayWriteJob(current config) error {
	storage := c.in["storage"]
	switch {
	case c.root():
		return nil
	case current != nil && current["dumpdir"] != "":
		return fail("only root@pam may edit jobs with a 'dumpdir' option. at /usr/share/perl5/PVE/API2/Backup.pm line 88.")
	case current != nil:
		return c.need("/storage/"+cmp.Or(current["storage"], "local"), "Datastore.Allocate")
	}
	for _, key := range []string{"tmpdir", "dumpdir", "script", "job-id"} {
		if c.has(key) || slices.Contains(c.list("delete"), key) {
			return badParam(key, "Only root may set this option.")
		}
	}
	for _, key := range []string{"bwlimit", "ionice", "performance"} {
		if c.has(key) || slices.Contains(c.list("delete"), key) {
			if err := c.need("/", "Sys.Modify"); err != nil {
				return err
			}
		}
	}
	if fleecing := optionOf(c.in["fleecing"], "storage"); fleecing != "" {
		if err := c.need("/storage/"+fleecing, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	switch {
	case storage == "" && c.req.method == "PUT" && !slices.Contains(c.list("delete"), "storage"):
		return nil
	case storage == "":
		storage = "local"
	}
	return c.need("/storage/"+storage, "Datastore.Allocate")
}

// mayBackUpPool checks that the pool of a job is there and that its guests may be backed
// up (PVE/API2/Backup.pm).
func (c *call) mayBackUpPool() error {
	pool := c.in["pool"]
	if pool == "" {
		return nil
	}
	if c.w.pools[pool] == nil {
		return forbidden("pool '" + pool + "' does not exist")
	}
	return c.need("/pool/"+pool, "VM.Backup")
}

// schedule settles when a job shall run: the day and the time of older clients are an
// event of the calendar, too ($schedule_param_check in PVE/API2/Backup.pm).
func (c *call) schedule(required bool) error {
	time, days := c.take("starttime"), c.take("dow")
	switch {
	case c.has("schedule") && time != "":
		return badParam("starttime", "'starttime' and 'schedule' cannot both be set")
	case c.has("schedule"):
	case time == "" && required:
		return badParam("schedule", "neither 'starttime' nor 'schedule' were set")
	case time != "":
		c.in["schedule"] = strings.TrimSpace(days + " " + time)
	}
	return nil
}

// selection fails when a call names guests in two ways (verify_vzdump_parameters in
// PVE/VZDump.pm).
func (c *call) selection() error {
	switch {
	case c.flag("all") && c.has("vmid"):
		return badParam("all", "option conflicts with option 'vmid'")
	case c.has("exclude") && c.has("vmid"):
		return badParam("exclude", "option conflicts with option 'vmid'")
	case c.has("pool") && c.has("vmid"):
		return badParam("pool", "option conflicts with option 'vmid'")
	case c.has("prune-backups") && c.has("maxfiles"):
		return badParam("prune-backups", "option conflicts with option 'maxfiles'")
	case strings.Contains(c.in["notes-template"], "\n"):
		return badParam("notes-template", "contains a line feed")
	}
	return nil
}

// reselect lets a job name its guests in one way, the one that a call brought last
// (update_job in PVE/API2/Backup.pm).
func (c *call) reselect(job config) {
	drop := func(keys ...string) {
		for _, key := range keys {
			delete(job, key)
		}
	}
	if job["exclude"] != "" && job["pool"] == "" {
		job["all"] = "1"
	}
	switch {
	case c.has("vmid"):
		drop("all", "exclude", "pool")
	case c.flag("all"):
		drop("vmid", "pool")
	case job["pool"] != "":
		drop("vmid", "all", "exclude")
	}
}

// apiDeleteBackupJob is DELETE /cluster/backup/{id}.
func apiDeleteBackupJob(w *world, c *call) (any, error) {
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if _, err := w.backupJob(c); err != nil {
		return nil, fail("%s", stringified(err))
	}
	delete(w.sections["jobs"], c.in["id"])
	return nil, nil
}
