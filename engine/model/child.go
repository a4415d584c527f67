package model

import (
	"maps"
	"slices"
	"time"
)

// Values of Node.Orphan: what happens to the nodes on a guest when the guest leaves the site.
const (
	OrphanRefuse  = "refuse"  // the guest stays until its agent has reported that nothing is left in it
	OrphanDestroy = "destroy" // they go with the guest
	OrphanAbandon = "abandon" // the guest stays with its nodes, unmanaged
)

// Child has what a parent knows of a child, by the reports of its agent. The zero value is one that never reported.
type Child struct {
	At     time.Time // when the last report came, by the clock of the parent
	Commit string    // that it is about
	Empty  bool      // the child manages nothing any more
	Nodes  []string  // that are in it, at any depth
	// Gone: Commit is at or after the one that took the child out of the site, and its parent has seen no later
	// commit with the child. So an empty child stays empty.
	Gone bool
}

// Withdrawn lists the children on a host that the site has no more, sorted: their guests are observed, and
// go as soon as nothing is left in them. Those that are abandoned, or of a suspended manifest, stay as they are.
func (w *Want) Withdrawn(have State) []string {
	var out []string
	for _, addr := range have.Find(func(r *Resource) bool { return r.Guest != nil && r.Guest.Orphan != "" }) {
		if have[addr].Guest.Orphan == OrphanAbandon || w.Host == nil || w.State[addr] != nil || w.Suspended[have[addr].Manifest] {
			continue
		}
		out = append(out, addr.Name)
	}
	return out
}

// HasChild reports whether a guest was seen that nodes may live on.
func (o *Observed) HasChild() bool {
	for _, r := range o.State {
		if r.Guest != nil && r.Guest.Orphan != "" {
			return true
		}
	}
	return false
}

// Has reports whether the host should have a child.
func (w *Want) Has(child string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(w.Nodes)), func(n *Node) bool { return n.Name == child && n.Type == PVEType })
}

// Leave gives a copy of the site for a child that left it: the child is known, and nothing is to be on it.
func (s *Site) Leave(child *Host) *Site {
	c := *s
	c.Hosts = map[string]*Host{child.Name: child}
	maps.Copy(c.Hosts, s.Hosts)
	c.Resolved, c.Left = nil, child.Name
	return &c
}

// Below lists the nodes below a host or child, however deep: what its agent converges, and what the agents of children
// among that do.
func (s *Site) Below(host string) []*Node {
	var out []*Node
	agents, seen := []string{host}, map[string]bool{host: true}
	for i := 0; i < len(agents); i++ {
		for _, m := range s.Manifests {
			for _, n := range m.Nodes {
				if m.On(n) != agents[i] || seen[n.Name] {
					continue
				}
				seen[n.Name] = true
				out = append(out, n)
				if n.Type == PVEType {
					agents = append(agents, n.Name)
				}
			}
		}
	}
	return out
}

// OwnersFrom lists a host or child and the children below it: those in whose names guests are managed there, sorted
// after the first.
func (s *Site) OwnersFrom(host string) []string {
	out := []string{host}
	for _, n := range s.Below(host) {
		if n.Type == PVEType {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out[1:])
	return out
}
