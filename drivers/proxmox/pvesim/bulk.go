package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Calls that do one thing to many guests: one task, which starts the tasks of each
// (PVE/API2/Nodes.pm, and since 9.1 PVE/API2/Cluster/BulkAction/Guest.pm).

// bulkAction is what is done to each guest.
type bulkAction struct {
	kind string // Of the task.
	priv string // What it takes on each guest.
	// skip says whether a guest that nobody named is left alone.
	skip func(*guest, *call) bool
	// each is the call for one guest of a kind.
	each func(*guest) (name string, h handler)
	// params are what each call gets of the whole one's parameters.
	params func(*call, *guest) map[string]string
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

func noParams(*call, *guest) map[string]string { return nil }

func startAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt", params: noParams,
		skip: func(g *guest, c *call) bool {
			return g.run != nil || g.conf["template"] == "1" || kind == "startall" && !c.flag("force") && g.conf["onboot"] != "1"
		},
		each: func(g *guest) (string, handler) {
			if g.kind == "lxc" {
				return "POST /nodes/{node}/lxc/{vmid}/status/start", apiStartCT
			}
			return "POST /nodes/{node}/qemu/{vmid}/status/start", apiStart
		},
	}
}

func stopAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *guest, _ *call) bool { return g.run == nil },
		each: func(g *guest) (string, handler) {
			if g.kind == "lxc" {
				return "POST /nodes/{node}/lxc/{vmid}/status/shutdown", apiShutdownCT
			}
			return "POST /nodes/{node}/qemu/{vmid}/status/shutdown", apiShutdown
		},
		params: func(c *call, _ *guest) map[string]string {
			return map[string]string{"forceStop": cmp.Or(c.in["force-stop"], "1"), "timeout": cmp.Or(c.in["timeout"], "180")}
		},
	}
}

func suspendAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *guest, _ *call) bool { return g.run == nil || g.kind == "lxc" },
		each: func(*guest) (string, handler) { return "POST /nodes/{node}/qemu/{vmid}/status/suspend", apiSuspend },
		params: func(c *call, _ *guest) map[string]string {
			return map[string]string{"todisk": cmp.Or(c.in["to-disk"], "0")}
		},
	}
}

func migrateAll(kind string) bulkAction {
	return bulkAction{
		kind: kind, priv: "VM.Migrate",
		skip: func(g *guest, c *call) bool { return g.node == c.in["target"] },
		each: func(g *guest) (string, handler) {
			return "POST /nodes/{node}/" + g.kind + "/{vmid}/migrate", apiMigrate
		},
		params: func(c *call, g *guest) map[string]string {
			if g.kind == "lxc" {
				return map[string]string{"target": c.in["target"], "restart": strconv.Itoa(boolInt(g.run != nil))}
			}
			return map[string]string{
				"target": c.in["target"], "online": strconv.Itoa(boolInt(g.run != nil)), "with-local-disks": cmp.Or(c.in["with-local-disks"], "0"),
			}
		},
	}
}

func bulkRoutes() map[string]handler {
	all := map[string]handler{}
	for name := range bulkActions {
		all[name] = apiBulk
	}
	return all
}

// apiBulk is any of them.
func apiBulk(w *world, c *call) (any, error) {
	action := bulkActions[c.req.method+" "+c.m.Path]
	named := c.list("vms")
	if !c.can("/", action.priv) {
		if len(named) == 0 {
			return nil, forbidden("/, " + action.priv)
		}
		for _, vmid := range named {
			if err := c.need("/vms/"+vmid, action.priv); err != nil {
				return nil, err
			}
		}
	}
	if target := c.in["target"]; target != "" && w.nodes[target] == nil {
		return nil, fail("no such cluster node '%s'", target)
	}
	node := c.in["node"]
	return w.fork(c, cmp.Or(node, w.cfg.Node), job{kind: action.kind, begin: func(t *task) error {
		for _, g := range w.bulkOrder(node, named) {
			if action.skip(g, c) {
				continue
			}
			t.logf("%s %s %d", action.kind, map[string]string{"qemu": "VM", "lxc": "CT"}[g.kind], g.vmid)
			one := *c
			name, h := action.each(g)
			one.m = method(name)
			one.in = map[string]string{"node": g.node, "vmid": fmt.Sprint(g.vmid)}
			maps.Copy(one.in, action.params(c, g))
			if _, err := h(w, &one); err != nil {
				t.warn(fmt.Sprintf("guest %d: %s", g.vmid, strings.TrimSpace(err.Error())))
			}
		}
		return nil
	}}), nil
}

// bulkOrder are the guests of a node (or of all nodes), those of a lower startup
// order first, only the named ones if any are.
func (w *world) bulkOrder(node string, named []string) []*guest {
	var list []*guest
	for _, vmid := range w.vmids {
		g := w.guests[vmid]
		if (node == "" || g.node == node) && (len(named) == 0 || slices.Contains(named, fmt.Sprint(vmid))) {
			list = append(list, g)
		}
	}
	order := func(g *guest) int {
		if n, err := strconv.Atoi(optionOf(g.conf["startup"], "order")); err == nil {
			return n
		}
		return 1 << 30
	}
	slices.SortStableFunc(list, func(a, b *guest) int { return cmp.Compare(order(a), order(b)) })
	return list
}
