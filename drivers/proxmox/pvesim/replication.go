package pvesim

import (
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Replication jobs (PVE/API2/ReplicationConfig.pm, PVE/API2/Replication.pm): they are
// kept and shown, and run when somebody says so; what a run copies is not.

// replicationFile describes replication.cfg; the API table has its methods.
func replicationFile() *sectionFile {
	return &sectionFile{
		name: "replication", lock: "replication_cfg", key: "id", kinds: map[string]string{"local": "target! disable? comment? rate? schedule? remove_job? source?"},
		props: "target: string\ndisable: boolean\ncomment: string\nrate: number\nschedule: string\nremove_job: string\nsource: string",
		extra: "keep: boolean\nforce: boolean", twice: "replication job '%s' already exists", missing: "no such replication job '%s'", gone: "no such job '%s'",
		guard: func(c *call, id string, conf map[string]any, write bool) error {
			guest, number, _ := strings.Cut(id, "-")
			switch {
			case !write:
				conf["guest"], conf["jobnum"] = atoi(guest), atoi(number)
				return c.need("/vms/"+guest, "VM.Audit")
			case c.w.v9():
				return c.need("/vms/"+guest, "VM.Replicate")
			default:
				return c.need("/storage", "Datastore.Allocate")
			}
		},
		check: func(w *world, c *call, id string, conf, old config) error {
			if old != nil {
				return nil
			}
			return w.mayReplicate(c, id, conf)
		},
	}
}

// mayReplicate is what a new job needs: a guest with volumes that can be copied, and
// another node.
func (w *world) mayReplicate(c *call, id string, conf config) error {
	guest, _, _ := strings.Cut(id, "-")
	g := w.guests[atoi(guest)]
	switch {
	case g == nil:
		return fail("Guest '%s' does not exist.", guest)
	case w.nodes[conf["target"]] == nil:
		return fail("Target '%s' does not exist.", conf["target"])
	case c.has("source") && c.in["source"] != g.node:
		return fail("Source '%s' does not match current node of guest '%s' (%s)", c.in["source"], guest, g.node)
	case conf["target"] == g.node:
		return fail("Source and target must not be identical")
	}
	conf["source"] = g.node
	found := false
	for _, volume := range g.replicated() {
		storage, _, _ := strings.Cut(volume, ":")
		s := w.stores[storage]
		if s == nil || s.Shared {
			continue
		}
		if s.Type != "zfspool" {
			return fail("missing replicate feature on volume '%s'", volume)
		}
		found = true
	}
	if !found {
		return fail("No replicatable volumes found")
	}
	return nil
}

// replicated are the volumes of a guest that a replication would copy.
func (g *guest) replicated() []string {
	var volumes []string
	if g.kind == "lxc" {
		for _, key := range mountNames(g.conf) {
			if m := parseMount(key, g.conf[key]); optionOf(g.conf[key], "replicate") != "0" && strings.Contains(m.volume, ":") {
				volumes = append(volumes, m.volume)
			}
		}
		return volumes
	}
	for _, key := range driveNames(g.conf) {
		if d := parseDrive(key, g.conf[key]); !d.cdrom() && d.opts["replicate"] != "0" && strings.Contains(d.file, ":") {
			volumes = append(volumes, d.file)
		}
	}
	return volumes
}

func apiReplications(w *world, c *call) (any, error) { return replicationFile().apiList(w, c) }

func apiReplicationJob(w *world, c *call) (any, error) { return replicationFile().apiRead(w, c) }

func apiCreateReplication(w *world, c *call) (any, error) { return replicationFile().apiCreate(w, c) }

func apiSetReplicationJob(w *world, c *call) (any, error)  { return replicationFile().apiUpdate(w, c) }
func apiDropReplicationJob(w *world, c *call) (any, error) { return dropReplication(w, c) }

// dropReplication marks a job; the next run of the scheduler takes it away, once its
// snapshots and copies are gone.
func dropReplication(w *world, c *call) (any, error) {
	f, id := replicationFile(), c.in["id"]
	job := w.sectionsOf(f)[id]
	if err := f.guard(c, id, nil, true); err != nil {
		return nil, err
	}
	switch {
	case c.flag("force") && c.flag("keep"):
		return nil, badParam("keep", "conflicts with parameter 'force'")
	case c.flag("force"):
		delete(w.sectionsOf(f), id)
		return nil, nil
	case job == nil:
		return nil, fail("no such job '%s'", id)
	}
	if job["remove_job"] = "full"; c.flag("keep") {
		job["remove_job"] = "local"
	}
	w.at(w.now.Truncate(time.Minute).Add(time.Minute), func() {
		if current := w.sections["replication"][id]; current != nil && current["remove_job"] != "" {
			delete(w.sections["replication"], id)
			delete(replicatedOf(w), id)
		}
	})
	return nil, nil
}

// replicationState is what a node knows of one of its jobs.
func (w *world) replicationState(id string) map[string]any {
	entry := replicationFile().typed(w.sections["replication"][id])
	guest, number, _ := strings.Cut(id, "-")
	entry["id"], entry["guest"], entry["jobnum"], entry["fail_count"], entry["last_sync"], entry["last_try"] = id, atoi(guest), atoi(number), 0, 0, 0
	if g := w.guests[atoi(guest)]; g != nil {
		entry["vmtype"], entry["source"] = g.kind, g.node
	}
	if at := replicatedOf(w)[id]; !at.IsZero() {
		entry["last_sync"], entry["last_try"], entry["duration"] = at.Unix(), at.Unix(), 1.0
	}
	schedule, _ := entry["schedule"].(string)
	if schedule == "" {
		schedule = "*/15"
		entry["schedule"] = schedule
	}
	if next, ok := nextRun(schedule, w.now); ok {
		entry["next_sync"] = next.Unix()
	}
	return entry
}

// nodeJob checks that a job is one of a guest on the node of a call.
func (w *world) nodeJob(c *call) (string, error) {
	id := c.in["id"]
	guest, _, _ := strings.Cut(id, "-")
	g := w.guests[atoi(guest)]
	if w.sections["replication"][id] == nil || g == nil || g.node != c.in["node"] {
		return "", fail("no such replication job '%s'", id)
	}
	return id, c.need("/vms/"+guest, "VM.Audit")
}

// apiNodeReplications is GET /nodes/{node}/replication.
func apiNodeReplications(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, vmid := range w.vmids {
		if c.has("guest") && c.num("guest", 0) != vmid || w.guests[vmid].node != c.in["node"] || !c.can(vmPath(vmid), "VM.Audit") {
			continue
		}
		for _, id := range w.replicationJobs(vmid) {
			list = append(list, w.replicationState(id))
		}
	}
	return list, nil
}

func apiNodeReplication(w *world, c *call) (any, error) {
	id, err := w.nodeJob(c)
	if err != nil {
		return nil, err
	}
	return w.replicationState(id), nil
}

func apiReplicationLog(w *world, c *call) (any, error) {
	id, err := w.nodeJob(c)
	if err != nil {
		return nil, err
	}
	lines := []map[string]any{}
	if at := replicatedOf(w)[id]; !at.IsZero() {
		stamp := at.Format("2006-01-02 15:04:05 ")
		for _, text := range []string{"start replication job", "end replication job"} {
			lines = append(lines, map[string]any{"n": len(lines) + 1, "t": stamp + id + ": " + text})
		}
	}
	return paged{lines, len(lines)}, nil
}

// apiReplicateNow is POST /nodes/{node}/replication/{id}/schedule_now: the scheduler
// looks once a minute.
func apiReplicateNow(w *world, c *call) (any, error) {
	id, err := w.nodeJob(c)
	if err != nil {
		return nil, err
	}
	at := w.now.Truncate(time.Minute).Add(time.Minute)
	w.at(at, func() {
		if job := w.sections["replication"][id]; job != nil && job["disable"] != "1" {
			replicatedOf(w)[id] = at
		}
	})
	return nil, nil
}

// runs is when each job ran last.
type runs struct{ at map[string]time.Time }

func replicatedOf(w *world) map[string]time.Time {
	all := partOf[runs](&w.parts)
	if all.at == nil {
		all.at = map[string]time.Time{}
	}
	return all.at
}

func replicationCalls() []pastCall {
	const id = "id: string /[1-9][0-9]{2,8}-\\d{1,9}/"
	list, object := &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	return []pastCall{
		{name: "GET /nodes/{node}/replication", params: "guest: integer 100..999999999", returns: list, handle: apiNodeReplications},
		{name: "GET /nodes/{node}/replication/{id}", params: id, returns: list, handle: index{"name", "schedule_now log status"}.handler},
		{name: "GET /nodes/{node}/replication/{id}/status", params: id, returns: object, handle: apiNodeReplication},
		{name: "GET /nodes/{node}/replication/{id}/log", params: id + "\nstart: integer 0..\nlimit: integer 0..", returns: list, handle: apiReplicationLog},
		{name: "POST /nodes/{node}/replication/{id}/schedule_now", params: id, returns: &pveapi.Value{}, handle: apiReplicateNow},
	}
}
