package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/transfer"
)

// apiPowerNode is POST /nodes/{node}/status: the node goes down with its guests, and
// after a reboot comes back and starts those that start with it.
func apiPowerNode(w *core.World, c *core.Call) (any, error) {
	name := c.In["node"]
	down := w.Now.Add(2 * time.Second) // What the call sleeps before it, so as to be answered.
	w.At(down, func() {
		for _, vmid := range w.Vmids {
			if g := w.Guests[vmid]; g.Node == name && g.Run != nil {
				guests.PowerOff(w, g, w.RootCall())
			}
		}
		if w.Nodes[name] != nil { // It may have left the cluster meanwhile.
			guests.SetOffline(w, name, true)
		}
	})
	if c.In["command"] == "reboot" {
		w.At(down.Add(time.Minute), func() {
			if w.Nodes[name] == nil {
				return
			}
			guests.SetOffline(w, name, false)
			boot := w.RootCall()
			boot.In["node"] = name
			if _, err := transfer.StartAll("startall")(w, boot); err != nil {
				panic(fmt.Sprintf("pvesim: starting guests with their node: %v", err)) // Root may.
			}
		})
	}
	return nil, nil
}

// apiJoinCluster is POST /cluster/config/join: a task that finds what keeps this node
// from it (assert_joinable in PVE/Cluster/Setup.pm), or no cluster there.
func apiJoinCluster(w *core.World, c *core.Call) (any, error) {
	host, force := c.In["hostname"], c.Flag("force")
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "clusterjoin", End: func(t *core.Task) error {
		var wrong []string
		if len(w.Nodes) > 1 {
			wrong = append(wrong, "authentication key '/etc/corosync/authkey' already exists", "cluster config '/etc/pve/corosync.conf' already exists")
		}
		if len(w.Guests) > 0 {
			wrong = append(wrong, "this host already contains virtual guests")
		}
		if len(w.Nodes) > 1 {
			wrong = append(wrong, "corosync is already running, is this node already in a cluster?!")
		}
		if len(wrong) > 0 {
			t.Logf("detected the following error(s):\n* %s", strings.Join(wrong, "\n* "))
			if !force {
				return perl.Fail("Check if node may join a cluster failed!")
			}
		}
		t.Logf("Establishing API connection with host '%s'", host)
		return noRoute(host + ":8006")
	}}), nil
}

// apiCreateCluster is POST /cluster/config: a cluster that is there is not made again.
func apiCreateCluster(w *core.World, c *core.Call) (any, error) {
	if len(w.Nodes) == 1 {
		return nil, c.Unimplemented("clusters are made by the configuration")
	}
	return nil, perl.Fail("cluster config '/etc/pve/corosync.conf' already exists")
}

// apiAddNode is POST /cluster/config/nodes/{node}, apiRemoveNode DELETE of it.
func apiAddNode(w *core.World, c *core.Call) (any, error) {
	switch name := c.In["node"]; {
	case len(w.Nodes) == 1:
		return nil, perl.Fail("no such cluster config '/etc/pve/corosync.conf'")
	case w.Nodes[name] != nil:
		return nil, perl.Fail("can't add existing cluster node '%s'", name)
	}
	return nil, c.Unimplemented("nodes are made by the configuration")
}

func apiRemoveNode(w *core.World, c *core.Call) (any, error) {
	name := c.In["node"]
	switch {
	case name == w.Cfg.Node:
		return nil, perl.Fail("Cannot delete myself from cluster!")
	case w.Nodes[name] == nil:
		return nil, perl.Fail("Node/IP: %s is not a known host of the cluster.", name)
	case slices.ContainsFunc(w.Vmids, func(vmid int) bool { return w.Guests[vmid].Node == name }):
		return nil, c.Unimplemented("a node that goes and leaves guests behind")
	case slices.ContainsFunc(w.Tasks.All, (*core.Task).Running):
		return nil, c.Unimplemented("a node that goes while something is under way")
	}
	delete(w.Nodes, name)
	return nil, nil
}
