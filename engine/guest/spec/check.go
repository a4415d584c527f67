package spec

import (
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Check reports problems in the specs of a site: those of all nodes, and as far as possible those that no node
// uses. It skips the values of secrets, since a site can be checked without its secrets.
func Check(site *model.Site) diag.List {
	var list []*resolver
	var nodes []*model.Node
	used := map[string]bool{}
	check := func(node *model.Node) {
		if declared := site.Specs[node.Spec]; declared != nil {
			used[node.Spec] = true
			list, nodes = append(list, newResolver(site, declared, node)), append(nodes, node)
		}
	}
	for _, m := range site.Manifests {
		for _, node := range m.Nodes {
			check(node)
		}
	}
	for _, h := range site.Hosts {
		check(h.Machine())
	}
	ofNodes := len(list)
	for name, declared := range site.Specs {
		if !used[name] {
			node := &model.Node{Name: name}
			list, nodes = append(list, newResolver(site, declared, node)), append(nodes, node)
		}
	}
	diag.InParallel(len(list), func(i int) {
		list[i].resolve(nodes[i], i < ofNodes)
		list[i].out = nil // it has the contents of files, once for each node
	})
	var found diag.List
	seen := map[string]bool{} // several nodes have the same spec
	for _, r := range list {
		for _, f := range r.found {
			if key := f.String(); !seen[key] {
				seen[key] = true
				found = append(found, f)
			}
		}
	}
	return found.Sorted()
}
