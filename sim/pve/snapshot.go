package pve

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Snapshot is the state of a host at one moment, for assertions. It shares
// nothing with the host.
type Snapshot struct {
	Guests  []Guest             // By VMID.
	Volumes map[string][]Volume // By storage, then by volume id.
	Pools   []pool              // By name.
	Tasks   []Task              // In the order they were started.

	Requests     map[string]int // By "METHOD /path/{template}"; unknown paths as sent.
	Writes       int            // Requests that are no GET and changed something or tried to.
	Connections  int            // TLS connections opened.
	PeakTasks    int            // Most tasks that ran at once.
	PeakByType   map[string]int // The same by type of task (qmcreate, …).
	PeakRequests int            // Most requests that were in service at once.
	// Unimplemented lists calls that the API has and the simulator has not, as
	// "METHOD /path/{template}". They were answered with 501.
	Unimplemented []string
	Sampled       time.Time // When the entry node's status daemon last looked.
}

// Guest is one VM or container.
type Guest struct {
	VMID    int
	Node    string
	Kind    string            // qemu or lxc.
	Config  map[string]string // As in the configuration file, without pending changes.
	Pending map[string]string // Waiting for the next full stop or start; "delete" lists keys.
	Running bool
	Lock    string
	Pool    string
	Digest  string

	Snapshots []string // In the order in which they were taken.
	HA        string   // State requested from the HA manager; empty if it is not managed.
}

// Name is the guest's name, as PVE shows it.
func (g Guest) Name() string {
	if g.Kind == "lxc" {
		return g.Config["hostname"]
	}
	return g.Config["name"]
}

// Volume is one volume of a storage.
type Volume struct {
	ID      string // STORAGE:NAME.
	Node    string // Empty on a shared storage.
	Content string
	Format  string
	Size    int64 // In bytes, as the guest sees it.
	VMID    int   // Owner, 0 for none.
	Parent  string

	Notes     string // Of a backup.
	Protected bool   // Of a backup: neither pruned nor removed.
}

// pool is one resource pool.
type pool struct {
	Name     string
	Comment  string
	Guests   []int
	Storages []string
}

// Task is one task, running or over.
type Task struct {
	UPID   string
	Node   string
	Type   string
	ID     string
	User   string // With the token's name: user@realm!token.
	Start  time.Time
	End    time.Time // Zero while it runs.
	Status string    // Exit status; empty while it runs.
	Log    []string
}

// Snapshot copies what the host holds now.
func (h *Host) Snapshot() Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.w
	w.Advance(h.clock.now())
	s := Snapshot{
		Volumes: map[string][]Volume{}, Requests: maps.Clone(w.Count.Requests), Writes: w.Count.Writes,
		Connections: w.Count.Connections, PeakTasks: w.Count.PeakTasks[""], PeakByType: maps.Clone(w.Count.PeakTasks),
		PeakRequests: w.Count.PeakRequests, Unimplemented: slices.Sorted(maps.Keys(w.Count.Unimplemented)),
		Sampled: w.Nodes[w.Cfg.Node].Sampled,
	}
	delete(s.PeakByType, "")
	s.Guests = guestsOf(w)
	for name, st := range w.Stores {
		list := []Volume{}
		for _, v := range st.Volumes {
			list = append(list, Volume{
				ID: name + ":" + v.Name, Node: v.Node, Content: v.Content, Format: v.Format, Size: v.Size, VMID: v.Vmid, Parent: v.Parent,
				Notes: v.Notes, Protected: v.Protected,
			})
		}
		sort.Slice(list, func(i, j int) bool {
			return cmp.Or(strings.Compare(list[i].ID, list[j].ID), strings.Compare(list[i].Node, list[j].Node)) < 0
		})
		s.Volumes[name] = list
	}
	for name, p := range perl.Sorted(w.Access.Pools) {
		shown := pool{Name: name, Guests: slices.Sorted(maps.Keys(p.Vms)), Storages: slices.Sorted(maps.Keys(p.Storages))}
		if p.Comment != nil {
			shown.Comment = *p.Comment
		}
		s.Pools = append(s.Pools, shown)
	}
	for _, t := range w.Tasks.All {
		s.Tasks = append(s.Tasks, Task{
			UPID: t.UPID, Node: t.Node, Type: t.Kind, ID: t.ID, User: t.Who.String(), Start: t.Start, End: t.Stopped,
			Status: t.Status, Log: slices.Clone(t.Log),
		})
	}
	return s
}

// Guests copies the guests that the host holds now, by VMID. It costs less than a Snapshot.
func (h *Host) Guests() []Guest {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w.Advance(h.clock.now())
	return guestsOf(h.w)
}

func guestsOf(w *core.World) []Guest {
	var all []Guest
	of := w.Access.PoolOf()
	for _, vmid := range w.Vmids {
		g := w.Guests[vmid]
		all = append(all, Guest{
			VMID: vmid, Node: g.Node, Kind: g.Kind, Config: maps.Clone(g.Conf), Pending: maps.Clone(g.Pend),
			Running: g.Run != nil, Lock: g.Conf["lock"], Pool: of[vmid], Digest: g.Sum(),
			Snapshots: snapshotNames(g), HA: w.HA.State(g),
		})
	}
	return all
}

// Guest finds a guest of the snapshot by its id.
func (s Snapshot) Guest(vmid int) (Guest, bool) {
	i, found := slices.BinarySearchFunc(s.Guests, vmid, func(g Guest, id int) int { return g.VMID - id })
	if !found {
		return Guest{}, false
	}
	return s.Guests[i], true
}

// snapshotNames are the names of the snapshots of a guest, oldest first.
func snapshotNames(g *core.Guest) []string {
	var names []string
	for _, s := range g.Snapshots {
		names = append(names, s.Name)
	}
	return names
}
