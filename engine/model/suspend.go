package model

import (
	"maps"
	"slices"
)

// Suspend gives a copy of the site in which these manifests are suspended: everything
// of them is left as it is, as `suspend = true` in the files would have it. That holds
// for a manifest, too, which the site declares elsewhere or not at all: what it
// has left on a host stays there.
func (s *Site) Suspend(names ...string) *Site {
	c := *s
	c.Suspended = slices.Clone(s.Suspended)
	c.Manifests = maps.Clone(s.Manifests)
	for _, name := range names {
		if !slices.Contains(c.Suspended, name) {
			c.Suspended = append(c.Suspended, name)
		}
		m := s.Manifests[name]
		if m == nil {
			continue
		}
		suspended := *m
		suspended.Suspend = true
		suspended.Nodes = make([]*Node, len(m.Nodes))
		for i, n := range m.Nodes {
			node := *n
			node.Manifest = &suspended
			suspended.Nodes[i] = &node
		}
		c.Manifests[name] = &suspended
	}
	slices.Sort(c.Suspended)
	c.Resolved = nil // it was worked out from the site as it was
	return &c
}
