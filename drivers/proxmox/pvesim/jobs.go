package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// backupJobs are the jobs of jobs.cfg by id. They are kept and shown; nothing runs
// them, for no clock ticks between requests.
type backupJobs map[string]config

// forget takes a guest that goes out of the jobs that name it.
func (j backupJobs) forget(vmid int) {
	for id, job := range j {
		list := splitList(job["vmid"])
		if left := slices.DeleteFunc(slices.Clone(list), func(word string) bool { return atoi(word) == vmid }); len(left) < len(list) {
			if job["vmid"] = strings.Join(left, ","); len(left) == 0 {
				delete(j, id)
			}
		}
	}
}

func (w *world) showJob(id string) map[string]any {
	entry := section(w.jobs[id], map[string]any{"id": id, "type": "vzdump"})
	for _, key := range []string{"fleecing", "performance", "prune-backups"} { // decode_value in PVE/VZDump/JobBase.pm
		if value, ok := w.jobs[id][key]; ok {
			entry[key] = parted("POST /cluster/backup", key, value)
		}
	}
	if paths, ok := w.jobs[id]["exclude-path"]; ok { // The one option that is a list.
		entry["exclude-path"] = strings.Split(paths, ",")
	}
	return entry
}

// apiBackupJobs is GET /cluster/backup.
func apiBackupJobs(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(w.jobs)) {
		entry := w.showJob(id)
		if next, ok := nextRun(w.jobs[id]["schedule"], w.now); ok { // Also of a job that is switched off.
			entry["next-run"] = next.Unix()
		}
		list = append(list, entry)
	}
	return list, nil
}

// backupJob checks that the job of a call is there.
func (w *world) backupJob(c *call) (config, error) {
	if job, ok := w.jobs[c.in["id"]]; ok {
		return job, nil
	}
	return nil, badParam("id", "No such job '"+c.in["id"]+"'")
}

// apiCreateBackupJob is POST /cluster/backup.
func apiCreateBackupJob(w *world, c *call) (any, error) {
	if err := c.schedule(true); err != nil {
		return nil, err
	}
	if !c.has("vmid") && !c.flag("all") && !c.has("pool") && !c.has("exclude") {
		return nil, badParam("vmid", "property is missing")
	}
	if err := c.selection(); err != nil {
		return nil, err
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.mayBackUpPool(); err != nil {
		return nil, err
	}
	id := c.take("id")
	if id == "" {
		id = w.uuid()
	}
	if w.jobs[id] != nil {
		return nil, fail("Job '%s' already exists", id)
	}
	job := config{"enabled": "1"}
	c.section(job)
	c.reselect(job)
	w.jobs[id] = job
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
	job, err := w.backupJob(c)
	if err == nil {
		err = w.needQuorum()
	}
	if err == nil {
		err = c.mayBackUpPool()
	}
	if err == nil {
		err = c.schedule(false)
	}
	if err == nil {
		err = c.selection()
	}
	if err != nil {
		return nil, err
	}
	for _, option := range c.list("delete") {
		if _, known := method("POST /cluster/backup").Param(option); !known {
			return nil, badParam("delete", "unknown option '"+option+"'")
		}
	}
	c.section(job, "id")
	c.reselect(job)
	return nil, nil
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
	_, err := w.backupJob(c)
	if err == nil {
		err = w.needQuorum()
	}
	if err == nil {
		delete(w.jobs, c.in["id"])
	}
	return nil, err
}
