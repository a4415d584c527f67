package spec

import (
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Check reports problems in the specs of a site: those of all nodes, and as far as possible those that no node
// uses. It skips the values of secrets, since a site can be checked without its secrets.
func Check(site *model.Site) diag.List {
	var found diag.List
	seen := map[string]bool{} // several nodes have the same spec
	add := func(l diag.List) {
		for _, f := range l {
			if key := f.String(); !seen[key] {
				seen[key] = true
				found = append(found, f)
			}
		}
	}
	used := map[string]bool{}
	check := func(node *model.Node) {
		declared := site.Specs[node.Spec]
		if declared == nil {
			return
		}
		used[node.Spec] = true
		r := newResolver(site, declared, node)
		r.resolve(node, true)
		add(r.found)
	}
	for _, m := range site.Manifests {
		for _, node := range m.Nodes {
			check(node)
		}
	}
	for _, h := range site.Hosts {
		check(h.Machine())
	}
	for name, declared := range site.Specs {
		if !used[name] {
			node := &model.Node{Name: name}
			r := newResolver(site, declared, node)
			r.resolve(node, false)
			add(r.found)
		}
	}
	return found.Sorted()
}
