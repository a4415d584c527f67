package proxmox

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Needs are the privileges that a site needs on one host with a major version of PVE, each once,
// sorted by path. It sends no request: each kind states its needs in Privileges.
func Needs(site *model.Site, want *model.Want, major int) []kind.Need {
	return DeriveNeeds(site, want, major).All()
}

// DeriveNeeds is Needs with the storages and bridges that the kinds use.
func DeriveNeeds(site *model.Site, want *model.Want, major int) *kind.Needs {
	n := kind.NewNeeds(site, want.Host, major)
	n.Guest("VM.Audit", "", "seeing which guests there are")
	for _, node := range want.Host.AllNodes() {
		n.Soft(kind.Grant{Path: "/nodes/" + node, Priv: "Sys.Audit"}, kind.RoleNode, "state, hardware and tasks of the node, such as the start that follows a restart")
	}
	if len(want.Host.Nodes) > 1 {
		n.Soft(kind.Grant{Path: "/", Priv: "Sys.Audit"}, kind.RoleCluster, "quorum of the cluster; without it nothing is done while a node is offline")
	}
	kinds := kindsByName()
	for _, addr := range want.State.Addresses() {
		n.From = want.State[addr]
		if k := kinds[addr.Kind]; k != nil {
			k.Needs(n.From.Spec, n)
		}
		guest.NodeNeeds(n, want.Nodes[addr])
	}
	return n
}
