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
	if !c.has("vmid") && !c.flag("all") && !c.has("pool") {
		return nil, badParam("vmid", "property is missing")
	}
	if err := w.needQuorum(); err != nil {
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
	c.update(job)
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
		c.update(job, "id")
	}
	return nil, err
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
