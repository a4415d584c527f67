package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// An identity is the name of an agent: that of a host, or of a node of type pve in a deployed manifest. The agent of a
// host converges the roots of the manifests that name it, that of a node the nodes whose parent it is. So every deployed
// node has one agent, in a tree of any depth. An identity that has a parent is a child; see Child.

// PVEType is the type of the nodes that other nodes may live on.
const PVEType = "pve"

// LocalAPI is the API of the machine that an agent runs on.
const LocalAPI = "https://127.0.0.1:8006"

// HostFor returns the host that an identity converges, nil for an identity that the site does not have. That of
// a node is made from it: the machine itself, as its hypervisor block describes it. Local knowledge, such as
// its API token, is only set on that machine; see Site.Local.
func (s *Site) HostFor(identity string) *Host {
	if h := s.Hosts[identity]; h != nil {
		return h
	}
	if c := s.Child(identity); c != nil {
		h := c.Node.host()
		s.Local.Complete(h)
		return h
	}
	return nil
}

// ChildHost is the machine of a child that no commit is known to have, as far as the machine itself knows it.
func (s *Site) ChildHost(identity string) *Host {
	h := (&Node{Name: identity}).host()
	s.Local.Complete(h)
	return h
}

// Identities lists all of them, in order.
func (s *Site) Identities() []string {
	all := slices.Collect(maps.Keys(s.Hosts))
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if m.Host != "" && n.Type == PVEType && s.Hosts[n.Name] == nil {
				all = append(all, n.Name)
			}
		}
	}
	slices.SortFunc(all, CompareNames)
	return slices.Compact(all)
}

// On returns the identity whose agent converges a node of the manifest; "" for one of a recipe.
func (m *Manifest) On(n *Node) string {
	if m.Host == "" || n.Root() {
		return m.Host
	}
	return n.Parent
}

// Concerns reports whether an identity converges nodes of the manifest, or is to.
func (m *Manifest) Concerns(identity string) bool {
	if m.Host == "" || m.Host == identity {
		return m.Host != ""
	}
	n := m.Node(identity)
	return n != nil && n.Type == PVEType
}

// Node finds a node by its name; nil if there is none.
func (m *Manifest) Node(name string) *Node {
	for _, n := range m.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Below lists the nodes below a child, each after the one that it lives on.
func (m *Manifest) Below(child *Node) []*Node {
	all, seen := []*Node{child}, map[string]bool{child.Name: true}
	for i := 0; i < len(all); i++ {
		for _, name := range all[i].Children {
			if n := m.Node(name); n != nil && !seen[name] { // a site that is not valid may have circles
				seen[name] = true
				all = append(all, n)
			}
		}
	}
	return all[1:]
}

// FindIn reads an address, or a bare name: that of a node, else of an object if only one has it.
func FindIn(s *Site, text string) (Address, error) {
	addr, err := ParseAddress(text)
	if err == nil || s == nil {
		return addr, err
	}
	var nodes, objects []string
	for a := range s.Deployed() {
		nodes = append(nodes, a.String())
	}
	for a := range s.Objects {
		objects = append(objects, a.String())
	}
	found, ambiguous := FindAmong(text, nodes, objects)
	if ambiguous != nil || found == "" {
		none := fmt.Errorf("nothing in the site is named %q: %s\nwhat left the site needs its address, such as vm.%s", text, diag.DidYouMean("vm."+text, slices.Concat(nodes, objects)), text)
		return addr, cmp.Or(ambiguous, none)
	}
	return ParseAddress(found)
}

// FindAmong finds the address that a text means in the first of the lists that has one; "" if none has.
func FindAmong(text string, lists ...[]string) (string, error) {
	for _, all := range lists {
		found := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return !Means(text, a) })
		slices.Sort(found)
		if found = slices.Compact(found); len(found) > 1 {
			return "", fmt.Errorf("%q may be %s: write one of these addresses", text, strings.Join(found, " or "))
		} else if len(found) == 1 {
			return found[0], nil
		}
	}
	return "", nil
}

// Deployed returns the nodes of all deployed manifests, each with the way to it: the host, and the nodes between.
func (s *Site) Deployed() map[Address]string {
	all := map[Address]string{}
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if m.Host != "" {
				all[n.Resource.Addr] = m.Way(n)
			}
		}
	}
	return all
}

// Way lists what a node of a deployed manifest lives on, the host first: father/inner.
func (m *Manifest) Way(n *Node) string {
	way := ""
	for range m.Nodes { // a site that is not valid may have circles
		if n == nil || n.Root() {
			break
		}
		way = "/" + n.Parent + way
		n = m.Node(n.Parent)
	}
	return m.Host + way
}

// Lost lists the deployed nodes of an earlier state of the site that this one has no more, or elsewhere: their
// guests and data go. Manifests that are suspended lose nothing, nor are nodes lost whose guests are given up or moved.
func (s *Site) Lost(before *Site) []Address {
	now := s.Deployed()
	var out []Address
	for _, m := range before.Manifests {
		if m.Host == "" || slices.Contains(s.Suspended, m.Name) {
			continue
		}
		for _, n := range m.Nodes {
			addr := n.Resource.Addr
			if block, found := s.Removed.Of(addr); found && !block.Destroy && now[addr] == "" {
				continue
			}
			if now[cmp.Or(s.Moved[addr], addr)] != m.Way(n) {
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, Address.Compare)
	return out
}

// HostKind is the first half of the address of a host's own machine: what the spec of a host is inside of.
const HostKind = "host"

// Machine is the host's own machine, as the node of its spec.
func (h *Host) Machine() *Node {
	return &Node{
		Name: h.Name, Spec: h.Spec, Mode: ModePush, At: h.At,
		Resource: &Resource{Addr: Address{HostKind, h.Name}, At: h.At},
	}
}

// host is the machine of a child, as its children find it.
func (n *Node) host() *Host {
	h := &Host{Name: n.Name, API: LocalAPI, Node: n.Name, Local: true, TokenMissing: true, At: n.At}
	h.Storage = &Storage{Disks: "local-lvm", Images: "local", ISO: "local", Backups: "local", Snippets: "local"}
	if d := n.Hyper; d != nil {
		for _, o := range []struct{ to, from *string }{{&h.Node, &d.Node}, {&h.Storage.Disks, &d.Storage}, {&h.Bridge, &d.Bridge}} {
			if *o.from != "" {
				*o.to = *o.from
			}
		}
	}
	return h
}
