package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/lxc"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// Calls that do one thing to many guests: one task, which starts the tasks of each
// (PVE/API2/Nodes.pm, and since 9.1 PVE/API2/Cluster/BulkAction/Guest.pm).

// bulkAction is what is done to each guest.
type bulkAction struct {
	kind string // Of the task.
	priv string // What it takes on each guest.
	// skip says whether a guest that nobody named is left alone.
	skip func(*core.Guest, *core.Call) bool
	path string                  // Of the call for one guest, behind that of the guest.
	each map[string]core.Handler // That call, by the kind of guest.
	// params are what each call gets of the whole one's parameters; nil is nothing.
	params func(*core.Call, *core.Guest) map[string]string
}

// StartAll starts the guests of a node or of the cluster.
func StartAll(kind string) core.Handler {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *core.Guest, c *core.Call) bool {
			return g.Run != nil || g.Conf["template"] == "1" || kind == "startall" && !c.Flag("force") && g.Conf["onboot"] != "1"
		},
		path: "status/start", each: byKind(qemu.APIStart, lxc.APIStartCT),
	}.handle
}

func stopAll(kind string) core.Handler {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *core.Guest, _ *core.Call) bool { return g.Run == nil },
		path: "status/shutdown", each: byKind(qemu.APIShutdown, lxc.Shutdown),
		params: func(c *core.Call, _ *core.Guest) map[string]string {
			return map[string]string{"forceStop": cmp.Or(c.In["force-stop"], "1"), "timeout": cmp.Or(c.In["timeout"], "180")}
		},
	}.handle
}

func suspendAll(kind string) core.Handler {
	return bulkAction{
		kind: kind, priv: "VM.PowerMgmt",
		skip: func(g *core.Guest, _ *core.Call) bool { return g.Run == nil || g.Kind == "lxc" },
		path: "status/suspend", each: byKind(qemu.Suspend, nil),
		params: func(c *core.Call, _ *core.Guest) map[string]string {
			return map[string]string{"todisk": cmp.Or(c.In["to-disk"], "0")}
		},
	}.handle
}

func migrateAll(kind string) core.Handler {
	return bulkAction{
		kind: kind, priv: "VM.Migrate",
		skip: func(g *core.Guest, c *core.Call) bool { return g.Node == c.In["target"] },
		path: "migrate", each: byKind(apiMigrate, apiMigrate),
		params: func(c *core.Call, g *core.Guest) map[string]string {
			running := strconv.Itoa(perl.BoolInt(g.Run != nil))
			if g.Kind == "lxc" {
				return map[string]string{"target": c.In["target"], "restart": running}
			}
			return map[string]string{"target": c.In["target"], "online": running, "with-local-disks": cmp.Or(c.In["with-local-disks"], "0")}
		},
	}.handle
}

func byKind(vm, ct core.Handler) map[string]core.Handler {
	return map[string]core.Handler{"qemu": vm, "lxc": ct}
}

// handle is the call for all guests.
func (action bulkAction) handle(w *core.World, c *core.Call) (any, error) {
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
			t.Logf("%s %s %d", action.kind, g.Title(), g.Vmid)
			one := *c
			one.M = perl.Method("POST /nodes/{node}/" + g.Kind + "/{vmid}/" + action.path)
			one.In = map[string]string{"node": g.Node, "vmid": fmt.Sprint(g.Vmid)}
			if action.params != nil {
				maps.Copy(one.In, action.params(c, g))
			}
			if _, err := action.each[g.Kind](w, &one); err != nil {
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
