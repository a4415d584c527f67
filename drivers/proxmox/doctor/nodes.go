package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// nodes checks which nodes of the cluster exist and are online, and their capabilities.
type nodes struct {
	*subject
	online map[string]bool // by name
}

// check checks whether the nodes that the site names are there and online, and whether
// the cluster has a quorum.
func (n *nodes) check(ctx context.Context) {
	list, err := n.list(ctx, "/nodes")
	if err != nil {
		n.unread("nodes", err)
		return
	}
	for _, row := range list {
		n.online[api.Text(row["node"])] = api.IsOnline(api.Text(row["status"]))
	}
	known, good := slices.Sorted(maps.Keys(n.online)), true
	for _, name := range n.host.AllNodes() {
		online, there := n.online[name]
		switch {
		case !there:
			good = false
			n.fail("nodes", "there is no node "+name+", but "+strings.Join(known, ", "), "guests are made on it"+n.at(),
				fmt.Sprintf("node = %q    # in host %q, or nodes = [%s]", diag.Nearest(name, known), n.host.Name, quotedList(known)))
		case !online && name == n.host.PVENode():
			good = false
			n.fail("nodes", "node "+name+" is offline", "guests and images are made on it", "on a node of the cluster: pvecm status; then start "+name)
		case !online:
			good = false
			n.warn("nodes", "node "+name+" is offline", "its guests cannot be read and are not changed", "on a node of the cluster: pvecm status; then start "+name)
		}
	}
	if good {
		n.ok("nodes", "%s online", strings.Join(n.host.AllNodes(), ", "))
	}
	n.quorum(ctx)
}

func quotedList(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

func (n *nodes) quorum(ctx context.Context) {
	if len(n.online) < 2 {
		return
	}
	list, err := n.list(ctx, "/cluster/status")
	if err != nil {
		n.unread("quorum", err)
		return
	}
	for _, c := range list {
		if api.Text(c["type"]) != "cluster" {
			continue
		}
		if api.Text(c["quorate"]) == "0" {
			n.fail("quorum", "the cluster "+api.Text(c["name"])+" has no quorum", "without it no node takes any change", "on a node that runs: pvecm status; start the others, or check the network between them")
			return
		}
		n.ok("quorum", "cluster %s is quorate", api.Text(c["name"]))
	}
}

// dark reports whether a node is known to be offline or missing.
func (n *nodes) dark(node string) bool {
	return len(n.online) > 0 && !n.online[node]
}

// virtualisation checks for the virtualisation instructions that pve nodes hand on to their
// own guests.
func (n *nodes) virtualisation(ctx context.Context) {
	by := askers{}
	for _, addr := range n.want.State.Addresses() {
		if addr.Kind == "pve" {
			by.add(n.want.State[addr], "type")
		}
	}
	if len(by) == 0 {
		return
	}
	why := "guests run inside of " + by.String()
	for _, node := range n.host.AllNodes() {
		var status struct {
			CPU struct {
				Flags string `json:"flags"`
			} `json:"cpuinfo"`
		}
		if err := n.client().Get(ctx, api.Path("nodes", node, "status"), &status); err != nil {
			n.unread("nested virtualisation", err)
			continue
		}
		flags := strings.Fields(status.CPU.Flags)
		module := ""
		for flag, m := range map[string]string{"vmx": "kvm_intel", "svm": "kvm_amd"} {
			if slices.Contains(flags, flag) {
				module = m
			}
		}
		if module == "" {
			n.fail("nested virtualisation", "the CPU of node "+node+" shows neither vmx nor svm", why,
				"switch virtualisation on in its firmware; if the node is itself a VM: qm set VMID --cpu host, on its host")
			continue
		}
		n.ok("nested virtualisation", "node %s has it; the API does not show whether %s passes it to guests: on the node, cat /sys/module/%s/parameters/nested must print Y or 1", node, module, module)
	}
}
