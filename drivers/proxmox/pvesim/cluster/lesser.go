package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/backup"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/storage"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/volumes"
)

// What other people's clients ask of a host beside its guests.

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
	if !storage.Sees(c, name) {
		return nil, perl.Forbidden("/storage/" + name + ", Datastore.Audit|Datastore.AllocateSpace")
	}
	s, err := w.Store(name)
	if err != nil {
		return nil, err
	}
	defaults["storage"], defaults["dumpdir"] = name, s.Path+"/dump"
	return defaults, nil
}

// pruned are the backups of a storage with what a rule says of each: of every guest
// the newest are kept.
func pruned(c *core.Call) ([]map[string]any, error) {
	s, err := c.W.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	text := c.In["prune-backups"]
	switch {
	case !s.Holds("backup"):
		return nil, perl.Fail("storage '%s' does not support backups", s.Name)
	case text == "":
		if text = s.Extra["prune-backups"]; text == "" {
			return nil, perl.Fail("no prune-backups options configured for storage '%s'", s.Name)
		}
	}
	groups, list := map[string][]*core.Volume{}, []map[string]any{}
	for _, v := range s.List(c.In["node"]) {
		if v.Backup == nil || c.Has("vmid") && v.Vmid != c.Vmid() || c.Has("type") && v.Backup.Kind != c.In["type"] {
			continue
		}
		guest := fmt.Sprint(v.Backup.Kind, v.Vmid)
		groups[guest] = append(groups[guest], v)
	}
	keep := backup.RetentionOf(text)
	for _, guest := range slices.Sorted(maps.Keys(groups)) {
		verdicts := keep.Verdicts(groups[guest])
		for _, v := range groups[guest] {
			list = append(list, map[string]any{"volid": s.Name + ":" + v.Name, "vmid": v.Vmid, "ctime": v.Ctime, "type": v.Backup.Kind, "mark": verdicts[v]})
		}
	}
	return list, nil
}

// apiPruneInfo is GET …/prunebackups: what a pruning would do.
func apiPruneInfo(_ *core.World, c *core.Call) (any, error) {
	return pruned(c)
}

// apiPrune is DELETE …/prunebackups.
func apiPrune(w *core.World, c *core.Call) (any, error) {
	id := c.In["storage"]
	if c.Has("vmid") {
		id = c.In["vmid"] + "@" + id
	}
	return w.Fork(c, c.In["node"], core.Job{Kind: "prunebackups", ID: id, End: func(t *core.Task) error {
		list, err := pruned(c)
		if err != nil {
			return err
		}
		for _, entry := range list {
			if entry["mark"] == "remove" {
				t.Logf("removing backup '%s'", entry["volid"])
				if err := volumes.Free(w, t.Node, perl.Text(entry["volid"])); err != nil {
					return err
				}
			}
		}
		return nil
	}}), nil
}

// apiSetOptions is PUT /cluster/options.
func apiSetOptions(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	changed := maps.Clone(w.Options)
	c.Update(changed)
	if lower, upper := idRange(changed["next-id"]); lower > upper { // write_datacenter_config in PVE/DataCenterConfig.pm
		return nil, perl.Fail("lower (%d) <= upper (%d) boundary rule broken", lower, upper)
	}
	w.Options = changed
	return nil, nil
}

// idRange is where free ids of guests are looked for (the option next-id).
func idRange(option string) (lower, upper int) {
	lower, upper = 100, 1000000
	for part := range strings.SplitSeq(option, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case "lower":
			lower = perl.Atoi(value)
		case "upper":
			upper = perl.Atoi(value)
		}
	}
	return lower, upper
}

// apiClusterLog is GET /cluster/log: what tasks did, the newest first.
func apiClusterLog(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	note := func(t *core.Task, at int64, message string) {
		n := fmt.Sprint(len(list) + 1)
		list = append(list, map[string]any{
			"uid": n, "id": n + ":" + t.Node, "node": t.Node, "user": t.Who.String(), "tag": "pvedaemon", "pri": 6, "pid": t.Pid, "time": at, "msg": message,
		})
	}
	all := c.Can("/", "Sys.Syslog")
	for _, t := range w.Tasks.All {
		if !all && !c.Who.Owns(t.Who) {
			continue
		}
		note(t, t.Start.Unix(), "starting task "+t.UPID)
		if !t.Running() {
			note(t, t.Stopped.Unix(), "end task "+t.UPID+" "+t.Status)
		}
	}
	slices.Reverse(list)
	most := c.Num("max", 50)
	return list[:min(most, len(list))], nil
}

// apiNotBackedUp is GET /cluster/backup-info/not-backed-up.
func apiNotBackedUp(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	covered := map[int]bool{}
	for _, id := range slices.Sorted(maps.Keys(w.Sections["jobs"])) {
		job := w.Sections["jobs"][id]
		for _, vmid := range w.Vmids {
			covered[vmid] = covered[vmid] || coveredBy(w, job, vmid)
		}
	}
	for _, vmid := range w.Vmids {
		if g := w.Guests[vmid]; !covered[vmid] && c.Can(core.VMPath(vmid), "VM.Audit") {
			list = append(list, map[string]any{"vmid": vmid, "type": g.Kind, "name": guests.Sample(w, g).Name})
		}
	}
	return list, nil
}

// apiClusterNodes is GET /cluster/config/nodes: none without a cluster.
func apiClusterNodes(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	if len(w.Nodes) == 1 {
		return list, nil
	}
	for _, name := range w.NodeNames() {
		index := w.Nodes[name].Index
		list = append(list, map[string]any{
			"node": name, "name": name, "nodeid": fmt.Sprint(index), "quorum_votes": "1", "ring0_addr": fmt.Sprintf("192.0.2.%d", 1+index),
		})
	}
	return list, nil
}
