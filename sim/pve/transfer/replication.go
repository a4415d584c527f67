package transfer

// This part of the package keeps replication jobs and when they ran. No data moves.

import (
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// ReplicationArea is replication jobs.
func ReplicationArea() core.Area {
	f := replicationFile()
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/replication":         f.APIList,
			"POST /cluster/replication":        f.APICreate,
			"GET /cluster/replication/{id}":    f.APIRead,
			"PUT /cluster/replication/{id}":    f.APIUpdate,
			"DELETE /cluster/replication/{id}": apiDropReplicationJob,
		},
		Calls: replicationCalls(),
	}
}

// Replication jobs (PVE/API2/ReplicationConfig.pm, PVE/API2/Replication.pm): they are
// kept and shown, and run when somebody says so; what a run copies is not.

// replicationFile describes replication.cfg; the API table has its methods.
func replicationFile() *core.SectionFile {
	return &core.SectionFile{
		Name: "replication", Lock: "replication_cfg", Key: "id", Kinds: map[string]string{"local": "target! disable? comment? rate? schedule? remove_job? source?"},
		Props: "target: string\ndisable: boolean\ncomment: string\nrate: number\nschedule: string\nremove_job: string\nsource: string",
		Extra: "keep: boolean\nforce: boolean", Twice: "replication job '%s' already exists", Missing: "no such replication job '%s'", Gone: "no such job '%s'",
		Guard: func(c *core.Call, id string, conf map[string]any, write bool) error {
			guest, number, _ := strings.Cut(id, "-")
			switch {
			case !write:
				conf["guest"], conf["jobnum"] = perl.Atoi(guest), perl.Atoi(number)
				return c.Need("/vms/"+guest, "VM.Audit")
			case c.W.V9():
				return c.Need("/vms/"+guest, "VM.Replicate")
			default:
				return c.Need("/storage", "Datastore.Allocate")
			}
		},
		Check: func(w *core.World, c *core.Call, id string, conf, old perl.Config) error {
			if old != nil {
				return nil
			}
			return mayReplicate(w, c, id, conf)
		},
	}
}

// mayReplicate is what a new job needs: a guest with volumes that can be copied, and
// another node.
func mayReplicate(w *core.World, c *core.Call, id string, conf perl.Config) error {
	guest, _, _ := strings.Cut(id, "-")
	g := w.Guests[perl.Atoi(guest)]
	switch {
	case g == nil:
		return perl.Fail("Guest '%s' does not exist.", guest)
	case w.Nodes[conf["target"]] == nil:
		return perl.Fail("Target '%s' does not exist.", conf["target"])
	case c.Has("source") && c.In["source"] != g.Node:
		return perl.Fail("Source '%s' does not match current node of guest '%s' (%s)", c.In["source"], guest, g.Node)
	case conf["target"] == g.Node:
		return perl.Fail("Source and target must not be identical")
	}
	conf["source"] = g.Node
	found := false
	for _, volume := range replicated(g) {
		storage, _, _ := strings.Cut(volume, ":")
		s := w.Stores[storage]
		if s == nil || s.Shared {
			continue
		}
		if s.Type != "zfspool" {
			return perl.Fail("missing replicate feature on volume '%s'", volume)
		}
		found = true
	}
	if !found {
		return perl.Fail("No replicatable volumes found")
	}
	return nil
}

// replicated are the volumes of a guest that a replication would copy.
func replicated(g *core.Guest) []string {
	var volumes []string
	if g.Kind == "lxc" {
		for _, key := range perl.MountNames(g.Conf) {
			if m := perl.ParseMount(key, g.Conf[key]); perl.OptionOf(g.Conf[key], "replicate") != "0" && strings.Contains(m.Volume, ":") {
				volumes = append(volumes, m.Volume)
			}
		}
		return volumes
	}
	for _, key := range perl.DriveNames(g.Conf) {
		if d := perl.ParseDrive(key, g.Conf[key]); !d.Cdrom() && d.Opts["replicate"] != "0" && strings.Contains(d.File, ":") {
			volumes = append(volumes, d.File)
		}
	}
	return volumes
}

// apiDropReplicationJob marks a job; the next run of the scheduler takes it away, once its
// snapshots and copies are gone.
func apiDropReplicationJob(w *core.World, c *core.Call) (any, error) {
	f, id := replicationFile(), c.In["id"]
	job := core.SectionsOf(w, f)[id]
	if err := f.Guard(c, id, nil, true); err != nil {
		return nil, err
	}
	switch {
	case c.Flag("force") && c.Flag("keep"):
		return nil, perl.BadParam("keep", "conflicts with parameter 'force'")
	case c.Flag("force"):
		delete(core.SectionsOf(w, f), id)
		return nil, nil
	case job == nil:
		return nil, perl.Fail("no such job '%s'", id)
	}
	if job["remove_job"] = "full"; c.Flag("keep") {
		job["remove_job"] = "local"
	}
	w.At(w.Now.Truncate(time.Minute).Add(time.Minute), func() {
		if current := w.Sections["replication"][id]; current != nil && current["remove_job"] != "" {
			delete(w.Sections["replication"], id)
			delete(replicatedOf(w), id)
		}
	})
	return nil, nil
}

// replicationState is what a node knows of one of its jobs.
func replicationState(w *core.World, id string) map[string]any {
	entry := replicationFile().Typed(w.Sections["replication"][id])
	guest, number, _ := strings.Cut(id, "-")
	entry["id"], entry["guest"], entry["jobnum"], entry["fail_count"], entry["last_sync"], entry["last_try"] = id, perl.Atoi(guest), perl.Atoi(number), 0, 0, 0
	if g := w.Guests[perl.Atoi(guest)]; g != nil {
		entry["vmtype"], entry["source"] = g.Kind, g.Node
	}
	if at := replicatedOf(w)[id]; !at.IsZero() {
		entry["last_sync"], entry["last_try"], entry["duration"] = at.Unix(), at.Unix(), 1.0
	}
	schedule, _ := entry["schedule"].(string)
	if schedule == "" {
		schedule = "*/15"
		entry["schedule"] = schedule
	}
	if next, ok := perl.NextRun(schedule, w.Now); ok {
		entry["next_sync"] = next.Unix()
	}
	return entry
}

// nodeJob checks that a job is one of a guest on the node of a call.
func nodeJob(c *core.Call) (string, error) {
	w := c.W
	id := c.In["id"]
	guest, _, _ := strings.Cut(id, "-")
	g := w.Guests[perl.Atoi(guest)]
	if w.Sections["replication"][id] == nil || g == nil || g.Node != c.In["node"] {
		return "", perl.Fail("no such replication job '%s'", id)
	}
	return id, c.Need("/vms/"+guest, "VM.Audit")
}

// apiNodeReplications is GET /nodes/{node}/replication.
func apiNodeReplications(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, vmid := range w.Vmids {
		if c.Has("guest") && c.Num("guest", 0) != vmid || w.Guests[vmid].Node != c.In["node"] || !c.Can(core.VMPath(vmid), "VM.Audit") {
			continue
		}
		for _, id := range guests.ReplicationJobs(w, vmid) {
			list = append(list, replicationState(w, id))
		}
	}
	return list, nil
}

func apiNodeReplication(w *core.World, _ *core.Call, id string) (any, error) {
	return replicationState(w, id), nil
}

func apiReplicationLog(w *core.World, _ *core.Call, id string) (any, error) {
	lines := []map[string]any{}
	if at := replicatedOf(w)[id]; !at.IsZero() {
		stamp := at.Format("2006-01-02 15:04:05 ")
		for _, text := range []string{"start replication job", "end replication job"} {
			lines = append(lines, map[string]any{"n": len(lines) + 1, "t": stamp + id + ": " + text})
		}
	}
	return core.Paged{Data: lines, Total: len(lines)}, nil
}

// apiReplicateNow is POST /nodes/{node}/replication/{id}/schedule_now: the scheduler
// looks once a minute.
func apiReplicateNow(w *core.World, _ *core.Call, id string) (any, error) {
	at := w.Now.Truncate(time.Minute).Add(time.Minute)
	w.At(at, func() {
		if job := w.Sections["replication"][id]; job != nil && job["disable"] != "1" {
			replicatedOf(w)[id] = at
		}
	})
	return nil, nil
}

// runs is when each job ran last.
type runs map[string]time.Time

func replicatedOf(w *core.World) runs { return core.MapOf[runs](&w.Parts) }

func replicationCalls() []core.ExtraCall {
	const id = "id: string /[1-9][0-9]{2,8}-\\d{1,9}/"
	list, object := &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	return []core.ExtraCall{
		{Name: "GET /nodes/{node}/replication", Params: "guest: integer 100..999999999", Returns: list, Handle: apiNodeReplications},
		{Name: "GET /nodes/{node}/replication/{id}", Params: id, Returns: list, Handle: core.DirectoryIndex{Key: "name", Names: "schedule_now log status"}.Handler},
		{Name: "GET /nodes/{node}/replication/{id}/status", Params: id, Returns: object, Handle: core.On(nodeJob, apiNodeReplication)},
		{Name: "GET /nodes/{node}/replication/{id}/log", Params: id + "\nstart: integer 0..\nlimit: integer 0..", Returns: list, Handle: core.On(nodeJob, apiReplicationLog)},
		{Name: "POST /nodes/{node}/replication/{id}/schedule_now", Params: id, Returns: &pveapi.Value{}, Handle: core.On(nodeJob, apiReplicateNow)},
	}
}
