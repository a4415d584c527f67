package api

// ReadView lists nodes, storages and guests of a host; ReadConfig reads the configuration of one guest. Both report
// gaps: absence from an incomplete list is not evidence.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/engine/model"
)

// ListedGuest is a guest as the cluster's list shows it. Existence, node, lock and tags
// are fresh; name and status may be ten seconds old, and a new guest has no name
// at all (pve-manager, API2Tools.pm).
type ListedGuest struct {
	VMID     int
	Node     string
	LXC      bool
	Name     string // "" if not known
	Tags     []string
	Lock     string
	Pool     string // that it is in, as far as the cluster's list shows it (Pool.Audit); "" for none
	Running  bool
	QMP      string     // of a VM whose processors do not run: what QEMU says; only the cluster's list has it
	Uptime   int        // seconds since PVE started it; only fresh lists have it
	HA       string     // state in the HA manager, "" if not managed; as old as its last cycle
	Size     model.Size // memory and cores; only the cluster's list has them
	Template bool       // it never runs; only the cluster's list has it
}

// Kind returns PVE's name for such a guest: ct or vm.
func (g ListedGuest) Kind() string { return g.Ref().Kind() }

// Ref is its location.
func (g ListedGuest) Ref() GuestRef { return GuestRef{g.Node, g.VMID, g.LXC} }

// Power is its power state, as in the files.
func (g ListedGuest) Power() string {
	if g.Running {
		return "running"
	}
	return "stopped"
}

// View is the state of the cluster that a pass reads before any guest.
type View struct {
	Nodes             map[string]bool // by name: online
	Guests            map[int]ListedGuest
	Storages          map[NodeStorage]string     // storages that the token may see, by node: the content that each takes
	Rooms             map[NodeStorage]model.Room // of these, as far as their figures are known
	Places            map[string]model.Place     // nodes by name: what the list says of each
	Folders           []NodeStorage              // storages that are listed as a whole, see isFolder
	Unknown           []model.Unknown
	LimitedVisibility bool            // the token sees the guests of some pools only: others may exist
	SeesTasks         map[string]bool // by node: the token sees the tasks of others there
	AuditsCluster     bool            // the token has Sys.Audit on /: it sees the settings of the cluster
	HasPools          bool            // the token may see a pool, by the same privilege as in the list of pools (Pool.Audit)
}

// notObserved records that nothing on the host is known for sure.
func (v *View) notObserved(scope, why string) {
	v.Unknown = append(v.Unknown, model.Unknown{Scope: scope, Why: why, All: true})
}

// ReadView reads the cluster's list once, and what shows whether that list can be
// trusted: quorum, the state of the nodes, and whether the token sees guests at all.
// A list that may be short is not an error: what it cannot show is in Unknown.
func (c *Client) ReadView(ctx context.Context, h *model.Host) (*View, error) {
	v := &View{Nodes: map[string]bool{}, Guests: map[int]ListedGuest{}, Storages: map[NodeStorage]string{}, Rooms: map[NodeStorage]model.Room{}, Places: map[string]model.Place{}}
	var status []map[string]json.RawMessage
	var rights map[string]privileges
	var statusErr error
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := c.Rows(gctx, "/cluster/resources", v.readResource)
		return err
	})
	g.Go(func() error { return c.Get(gctx, "/access/permissions", &rights) })
	g.Go(func() error {
		statusErr = c.Get(gctx, "/cluster/status", &status)
		if statusErr != nil && ClassOf(statusErr) == Denied {
			return nil // only Sys.Audit on / shows it; decided below by the nodes
		}
		return statusErr
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	v.AuditsCluster = statusErr == nil
	v.checkRights(rights)
	v.SeesTasks = map[string]bool{}
	for n := range v.Nodes {
		v.SeesTasks[n] = audits(rights, n)
	}
	v.checkNodes(h)
	v.checkQuorum(status, statusErr)
	return v, nil
}

func (v *View) readResource(e Row) {
	switch kind := e.Text("type"); kind {
	case "node":
		name := e.Text("node")
		v.Nodes[name] = IsOnline(e.Text("status"))
		p := model.Place{Name: name, Memory: e.Number("maxmem") >> 20, Cores: e.Number("maxcpu")}
		if !v.Nodes[name] {
			p.Closed = "offline"
		} else if state := e.Text("hastate"); state == "maintenance" || state == "fence" || state == "gone" {
			p.Closed = "the HA manager has it as " + state // (pve-ha-manager, PVE/HA/NodeStatus.pm)
		}
		v.Places[name] = p
	case "pool":
		v.HasPools = true
	case "storage":
		at := NodeStorage{e.Text("node"), e.Text("storage")}
		v.Storages[at] = e.Text("content")
		if total := e.Number("maxdisk"); total > 0 {
			v.Rooms[at] = model.Room{Free: (total - e.Number("disk")) >> 30, Shared: e.Text("shared") == "1"}
		}
		if isFolder(e) {
			v.Folders = append(v.Folders, at)
		}
	case "qemu", "lxc":
		g := e.Listed(e.Text("node"), kind == "lxc")
		g.HA, g.Pool = e.Text("hastate"), e.Text("pool")
		g.Size, g.Template = model.Size{Memory: e.Number("maxmem") >> 20, Cores: e.Number("maxcpu")}, e.Text("template") == "1"
		if e.Text("status") == "unknown" {
			g.Name = "" // not sampled yet, or not any more; a name beside it would be a stale one
		}
		if status := e.Text("status"); kind == "qemu" && !slices.Contains([]string{"", "running", "stopped", "unknown"}, status) {
			g.QMP = status
		}
		v.Guests[g.VMID] = g
	}
}

// IsOnline reads the state of a node. Unknown is one of which no figures have come for
// minutes, since its pvestatd hangs or has just begun; of one that is away PVE says that it
// is offline (pve-manager, API2Tools.pm, extract_node_stats).
func IsOnline(status string) bool { return status == "online" || status == "unknown" }

// privileges are the known privileges of the token on a path: nil is one that it lacks, 0 one that is not passed
// down. An administrator has some forty on each path, and reading all of them took longer than the rest of the view.
type privileges struct {
	VMAudit  json.RawMessage `json:"VM.Audit"`
	SysAudit json.RawMessage `json:"Sys.Audit"`
}

// checkRights: PVE leaves out of a list what the token may not see, without a
// word. A token that may see no guest anywhere sees an empty host.
func (v *View) checkRights(rights map[string]privileges) {
	for path, privs := range rights {
		if privs.VMAudit == nil {
			continue
		}
		switch {
		case path == "/" || path == "/vms":
			if Text(privs.VMAudit) == "0" {
				continue // of the path alone, and of no guest below it
			}
			v.LimitedVisibility = false
			return
		case strings.HasPrefix(path, "/vms/"), strings.HasPrefix(path, "/pool/"):
			v.LimitedVisibility = true
		}
	}
	if v.LimitedVisibility {
		return
	}
	v.Unknown = append(v.Unknown, model.Unknown{
		Scope: "all guests", All: true, Denied: true,
		Why: "the API token may see no guest (VM.Audit is missing on /, /vms and every pool), so an empty list proves nothing; grant a role to the token, not only to its user",
	})
}

// audits reports whether the token has Sys.Audit on a node: by the rights on its own path, else by what the next path
// above passes down (pve-access-control, RPCEnvironment.pm, permissions).
func audits(rights map[string]privileges, node string) bool {
	own := "/nodes/" + node
	for _, path := range []string{own, "/nodes", "/"} {
		if privs, there := rights[path]; there {
			return privs.SysAudit != nil && (path == own || Text(privs.SysAudit) != "0")
		}
	}
	return false
}

// checkNodes: a list without the node itself is short, or from another host.
func (v *View) checkNodes(h *model.Host) {
	for _, n := range h.AllNodes() {
		online, known := v.Nodes[n]
		switch {
		case !known && len(v.Nodes) == 0:
			v.notObserved("host "+h.Name, "the list of the cluster contains no node: it is incomplete, or the token lacks Sys.Audit on /nodes/"+n)
		case !known:
			known := slices.Sorted(maps.Keys(v.Nodes))
			v.Unknown = append(v.Unknown, model.Unknown{
				Scope: "node " + n, Node: n, All: n == h.PVENode(),
				Why: fmt.Sprintf("%s has no node of that name (it has %s): is api the URL of another host, or node misspelt?", h.API, strings.Join(known, ", ")),
			})
		case !online:
			v.Unknown = append(v.Unknown, model.Unknown{Scope: "node " + n, Why: "offline", Node: n})
		}
	}
}

func (v *View) checkQuorum(status []map[string]json.RawMessage, err error) {
	if err != nil { // denied: PVE itself refuses writes without quorum, but what it shows may be old
		for n, online := range v.Nodes {
			if len(v.Nodes) > 1 && !online {
				v.notObserved("cluster", fmt.Sprintf("node %s is offline and the token may not see the quorum (Sys.Audit on /)", n))
				return
			}
		}
		return
	}
	for _, e := range status {
		if Text(e["type"]) == "cluster" && Text(e["quorate"]) == "0" {
			v.notObserved("cluster", "no quorum: what this node shows may be old, and it takes no writes")
		}
	}
	if len(status) == 0 {
		v.notObserved("cluster", "its status is empty: the view is incomplete")
	}
}

// isFolder reports whether a row of the cluster's list is a storage that is cheap to list
// as a whole: a folder on the node's own disks that may not have disks of guests. PVE
// lists no kind that a storage may not have (PVE/Storage.pm, volume_list); of disks it
// starts qemu-img for each, and files beyond a network are slow to read.
func isFolder(e Row) bool {
	kinds := strings.Split(e.Text("content"), ",")
	return e.Text("plugintype") == "dir" && e.Text("shared") == "0" &&
		!slices.Contains(kinds, "images") && !slices.Contains(kinds, "rootdir")
}

// Listed reads what all lists of guests have.
func (r Row) Listed(node string, lxc bool) ListedGuest {
	g := ListedGuest{
		VMID: r.Number("vmid"), Node: node, LXC: lxc, Name: r.Text("name"),
		Tags: SplitTags(r.Text("tags")), Lock: r.Text("lock"), Running: r.Text("status") == "running",
	}
	if at := g.Ref().String(); g.Name == at || g.Name == strings.Replace(at, " ", "", 1) {
		g.Name = "" // what PVE shows for a guest without a name: "VM 100", "CT100" (PVE/QemuServer.pm, PVE/LXC.pm, vmstatus)
	}
	return g
}

// NodeStorage is a storage as a node of PVE has it.
type NodeStorage struct{ Node, Storage string }

// IsTaken asks PVE whether some guest has a VMID, be it one that the token may not see.
func (c *Client) IsTaken(ctx context.Context, vmid int) (bool, error) {
	err := c.Get(ctx, fmt.Sprintf("/cluster/nextid?vmid=%d", vmid), nil)
	if class := ClassOf(err); class == Invalid || class == Exists {
		return true, nil
	}
	return false, err
}
