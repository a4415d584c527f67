package proxmox

import "github.com/homestak/homestak-gitops/engine/model"

// Needs derives which privileges a site needs on one host of the given major
// version of PVE, each once, sorted by path. It knows nothing of the host itself:
// what a kind needs is said by the kind, in its field needs.
func Needs(site *model.Site, want *model.Want, major int) []Need {
	return derive(site, want, major).all()
}

// derive is Needs, with what else the kinds say of storages and bridges.
func derive(site *model.Site, want *model.Want, major int) *needs {
	n := newNeeds(site, want.Host, major)
	n.guest("VM.Audit", "", "seeing which guests there are")
	for _, node := range want.Host.AllNodes() {
		n.soft(Grant{"/nodes/" + node, "Sys.Audit"}, roleNode, "state, hardware and tasks of the node, such as the start that follows a restart")
	}
	if len(want.Host.Nodes) > 1 {
		n.soft(Grant{"/", "Sys.Audit"}, roleCluster, "quorum of the cluster; without it nothing is done while a node is offline")
	}
	kinds := kindsByName()
	for _, addr := range want.State.Addresses() {
		n.from = want.State[addr]
		if k := kinds[addr.Kind]; k != nil {
			k.rights(n.from.Spec, n)
		}
		n.node(want.Nodes[addr])
	}
	return n
}
