package model

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Want is the resolved desired state of one host.
type Want struct {
	Host       *Host // that of the site, or of a child; see Site.HostFor
	State      State
	Deferred   []Deferred
	Suspended  map[string]bool  // manifests that are left as they are
	Declared   map[Address]bool // declared, but needed by nothing on this host: kept where it exists, not made
	Nodes      map[Address]*Node
	Planned    State               // nodes with planned = true: they have no place in State, and what exists of them stays as it is
	Specs      map[Address]bool    // guests inside of which a spec is applied (true), or an earlier one withdrawn (false)
	Backups    map[Address]*Backup // of guests that are backed up, with their storages
	Elsewhere  map[Address]string  // nodes of the site: where they are declared, in a few words, for what this host does not hold any more
	Removed    Removals            // what happens to guests whose nodes left the site, where a block says it
	Moved      map[Address]Address // former addresses of guests → those of the nodes that have them now
	SweepHints []string            // Observed.SweepHints of the last observation; nil: it is not remembered
	// Changed are guests, and where the last observation found them, that are not as they were, while all else is. A driver
	// that can observe these alone may do so: see Observed.Only. Empty: the whole host is to be observed.
	Changed map[Address]Guest
	// StartFirst limits the pass to stopped guests that should run, if there are any: see Observed.Only. Slow
	// observations wait until they are started.
	StartFirst bool
	// Restored is what is remembered of verifications by restore. Nil: this pass makes none.
	Restored map[Address]Restored
}

// Deferred is something the site declares that this pass does not do.
type Deferred struct {
	Address string `json:"address"`
	Why     string `json:"why"`

	Postponed bool `json:"postponed"` // a later pass does it, without a further commit
	Differs   bool `json:"-"`         // the host differs from the site in it: a step was taken out of the plan for it
}

// MayUse reports whether a VMID is one that a wanted guest has or may get.
func (w *Want) MayUse(vmid int) bool {
	for _, r := range w.State {
		if r.Guest != nil && (r.Guest.VMID == vmid || r.Guest.VMID == 0 && r.Guest.MayDraw(vmid)) {
			return true
		}
	}
	return false
}

// Want resolves the deployed manifests and objects for one identity: a host, or a child. The findings are those of
// resolving; the site is not changed. A Want is read-only.
func (s *Site) Want(identity string) (*Want, diag.List) {
	if w := s.Resolved[identity]; w != nil {
		return w, nil // its findings were reported with the others of the load
	}
	h := s.HostFor(identity)
	w := &Want{Host: h, State: State{}, Suspended: map[string]bool{}, Declared: map[Address]bool{}, Nodes: map[Address]*Node{}, Specs: map[Address]bool{}, Elsewhere: s.declared(), Removed: s.Removed, Moved: s.Moved}
	if h == nil {
		return w, diag.List{diag.Errorf(s.At, fmt.Sprintf("unknown host %q", identity), "%s", diag.DidYouMean(identity, s.Identities()))}
	}
	var found diag.List
	for _, name := range s.Suspended {
		w.Suspended[name] = true
		if m := s.Manifests[name]; m == nil || !m.Concerns(identity) {
			w.Deferred = append(w.Deferred, Deferred{Address: "manifest." + name, Why: "suspended: what remains of it stays"})
		}
	}
	resolved := resolveNodes(s, identity, h)
	left := map[string]int{} // nodes whose spec is not applied, by the reason
	for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
		m := s.Manifests[name]
		if m.Suspend && m.Concerns(identity) {
			w.Suspended[name] = true
			w.Deferred = append(w.Deferred, Deferred{Address: "manifest." + name, Why: "suspended: unchanged"})
			continue
		}
		for _, n := range m.Nodes {
			if m.On(n) != identity || s.Left == identity {
				continue
			}
			r := resolved[n].Resource
			found = append(found, resolved[n].found...)
			if n.Planned {
				if w.Planned == nil {
					w.Planned = State{}
				}
				w.Planned[r.Addr], w.Declared[r.Addr] = r, true
				continue
			}
			w.State[r.Addr] = r
			w.Nodes[r.Addr] = n
			l, why := s.inside(w, r, n, nil)
			if found = append(found, l...); n.Spec != "" && why != "" {
				left[why]++
			}
			if below := m.Below(n); len(below) > 0 {
				w.Deferred = append(w.Deferred, Deferred{Address: r.Addr.String(), Why: belowText(n, below)})
			}
		}
	}
	if h.Spec != "" {
		found = append(found, s.addMachine(w, h.Machine(), nil)...)
	}
	for _, why := range slices.Sorted(maps.Keys(left)) {
		w.Deferred = append(w.Deferred, Deferred{Address: "spec", Why: fmt.Sprintf("of %s: %s", diag.Count(left[why], "node"), why)})
	}
	found = append(append(found, s.addObjects(w)...), addBackups(s, w)...)
	for _, r := range w.State {
		r.Needs = slices.DeleteFunc(slices.Clone(r.Needs), func(a Address) bool { return w.State[a] == nil })
	}
	return w, found
}

// declared says of every deployed node where it is: what Want.Elsewhere has.
func (s *Site) declared() map[Address]string {
	if s.Located != nil {
		return s.Located
	}
	all := map[Address]string{}
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			switch on := m.On(n); {
			case on == "": // a recipe is nowhere
			case n.Root():
				all[n.Resource.Addr] = fmt.Sprintf("declared on host %s now, without its data", on)
			default:
				all[n.Resource.Addr] = fmt.Sprintf("declared on node %s now, without its data", on)
			}
		}
	}
	return all
}

// resolvedNode is the resolved resource of a node, and the findings about it.
type resolvedNode struct {
	*Resource
	found diag.List
}

// resolveNodes resolves the nodes on a host, in parallel: it takes as long as decoding them.
func resolveNodes(s *Site, identity string, h *Host) map[*Node]*resolvedNode {
	var nodes []*Node
	all := map[*Node]*resolvedNode{}
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if m.On(n) == identity && !m.Suspend && s.Left != identity {
				nodes, all[n] = append(nodes, n), &resolvedNode{}
			}
		}
	}
	diag.InParallel(len(nodes), func(i int) {
		r := all[nodes[i]]
		r.Resource, r.found = s.Resolve(nodes[i].Resource, h, nodes[i])
	})
	return all
}

// ResolveAll stores the Want of every identity in Resolved, and returns the findings of each. Call it once after
// loading, before the site has readers.
func (s *Site) ResolveAll() map[string]diag.List {
	s.Located = s.declared()
	resolved, found := map[string]*Want{}, map[string]diag.List{}
	for _, identity := range s.Identities() {
		resolved[identity], found[identity] = s.Want(identity)
	}
	s.Resolved = resolved
	return found
}

// KeepResolved drops the other identities from Resolved: those of a whole tree take more memory than the site. Call
// it after loading, before the site has readers. Later it changes nothing.
func (s *Site) KeepResolved(identity string) {
	if w := s.Resolved[identity]; w != nil && len(s.Resolved) > 1 {
		s.Resolved = map[string]*Want{identity: w}
	}
}

// belowText says of a child which nodes its own agent converges, and how many are below these.
func belowText(n *Node, below []*Node) string {
	const most = 5
	names := n.Children
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	text := fmt.Sprintf("%s below it (%s): left to its own agent", diag.Count(len(n.Children), "node"), strings.Join(names, ", "))
	if deeper := len(below) - len(n.Children); deeper > 0 {
		text += fmt.Sprintf(", and %s further down to theirs", diag.Count(deeper, "node"))
	}
	return text
}

// notApplied is why the spec of a node is only checked, where nothing else is the reason.
const notApplied = "checked, not applied inside the guests yet"

// addMachine derives what the spec of a host says of the host's own machine.
func (s *Site) addMachine(w *Want, n *Node, earlier *Earlier) diag.List {
	found, why := s.inside(w, n.Resource, n, earlier)
	if why != "" {
		w.Deferred = append(w.Deferred, Deferred{Address: n.Resource.Addr.String(), Why: why})
	}
	return found
}

// inside derives the desired inside of a node that is a guest of the host, or returns why there is none.
func (s *Site) inside(w *Want, of *Resource, n *Node, earlier *Earlier) (found diag.List, why string) {
	why = notApplied
	if n.Mode == ModePull {
		why = "" // the node applies it itself, once it knows its parent
	}
	for _, k := range s.Kinds {
		if k.Unspecified && of.Addr.Kind == HostKind {
			continue // the agent of a host is not installed by its parent
		}
		if k.Inside == nil || n.Mode != ModePush && n.Mode != ModePull && !k.Unspecified || earlier != nil && k.Unspecified {
			continue
		}
		r, l := k.Inside(of, Scope{Site: s, Host: w.Host, Manifest: n.Manifest, Node: n, Name: n.Name, Needs: []Address{of.Addr}, Earlier: earlier})
		found = append(found, l...)
		addr := Address{k.Name, n.Name}
		switch {
		case r == nil:
			continue
		case r.Deferred != "" && k.Unspecified:
			w.Deferred = append(w.Deferred, Deferred{Address: addr.String(), Why: r.Deferred})
			continue
		case r.Deferred != "":
			why = r.Deferred
			continue
		}
		r.Addr, r.Needs, r.Inside = addr, append([]Address{of.Addr}, r.Needs...), of.Addr
		r.Manifest, r.Node = of.Manifest, of.Node
		w.State[r.Addr] = r
		if r.Reports {
			of.Reports = true
		}
		if !k.Unspecified {
			why = ""
			if n.Mode == ModePush {
				w.Specs[of.Addr] = earlier == nil
			}
		}
	}
	return found, why
}

// Withdraw adds to the desired state of a host the removal of specs that its nodes no longer have. Earlier returns
// the site by which a spec was last applied in a guest, nil if none was; only that tells how to reach the guest.
// Withdrawals from guests that cannot be reached now are deferred.
func (s *Site) Withdraw(w *Want, earlier func(guest Address) (*Site, error)) (found diag.List) {
	host := w.Host.Name
	w.State, w.Specs, w.Deferred = maps.Clone(w.State), maps.Clone(w.Specs), slices.Clip(w.Deferred) // the site keeps its own
	for _, addr := range w.State.Find(func(r *Resource) bool { return w.pushesNothing(r.Addr) }) {
		n := w.Nodes[addr]
		site, err := earlier(addr)
		if err != nil {
			found = append(found, addr.StaysInside(fmt.Sprintf("How the agent logged in to %s is unknown: %v.", addr, err)))
			continue
		}
		old := site.pushed(addr, host)
		if old == nil {
			continue
		}
		l, why := s.inside(w, w.State[addr], n, &Earlier{Site: site, Host: site.HostFor(host), Node: old})
		switch {
		case l.HasErrors():
			found = append(found, addr.StaysInside(fmt.Sprintf("Spec %s is not withdrawn: %s.", old.Spec, l[0].Summary)))
		case why != "":
			w.Deferred = append(w.Deferred, Deferred{Address: addr.String(), Why: fmt.Sprintf("spec %s is not withdrawn yet: %s", old.Spec, why)})
		}
	}
	return append(found, s.withdrawMachine(w, earlier)...)
}

// withdrawMachine is Withdraw for the host's own machine.
func (s *Site) withdrawMachine(w *Want, earlier func(guest Address) (*Site, error)) diag.List {
	h := s.Hosts[w.Host.Name]
	if h == nil || h.Spec != "" {
		return nil
	}
	n := h.Machine()
	site, err := earlier(n.Resource.Addr)
	if err != nil {
		return diag.List{n.Resource.Addr.StaysInside(fmt.Sprintf("The last spec of %s is unknown: %v.", n.Resource.Addr, err))}
	}
	if site == nil || site.Hosts[h.Name] == nil || site.Hosts[h.Name].Spec == "" {
		return nil
	}
	was := site.Hosts[h.Name]
	found := s.addMachine(w, n, &Earlier{Site: site, Host: was, Node: was.Machine()})
	if found.HasErrors() {
		return diag.List{n.Resource.Addr.StaysInside(fmt.Sprintf("Spec %s is not withdrawn: %s.", was.Spec, found[0].Summary))}
	}
	return nil
}

// pushesNothing reports whether a guest is that of a node in mode push without a spec.
func (w *Want) pushesNothing(guest Address) bool {
	n := w.Nodes[guest]
	return n != nil && n.Spec == "" && n.Mode == ModePush
}

// pushed finds the node of a guest on a host that had a spec in mode push; nil if there was none, or s is nil.
func (s *Site) pushed(guest Address, host string) *Node {
	if s == nil {
		return nil
	}
	for _, m := range s.Manifests {
		for _, n := range m.Nodes {
			if n.Resource.Addr == guest && m.On(n) == host && n.Spec != "" && n.Mode == ModePush {
				return n
			}
		}
	}
	return nil
}

// StaysInside warns that the effects of a spec remain inside a guest.
func (a Address) StaysInside(why string) diag.Finding {
	return diag.Finding{
		Severity: diag.Warning, Source: diag.FromSite, Address: a.String(), Summary: fmt.Sprintf("%s has no spec any more, and what its last spec configured stays", a),
		Detail: why + " To withdraw it, give the node a spec with the access of that one and no other items, and take the spec away when it is applied.",
	}
}

// addObjects binds to the host the objects beside the manifests: what names this
// host, and of what can live everywhere that which is needed here.
func (s *Site) addObjects(w *Want) diag.List {
	var found diag.List
	needed := map[Address]bool{}
	var need func(Address)
	need = func(a Address) {
		if needed[a] {
			return
		}
		needed[a] = true
		if r := s.Objects[a]; r != nil { // what it needs itself is needed here as well
			for _, b := range r.Needs {
				need(b)
			}
		}
	}
	for _, r := range w.State {
		for _, a := range r.Needs {
			need(a)
		}
	}
	for _, addr := range s.Objects.Addresses() {
		r := s.Objects[addr]
		kind := s.Kinds.Get(addr.Kind)
		switch {
		case !kind.Everywhere && HostOf(r.Spec) != w.Host.Name:
			continue
		case kind.Everywhere && !needed[addr]:
			w.Declared[addr] = true
			continue
		}
		bound, l := s.Resolve(r, w.Host, nil)
		found = append(found, l...)
		w.State[addr] = bound
	}
	return found
}

// Resolve makes the complete form of a declared resource for a host (nil for a recipe) on a copy, and reports
// problems.
func (s *Site) Resolve(r *Resource, h *Host, n *Node) (*Resource, diag.List) {
	c := *r
	c.Spec = Clone(r.Spec)
	c.Needs = slices.Clone(r.Needs)
	if r.Guest != nil {
		g := *r.Guest
		if h != nil {
			g.Node, g.Nodes = h.placesOf(n)
		}
		c.Guest = &g
	}
	kind := s.Kinds.Get(r.Addr.Kind)
	if kind != nil && kind.VMID != nil && h != nil {
		if id := kind.VMID(r.Spec); id != 0 {
			c.Guest = &Guest{VMID: id, Node: h.PVENode()}
		}
	}
	if h != nil && h.Pool != "" && c.Guest != nil {
		c.Needs = append(c.Needs, Address{"pool", h.Pool})
	}
	if kind == nil || kind.Resolve == nil {
		return &c, nil
	}
	in := Scope{Site: s, Host: h, Node: n, Name: r.Addr.Name, Needs: c.Needs}
	if n != nil {
		in.Manifest = n.Manifest
	}
	var found diag.List
	for _, p := range kind.Resolve(&c, in) {
		f := diag.Errorf(c.RangeOf(p.Path), p.Summary, "%s", p.Detail)
		if p.Severity != "" {
			f.Severity = p.Severity
		}
		f.Address = r.Addr.String()
		if p.Site {
			f.At, f.Address = diag.Range{}, ""
			if p.Path != "" {
				f.At = s.At
			}
		}
		found = append(found, f)
	}
	return &c, found
}

// Bind gives a copy of the site in which a manifest is deployed on a host, and
// only that one: what `test` runs of a recipe.
func (s *Site) Bind(manifest, host string) (*Site, error) {
	m := s.Manifests[manifest]
	if m == nil {
		return nil, fmt.Errorf("unknown manifest %q: %s", manifest, diag.DidYouMean(manifest, slices.Collect(maps.Keys(s.Manifests))))
	}
	if c := s.Child(host); c != nil && c.Node != nil {
		return nil, fmt.Errorf("%s is a node: a manifest is bound to a host, and this one has the nodes of manifest %s", host, c.Node.Manifest.Name)
	}
	if s.Hosts[host] == nil {
		return nil, fmt.Errorf("unknown host %q: %s", host, diag.DidYouMean(host, slices.Collect(maps.Keys(s.Hosts))))
	}
	c, b := *s, *m
	b.Host, b.Suspend, b.Backup, c.Backup = host, false, nil, nil // a test makes no backups
	b.Nodes = make([]*Node, len(m.Nodes))
	for i, n := range m.Nodes {
		nn := *n
		nn.Manifest, nn.Backup = &b, nil
		b.Nodes[i] = &nn
	}
	c.Manifests, c.Suspended, c.Resolved, c.Located = map[string]*Manifest{manifest: &b}, nil, nil, nil
	return &c, nil
}

// PVENode is the name of the PVE node where guests of this host live unless they
// are found elsewhere in its cluster.
func (h *Host) PVENode() string {
	if h.Node != "" {
		return h.Node
	}
	if len(h.Nodes) > 0 {
		return h.Nodes[0]
	}
	return h.Name
}

// AllNodes names the PVE nodes of the host: its own first, then the others of its cluster
// that the site names.
func (h *Host) AllNodes() []string {
	nodes := []string{h.PVENode()}
	for _, n := range h.Nodes {
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// placesOf returns the PVE nodes where the guest of a manifest node may live, none on a host that is only one, and
// the one of them that it has until a plan chooses: the host's own if it may.
func (h *Host) placesOf(n *Node) (first string, all []string) {
	if all = h.AllNodes(); len(all) == 1 {
		return all[0], nil
	}
	if n == nil || len(n.Nodes) == 0 || slices.Contains(n.Nodes, all[0]) {
		first = all[0]
	} else {
		first = n.Nodes[0]
	}
	if n != nil && len(n.Nodes) > 0 {
		all = n.Nodes
	}
	return first, all
}

// HostOf gives the host that a spec names in its attribute host, "" if none.
func HostOf(spec any) string {
	v := reflect.ValueOf(spec).Elem()
	for _, f := range Fields(v.Type()) {
		if f.Name == "host" && f.Ref == "host" {
			return v.Field(f.Index).String()
		}
	}
	return ""
}
