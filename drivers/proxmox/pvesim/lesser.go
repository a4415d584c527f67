package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What other people's clients ask of a host beside its guests.

// apiDumpDefaults is GET /nodes/{node}/vzdump/defaults.
func apiDumpDefaults(w *world, c *call) (any, error) {
	defaults := map[string]any{
		"all": 0, "bwlimit": 0, "compress": "0", "fleecing": map[string]any{"enabled": 0}, "ionice": 7, "lockwait": 180, "mode": "snapshot",
		"notification-mode": "auto", "performance": map[string]any{"max-workers": 16, "pbs-entries-max": 1048576}, "pigz": 0,
		"prune-backups": "keep-all=1", "quiet": 0, "remove": 1, "stdexcludes": 1, "stop": 0, "stopwait": 10, "zstd": 1,
	}
	if !w.v9() {
		defaults["mailnotification"], defaults["notification-policy"] = "always", "always"
	}
	name := c.in["storage"]
	if name == "" {
		return defaults, nil
	}
	if !c.sees(name) {
		return nil, forbidden("/storage/" + name + ", Datastore.Audit|Datastore.AllocateSpace")
	}
	s, err := w.store(name)
	if err != nil {
		return nil, err
	}
	defaults["storage"], defaults["dumpdir"] = name, s.Path+"/dump"
	return defaults, nil
}

// pruned are the backups of a storage with what a rule says of each: of every guest
// the newest are kept.
func (c *call) pruned() ([]map[string]any, error) {
	s, err := c.w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	text := c.in["prune-backups"]
	switch {
	case !s.holds("backup"):
		return nil, fail("storage '%s' does not support backups", s.Name)
	case text == "":
		if text = s.extra["prune-backups"]; text == "" {
			return nil, fail("no prune-backups options configured for storage '%s'", s.Name)
		}
	}
	groups, list := map[string][]*volume{}, []map[string]any{}
	for _, v := range s.list(c.in["node"]) {
		if v.backup == nil || c.has("vmid") && v.vmid != c.vmid() || c.has("type") && v.backup.kind != c.in["type"] {
			continue
		}
		guest := fmt.Sprint(v.backup.kind, v.vmid)
		groups[guest] = append(groups[guest], v)
	}
	keep := retentionOf(text)
	for _, guest := range slices.Sorted(maps.Keys(groups)) {
		marks := keep.marks(groups[guest])
		for _, v := range groups[guest] {
			list = append(list, map[string]any{"volid": s.Name + ":" + v.name, "vmid": v.vmid, "ctime": v.ctime, "type": v.backup.kind, "mark": marks[v]})
		}
	}
	return list, nil
}

// apiPruneInfo is GET …/prunebackups: what a pruning would do.
func apiPruneInfo(_ *world, c *call) (any, error) {
	return c.pruned()
}

// apiPrune is DELETE …/prunebackups.
func apiPrune(w *world, c *call) (any, error) {
	id := c.in["storage"]
	if c.has("vmid") {
		id = c.in["vmid"] + "@" + id
	}
	return w.fork(c, c.in["node"], job{kind: "prunebackups", id: id, end: func(t *task) error {
		list, err := c.pruned()
		if err != nil {
			return err
		}
		for _, entry := range list {
			if entry["mark"] == "remove" {
				t.logf("removing backup '%s'", entry["volid"])
				if err := w.free(t.node, text(entry["volid"])); err != nil {
					return err
				}
			}
		}
		return nil
	}}), nil
}

// apiSetOptions is PUT /cluster/options.
func apiSetOptions(w *world, c *call) (any, error) {
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	changed := maps.Clone(w.options)
	c.update(changed)
	if lower, upper := idRange(changed["next-id"]); lower > upper { // write_datacenter_config in PVE/DataCenterConfig.pm
		return nil, fail("lower (%d) <= upper (%d) boundary rule broken", lower, upper)
	}
	w.options = changed
	return nil, nil
}

// idRange is where free ids of guests are looked for (the option next-id).
func idRange(option string) (lower, upper int) {
	lower, upper = 100, 1000000
	for part := range strings.SplitSeq(option, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case "lower":
			lower = atoi(value)
		case "upper":
			upper = atoi(value)
		}
	}
	return lower, upper
}

// apiClusterLog is GET /cluster/log: what tasks did, the newest first.
func apiClusterLog(w *world, c *call) (any, error) {
	list := []map[string]any{}
	note := func(t *task, at int64, message string) {
		n := fmt.Sprint(len(list) + 1)
		list = append(list, map[string]any{
			"uid": n, "id": n + ":" + t.node, "node": t.node, "user": t.who.String(), "tag": "pvedaemon", "pri": 6, "pid": t.pid, "time": at, "msg": message,
		})
	}
	all := c.can("/", "Sys.Syslog")
	for _, t := range w.tasks.all {
		if !all && !c.who.owns(t.who) {
			continue
		}
		note(t, t.start.Unix(), "starting task "+t.upid)
		if !t.running() {
			note(t, t.stopped.Unix(), "end task "+t.upid+" "+t.status)
		}
	}
	slices.Reverse(list)
	most := c.num("max", 50)
	return list[:min(most, len(list))], nil
}

// apiNotBackedUp is GET /cluster/backup-info/not-backed-up.
func apiNotBackedUp(w *world, c *call) (any, error) {
	list := []map[string]any{}
	covered := map[int]bool{}
	for _, id := range slices.Sorted(maps.Keys(w.sections["jobs"])) {
		job := w.sections["jobs"][id]
		for _, vmid := range w.vmids {
			covered[vmid] = covered[vmid] || w.coveredBy(job, vmid)
		}
	}
	for _, vmid := range w.vmids {
		if g := w.guests[vmid]; !covered[vmid] && c.can(vmPath(vmid), "VM.Audit") {
			list = append(list, map[string]any{"vmid": vmid, "type": g.kind, "name": w.sample(g).name})
		}
	}
	return list, nil
}

// apiClusterNodes is GET /cluster/config/nodes: none without a cluster.
func apiClusterNodes(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	if len(w.nodes) == 1 {
		return list, nil
	}
	for _, name := range w.nodeNames() {
		index := w.nodes[name].index
		list = append(list, map[string]any{
			"node": name, "name": name, "nodeid": fmt.Sprint(index), "quorum_votes": "1", "ring0_addr": fmt.Sprintf("192.0.2.%d", 1+index),
		})
	}
	return list, nil
}

// apiJobsIndex is GET /cluster/jobs.
func apiJobsIndex(*world, *call) (any, error) {
	return subdirs("subdir", "schedule-analyze", "realm-sync"), nil
}
