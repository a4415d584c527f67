package hcl

import (
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// checkUpgrade checks that the nodes in upgrade exist, and have one turn each.
func checkUpgrade(rs *rules) {
	u := rs.site.Upgrade
	if u == nil {
		return
	}
	inner := map[string]bool{}
	for _, m := range rs.manifests {
		for _, n := range m.Nodes {
			inner[n.Name] = inner[n.Name] || n.Type == model.PVEType
		}
	}
	seen := map[string]bool{}
	for _, name := range u.Names() {
		switch {
		case !inner[name] && rs.Complete:
			rs.ErrorAt(rs.site.At, "upgrade names "+lang.Quote(name)+", which is not a node of type pve", "Only their agents get the program of their parent. A host with a parent is upgraded by its package.")
		case seen[name]:
			rs.ErrorAt(rs.site.At, "upgrade names "+lang.Quote(name)+" twice", "Keep it in canary, or in one group.")
		}
		seen[name] = true
	}
}
