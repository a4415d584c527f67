package hcl

import (
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// checkUpgrade checks that the children in upgrade exist, and have one turn each.
func checkUpgrade(rs *rules) {
	u := rs.site.Upgrade
	if u == nil {
		return
	}
	inner := map[string]bool{}
	for name, h := range rs.site.Hosts {
		inner[name] = h.Parent != ""
	}
	for _, m := range rs.manifests {
		for _, n := range m.Nodes {
			inner[n.Name] = inner[n.Name] || n.Type == model.PVEType
		}
	}
	seen := map[string]bool{}
	for _, name := range u.Names() {
		switch {
		case !inner[name] && rs.Complete:
			rs.ErrorAt(rs.site.At, "upgrade names "+lang.Quote(name)+", which is neither a node of type pve nor a host with a parent", "Only their agents get the program of their parent.")
		case seen[name]:
			rs.ErrorAt(rs.site.At, "upgrade names "+lang.Quote(name)+" twice", "Keep it in canary, or in one group.")
		}
		seen[name] = true
	}
}
