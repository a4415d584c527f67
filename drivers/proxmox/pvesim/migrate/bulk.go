package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/lxc"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/qemu"
)

// Calls that do one thing to many guests: one task, which starts the tasks of each
// (PVE/API2/Nodes.pm, and since 9.1 PVE/API2/Cluster/BulkAction/Guest.pm).

// bulkAction is what is done to each guest.
type bulkAction struct {
	kind string // Of the task.
	priv string // What it takes on each guest.
	// skip says whether a guest that nobody named is left alone.
	skip func(*core.Guest, *core.Call) bool
	// each is the call for one guest of a kind.
	each func(*core.Guest) (name string, h core.Handler)
	// params are what each call gets of the whole one's parameters.
	params func(*core.Call, *core.Guest) map[string]string
}

// bulkActions are the calls by their method.
var bulkActions = map[string]bulkAction{
	"POST /nodes/{node}/startall":              startAll("startall"),
	"POST /nodes/{node}/stopall":               stopAll("stopall"),
	"POST /nodes/{node}/suspendall":            suspendAll("suspendall"),
	"POST /nodes/{node}/migrateall":            migrateAll("migrateall"),
	"POST /cluster/bulk-action/guest/start":    startAll("bulkstart"),
	"POST /cluster/bulk-action/guest/shutdown": stopAll("bulkshutdown"),
	"POST /cluster/bulk-action/guest/suspend":  suspendAll("bulksuspend"),
	"POST /cluster/bulk-action/guest/migrate":  migrateAll("bulkmigrate"),
}

func noParams(*core.Call, *core.Guest) map[string]string { return nil }

func startAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt", params: noParams,
		skip: func(g *core.Guest, c *core.Call) bool {
			return g.Run != nil || g.Conf["template"] == "1" || kind == "startall" && !c.Flag("force") && g.Conf["onboot"] != "1"
		},
		each: func(g *core.Guest) (string, core.Handler) {
			if g.Kind == "lxc" {
				return "POST /nodes/{node}/lxc/{vmid}/status/start", lxc.APIStartCT
			}
			return "POST /nodes/{node}/qemu/{vmid}/status/start", qemu.APIStart
		},
	}
}

func stopAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *core.Guest, _ *core.Call) bool { return g.Run == nil },
		each: func(g *core.Guest) (string, core.Handler) {
			if g.Kind == "lxc" {
				return "POST /nodes/{node}/lxc/{vmid}/status/shutdown", lxc.APIShutdownCT
			}
			return "POST /nodes/{node}/qemu/{vmid}/status/shutdown", qemu.APIShutdown
		},
		params: func(c *core.Call, _ *core.Guest) map[string]string {
			return map[string]string{"forceStop": cmp.Or(c.In["force-stop"], "1"), "timeout": cmp.Or(c.In["timeout"], "180")}
		},
	}
}

func suspendAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *core.Guest, _ *core.Call) bool { return g.Run == nil || g.Kind == "lxc" },
		each: func(*core.Guest) (string, core.Handler) {
			return "POST /nodes/{node}/qemu/{vmid}/status/suspend", qemu.APISuspend
		},
		params: func(c *core.Call, _ *core.Guest) map[string]string {
			return map[string]string{"todisk": cmp.Or(c.In["to-disk"], "0")}
		},
	}
}

func migrateAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.Migrate",
		skip: func(g *core.Guest, c *core.Call) bool { return g.Node == c.In["target"] },
		each: func(g *core.Guest) (string, core.Handler) {
			return "POST /nodes/{node}/" + g.Kind + "/{vmid}/migrate", apiMigrate
		},
		params: func(c *core.Call, g *core.Guest) map[string]string {
			if g.Kind == "lxc" {
				return map[string]string{"target": c.In["target"], "restart": strconv.Itoa(perl.BoolInt(g.Run != nil))}
			}
			return map[string]string{
				"target": c.In["target"], "online": strconv.Itoa(perl.BoolInt(g.Run != nil)), "with-local-disks": cmp.Or(c.In["with-local-disks"], "0"),
			}
		},
	}
}

func bulkRoutes() map[string]core.Handler {
	all := map[string]core.Handler{}
	for name := range bulkActions {
		all[name] = APIBulk
	}
	return all
}

// APIBulk is any of them.
func APIBulk(w *core.World, c *core.Call) (any, error) {
	action := bulkActions[c.Req.Method+" "+c.M.Path]
	named := c.List("vms")
	if !c.Can("/", action.priv) {
		if len(named) == 0 {
			return nil, perl.Forbidden("/, " + action.priv)
		}
		for _, vmid := range named {
			if err := c.Need("/vms/"+vmid, action.priv); err != nil {
				return nil, err
			}
		}
	}
	if target := c.In["target"]; target != "" && w.Nodes[target] == nil {
		return nil, perl.Fail("no such cluster node '%s'", target)
	}
	node := c.In["node"]
	return w.Fork(c, cmp.Or(node, w.Cfg.Node), core.Job{Kind: action.kind, Begin: func(t *core.Task) error {
		for _, g := range bulkOrder(w, node, named) {
			if action.skip(g, c) {
				continue
			}
			t.Logf("%s %s %d", action.kind, map[string]string{"qemu": "VM", "lxc": "CT"}[g.Kind], g.Vmid)
			one := *c
			name, h := action.each(g)
			one.M = property.Method(name)
			one.In = map[string]string{"node": g.Node, "vmid": fmt.Sprint(g.Vmid)}
			maps.Copy(one.In, action.params(c, g))
			if _, err := h(w, &one); err != nil {
				t.Warn(fmt.Sprintf("guest %d: %s", g.Vmid, strings.TrimSpace(err.Error())))
			}
		}
		return nil
	}}), nil
}

// bulkOrder are the guests of a node (or of all nodes), those of a lower startup
// order first, only the named ones if any are.
func bulkOrder(w *core.World, node string, named []string) []*core.Guest {
	var list []*core.Guest
	for _, vmid := range w.Vmids {
		g := w.Guests[vmid]
		if (node == "" || g.Node == node) && (len(named) == 0 || slices.Contains(named, fmt.Sprint(vmid))) {
			list = append(list, g)
		}
	}
	order := func(g *core.Guest) int {
		if n, err := strconv.Atoi(perl.OptionOf(g.Conf["startup"], "order")); err == nil {
			return n
		}
		return 1 << 30
	}
	slices.SortStableFunc(list, func(a, b *core.Guest) int { return cmp.Compare(order(a), order(b)) })
	return list
}
