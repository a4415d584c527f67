package transfer

import (
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// replicationArea is replication jobs.
func replicationArea() core.Area {
	f := replicationFile()
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/replication":         f.APIList,
			"POST /cluster/replication":        f.APICreate,
			"GET /cluster/replication/{id}":    f.APIRead,
			"PUT /cluster/replication/{id}":    f.APIUpdate,
			"DELETE /cluster/replication/{id}": apiDropReplicationJob,
		},
	}
}

// Replication jobs (PVE/API2/ReplicationConfig.pm, PVE/API2/Replication.pm): they are stored and shown, and run on
// request, without copying data.

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

// mayReplicate checks the conditions of a new job: a guest with volumes that can be copied, and
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
		for _, key := range g.Conf.MountNames() {
			if m := perl.ParseMount(key, g.Conf[key]); perl.OptionOf(g.Conf[key], "replicate") != "0" && strings.Contains(m.Volume, ":") {
				volumes = append(volumes, m.Volume)
			}
		}
		return volumes
	}
	for _, key := range g.Conf.DriveNames() {
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
	job := f.Sections(w)[id]
	if err := f.Guard(c, id, nil, true); err != nil {
		return nil, err
	}
	switch {
	case c.Flag("force") && c.Flag("keep"):
		return nil, perl.BadParam("keep", "conflicts with parameter 'force'")
	case c.Flag("force"):
		delete(f.Sections(w), id)
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
		}
	})
	return nil, nil
}
