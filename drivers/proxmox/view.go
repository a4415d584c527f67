package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// listed is a guest as the cluster's list shows it. Existence, node, lock and tags
// are fresh; name and status may be ten seconds old, and a new guest has no name
// at all (pve-manager, API2Tools.pm).
type listed struct {
	vmid    int
	node    string
	lxc     bool
	name    string // "" if not known
	tags    []string
	lock    string
	pool    string // that it is in, as far as the cluster's list shows it (Pool.Audit); "" for none
	running bool
	qmp     string // of a VM whose processors do not run: what QEMU says; only the cluster's list has it
	uptime  int    // seconds since PVE started it; only fresh lists have it
	ha      string // state in the HA manager, "" if not managed; as old as its last cycle
}

// kind is that of its place.
func (g listed) kind() string { return g.place().kind() }

func (g listed) place() place { return place{g.node, g.vmid, g.lxc} }

// hostView is what a pass knows of the cluster before it reads any guest.
type hostView struct {
	nodes   map[string]bool // by name: online
	guests  map[int]listed
	stores  map[shelf]string // storages that the token may see, by node: the content that each takes
	folders []shelf          // storages that are listed as a whole, see isFolder
	unknown []model.Unknown
	narrow  bool            // the token sees the guests of some pools only: others may exist unseen
	audits  map[string]bool // by node: the token sees the tasks of others there
}

// blind marks that nothing on the host is known for sure.
func (v *hostView) blind(scope, why string) {
	v.unknown = append(v.unknown, model.Unknown{Scope: scope, Why: why, All: true})
}

// readView reads the cluster's list once, and what tells whether that list can be
// trusted: quorum, the state of the nodes, and whether the token sees guests at all.
// A list that may be short makes the view blind; it is no error.
func readView(ctx context.Context, c *api.Client, h *model.Host) (*hostView, error) {
	v := &hostView{nodes: map[string]bool{}, guests: map[int]listed{}, stores: map[shelf]string{}}
	var status []map[string]json.RawMessage
	var rights map[string]map[string]json.RawMessage
	var statusErr error
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := c.Rows(gctx, "/cluster/resources", v.readResource)
		return err
	})
	g.Go(func() error { return c.Get(gctx, "/access/permissions", &rights) })
	g.Go(func() error {
		statusErr = c.Get(gctx, "/cluster/status", &status)
		if statusErr != nil && api.ClassOf(statusErr) == api.Denied {
			return nil // only Sys.Audit on / shows it; judged below by the nodes
		}
		return statusErr
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	v.checkRights(rights)
	v.audits = map[string]bool{}
	for n := range v.nodes {
		v.audits[n] = audits(rights, n)
	}
	v.checkNodes(h)
	v.checkQuorum(status, statusErr)
	return v, nil
}

func (v *hostView) readResource(e api.Row) {
	switch kind := e.Text("type"); kind {
	case "node":
		v.nodes[e.Text("node")] = isOnline(e.Text("status"))
	case "storage":
		at := shelf{e.Text("node"), e.Text("storage")}
		v.stores[at] = e.Text("content")
		if isFolder(e) {
			v.folders = append(v.folders, at)
		}
	case "qemu", "lxc":
		g := guest(e, e.Text("node"), kind == "lxc")
		g.ha, g.pool = e.Text("hastate"), e.Text("pool")
		if e.Text("status") == "unknown" {
			g.name = "" // not sampled yet, or not any more; a name beside it would be a stale one
		}
		if status := e.Text("status"); kind == "qemu" && !slices.Contains([]string{"", "running", "stopped", "unknown"}, status) {
			g.qmp = status
		}
		v.guests[g.vmid] = g
	}
}

// isOnline reads the state of a node. Unknown is one of which no figures have come for
// minutes, since its pvestatd hangs or has just begun; of one that is away PVE says that it
// is offline (pve-manager, API2Tools.pm, extract_node_stats).
func isOnline(status string) bool { return status == "online" || status == "unknown" }

// checkRights: PVE leaves out of a list what the token may not see, without a
// word. A token that may see no guest anywhere sees an empty host.
func (v *hostView) checkRights(rights map[string]map[string]json.RawMessage) {
	for path, privs := range rights {
		propagates, ok := privs["VM.Audit"]
		if !ok {
			continue
		}
		switch {
		case path == "/" || path == "/vms":
			if api.Text(propagates) == "0" {
				continue // of the path alone, and of no guest below it
			}
			v.narrow = false
			return
		case strings.HasPrefix(path, "/vms/"), strings.HasPrefix(path, "/pool/"):
			v.narrow = true
		}
	}
	if v.narrow {
		return
	}
	v.unknown = append(v.unknown, model.Unknown{
		Scope: "all guests", All: true, Denied: true,
		Why: "the API token may see no guest (VM.Audit is missing on /, /vms and every pool), so an empty list proves nothing; grant a role to the token, not only to its user",
	})
}

// audits reports whether the token has Sys.Audit on a node: by the rights on its own path, else by what the next path
// above passes down (pve-access-control, RPCEnvironment.pm, permissions).
func audits(rights map[string]map[string]json.RawMessage, node string) bool {
	own := "/nodes/" + node
	for _, path := range []string{own, "/nodes", "/"} {
		if privs, there := rights[path]; there {
			passes, has := privs["Sys.Audit"]
			return has && (path == own || api.Text(passes) != "0")
		}
	}
	return false
}

// checkNodes: a list without the node itself is short, or from another host.
func (v *hostView) checkNodes(h *model.Host) {
	for _, n := range h.AllNodes() {
		online, known := v.nodes[n]
		switch {
		case !known && len(v.nodes) == 0:
			v.blind("host "+h.Name, "the list of the cluster holds no node: it is incomplete, or the token lacks Sys.Audit on /nodes/"+n)
		case !known:
			known := slices.Sorted(maps.Keys(v.nodes))
			v.unknown = append(v.unknown, model.Unknown{
				Scope: "node " + n, Node: n, All: n == h.PVENode(),
				Why: fmt.Sprintf("%s knows no such node (it has %s): is api the URL of another host, or node misspelt?", h.API, strings.Join(known, ", ")),
			})
		case !online:
			v.unknown = append(v.unknown, model.Unknown{Scope: "node " + n, Why: "offline", Node: n})
		}
	}
}

func (v *hostView) checkQuorum(status []map[string]json.RawMessage, err error) {
	if err != nil { // denied: PVE itself refuses writes without quorum, but what it shows may be old
		for n, online := range v.nodes {
			if len(v.nodes) > 1 && !online {
				v.blind("cluster", fmt.Sprintf("node %s is offline and the token may not see the quorum (Sys.Audit on /)", n))
				return
			}
		}
		return
	}
	for _, e := range status {
		if api.Text(e["type"]) == "cluster" && api.Text(e["quorate"]) == "0" {
			v.blind("cluster", "no quorum: what this node shows may be old, and it takes no writes")
		}
	}
	if len(status) == 0 {
		v.blind("cluster", "its status is empty: the view is incomplete")
	}
}

// isFolder reports whether a row of the cluster's list is a storage that is cheap to list
// as a whole: a folder on the node's own disks that may hold no disks of guests. PVE
// lists no kind that a storage may not hold (PVE/Storage.pm, volume_list); of disks it
// starts qemu-img for each, and files beyond a network are slow to look at.
func isFolder(e api.Row) bool {
	kinds := strings.Split(e.Text("content"), ",")
	return e.Text("plugintype") == "dir" && e.Text("shared") == "0" &&
		!slices.Contains(kinds, "images") && !slices.Contains(kinds, "rootdir")
}

// guest reads what all lists of guests have.
func guest(r api.Row, node string, lxc bool) listed {
	g := listed{
		vmid: r.Number("vmid"), node: node, lxc: lxc, name: r.Text("name"),
		tags: property.SplitTags(r.Text("tags")), lock: r.Text("lock"), running: r.Text("status") == "running",
	}
	if at := g.place().String(); g.name == at || g.name == strings.Replace(at, " ", "", 1) {
		g.name = "" // what PVE shows for a guest without a name: "VM 100", "CT100" (PVE/QemuServer.pm, PVE/LXC.pm, vmstatus)
	}
	return g
}

// shelf is a storage as a node of PVE has it.
type shelf struct{ node, storage string }

// power is what it does, as the files say it.
func (g listed) power() string {
	if g.running {
		return "running"
	}
	return "stopped"
}
