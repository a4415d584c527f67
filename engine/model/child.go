package model

import (
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Orphan says what happens to the nodes on a guest when the guest leaves the site.
type Orphan string

// Values of Orphan.
const (
	OrphanRefuse  Orphan = "refuse"  // the guest stays until its agent has reported that nothing is left in it
	OrphanDestroy Orphan = "destroy" // they go with the guest
	OrphanAbandon Orphan = "abandon" // the guest stays with its nodes, unmanaged
)

// ChildReport has what a parent knows of a child, by the reports of its agent. The zero value is one that never reported.
type ChildReport struct {
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

// Leave gives a copy of the site for a child that left it: the child is known, and nothing is to be on it, nor of its spec.
func (s *Site) Leave(child *Host) *Site {
	c, own := *s, *child
	own.Spec = ""
	c.Hosts = map[string]*Host{child.Name: &own}
	maps.Copy(c.Hosts, s.Hosts)
	c.Resolved, c.Left = nil, child.Name
	return &c
}

// Child is an identity that has a parent: a node of type pve in a deployed manifest, or a host with one. Its parent serves
// it whatever it is. Only the way into being differs: a node is created and entered, a host joins.
type Child struct {
	Name   string
	Parent string // identity of the agent that serves it
	Node   *Node  // nil for a host
	At     diag.Range
}

// Child finds a child; nil for an identity that has no parent, and for what is none.
func (s *Site) Child(identity string) *Child {
	if h := s.Hosts[identity]; h != nil {
		return h.child()
	}
	for _, m := range s.Manifests {
		if m.Host == "" {
			continue
		}
		if n := m.Node(identity); n != nil && n.Type == PVEType {
			return m.child(n)
		}
	}
	return nil
}

func (h *Host) child() *Child {
	if h.Parent == "" {
		return nil
	}
	return &Child{Name: h.Name, Parent: h.Parent, At: h.At}
}

func (m *Manifest) child(n *Node) *Child {
	return &Child{Name: n.Name, Parent: m.On(n), Node: n, At: n.At}
}

// ChildrenOf lists the children that an agent serves, by name.
func (s *Site) ChildrenOf(identity string) []*Child { return s.families()[identity] }

// families are the children of each identity, by name.
func (s *Site) families() map[string][]*Child {
	all := map[string][]*Child{}
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if m.Host != "" && n.Type == PVEType && s.Hosts[n.Name] == nil {
				c := m.child(n)
				all[c.Parent] = append(all[c.Parent], c)
			}
		}
	}
	for _, h := range s.Hosts {
		if c := h.child(); c != nil {
			all[c.Parent] = append(all[c.Parent], c)
		}
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b *Child) int { return CompareNames(a.Name, b.Name) })
	}
	return all
}

// Below lists the nodes below a host or child, however deep: what its agent converges, and what the agents of its children
// do.
func (s *Site) Below(host string) []*Node {
	agents := map[string]bool{}
	for _, name := range s.OwnersFrom(host) {
		agents[name] = true
	}
	var out []*Node
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if agents[m.On(n)] {
				out = append(out, n)
			}
		}
	}
	return out
}

// Toward is the child of an agent that a host or node is reached through; "" if there is none. Declared is false for one that the
// site does not have.
func (s *Site) Toward(agent, name string) (child string, declared bool) {
	at := name
	if s.HostFor(name) == nil {
		for _, m := range s.Manifests {
			if n := m.Node(name); n != nil && m.Host != "" {
				at, declared = m.On(n), true
			}
		}
		if !declared {
			return "", false
		}
	}
	for range len(s.Identities()) { // a site that is not valid may have circles
		c := s.Child(at)
		if c == nil || at == agent {
			break
		}
		if c.Parent == agent {
			return at, true
		}
		at = c.Parent
	}
	return "", true
}

// OwnersFrom lists a host or child and the children below it: those in whose names guests are managed there, sorted
// after the first.
func (s *Site) OwnersFrom(host string) []string {
	out, seen, families := []string{host}, map[string]bool{host: true}, s.families()
	for i := 0; i < len(out); i++ {
		for _, c := range families[out[i]] {
			if !seen[c.Name] { // a site that is not valid may have circles
				seen[c.Name] = true
				out = append(out, c.Name)
			}
		}
	}
	slices.Sort(out[1:])
	return out
}
