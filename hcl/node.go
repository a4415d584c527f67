package hcl

import (
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	typePVE      = "pve"  // the only node type that can be a parent
	maxInstances = 10_000 // of one node block
	maxNodes     = 50_000 // of a site
)

// manifest is a manifest block on its way into the site.
type manifest struct {
	*model.Manifest
	decls  []*nodeDecl
	byDecl map[string]*nodeDecl
	byName map[string]*nodeInfo
}

// nodeDecl is one node block; count or for_each make any number of nodes of it.
type nodeDecl struct {
	name      string
	body      *hclsyntax.Body
	at        hclv2.Range // type and label
	instances []instance
	many      bool // made by count or for_each, so node.NAME is a list
	invalid   bool // nobody knows how many there are
	duplicate bool // another one has its name: it is read for what is wrong in it, and is no node
}

type instance struct {
	name   string
	values map[string]cty.Value // count or each
}

// nodeInfo is what the rules need to know of a node beside what it is.
type nodeInfo struct {
	*model.Node
	refs    []nodeRef // nodes that its kind's attributes name
	invalid bool
}

func (l *load) decodeManifests() {
	for _, b := range l.blocks["manifest"] {
		m := &manifest{Manifest: &model.Manifest{At: diagRange(b.at)}, byDecl: map[string]*nodeDecl{}, byName: map[string]*nodeInfo{}}
		l.decode(b, m.Manifest, false)
		l.site.Manifests[b.name] = m.Manifest
		l.manifests = append(l.manifests, m)
		l.declare(b, m)
		sc := l.manifestScope(m)
		for _, d := range m.decls {
			for _, i := range d.instances {
				l.decodeNode(m, d, i, sc)
			}
			d.body = nil
		}
		b.body = nil // of a large site the syntax goes as it is used up
	}
}

// declare finds the node blocks of a manifest and how many nodes each one makes.
func (l *load) declare(b *block, m *manifest) {
	for _, inner := range b.body.Blocks {
		if inner.Type != nodeBlock {
			continue
		}
		at := inner.DefRange()
		if len(inner.Labels) != 1 {
			l.errorf(at, "node needs one name", `Write it as node "NAME" { … }.`)
			continue
		}
		d := &nodeDecl{name: l.intern(inner.Labels[0]), body: inner.Body, at: at}
		if !l.checkName(inner.LabelRanges[0], nodeBlock, d.name) {
			continue
		}
		if first := m.byDecl[d.name]; first != nil {
			l.errorf(at, "duplicate node "+quote(d.name), "The first of this manifest is at %s: rename or remove one of them.", diagRange(first.at))
			d.duplicate = true
		} else {
			m.byDecl[d.name] = d
		}
		m.decls = append(m.decls, d)
		if problem, where := l.expand(d); problem != "" {
			d.invalid = true
			l.errorf(where, problem, "count is a number of nodes; for_each is a map, or a list of texts without repetition.")
		}
	}
	if !slices.ContainsFunc(b.body.Blocks, func(i *hclsyntax.Block) bool { return i.Type == nodeBlock }) {
		l.errorf(b.at, "manifest "+quote(b.name)+" has no nodes", `Add at least one node "NAME" { … }.`)
	}
}

// manifestScope adds the nodes of a manifest: the name of a single one, the list
// of the names that count or for_each made.
func (l *load) manifestScope(m *manifest) *scope {
	values := map[string]cty.Value{}
	for _, d := range m.decls {
		names := make([]cty.Value, len(d.instances))
		for i := range d.instances {
			names[i] = cty.StringVal(d.instances[i].name)
		}
		switch {
		case d.invalid, d.duplicate:
		case d.many:
			values[d.name] = cty.TupleVal(names)
		default:
			values[d.name] = names[0]
		}
	}
	sc := l.base.child(map[string]cty.Value{nodeBlock: cty.ObjectVal(values)})
	sc.nodes = make(map[string]bool, len(m.byDecl))
	for name, d := range m.byDecl {
		sc.nodes[name] = !d.invalid
	}
	return sc
}

// decodeNode decodes one instance of a node block.
func (l *load) decodeNode(m *manifest, decl *nodeDecl, i instance, sc *scope) {
	l.current = decl.at.Filename
	if i.values != nil {
		sc = sc.child(i.values)
		_, sc.count = i.values["count"]
		_, sc.each = i.values["each"]
	}
	n := &nodeInfo{Node: &model.Node{Name: l.intern(i.name), Block: decl.name, Manifest: m.Manifest, At: diagRange(decl.at)}}
	d := &Decoder{evaluator: l.evaluator, schemas: l.schemas, what: "node " + quote(decl.name), scope: sc}
	d.kind = l.kindOf(decl, d)
	common := l.schemas.part(n.Node, nodeBlock)
	r := &model.Resource{At: n.At, Manifest: m.Name, Node: n.Name}
	n.Resource = r
	if d.kind == nil {
		d.invalid = true
		d.body(decl.body, decl.at, l.anyKind(), common)
		l.schemas.fill(common.value, nodeBlock)
		r.Addr = model.Address{Kind: n.Type, Name: n.Name}
	} else {
		r.Addr, r.Spec = model.Address{Kind: d.kind.Name, Name: n.Name}, d.kind.New()
		own := l.schemas.part(r.Spec, d.kind.Name)
		own.secrets = true
		if own.label >= 0 {
			own.value.Field(own.label).SetString(n.Name)
		}
		d.body(decl.body, decl.at, instanceAttrs(), common, own)
		l.schemas.fill(common.value, nodeBlock)
	}
	d.finish()
	r.Needs, r.Ranges, r.Sensitive, r.Missing = d.needs, d.ranges, d.sensitive, d.missing
	if d.kind != nil && d.kind.Guest {
		r.Guest = &model.Guest{VMID: n.VMID, Choose: l.ranges(n)}
	}
	if n.Type != typePVE {
		if n.Hyper != nil && slices.ContainsFunc(r.Ranges, func(p model.AttrRange) bool { return p.Path == "hypervisor" }) {
			d.invalid = true
			l.errorAt(r.RangeOf("hypervisor"), "hypervisor on a node that is none", "Only a node of type pve has children that it could mean anything to.")
		}
		n.Hyper = nil
	}
	n.invalid, n.refs = d.invalid, d.nodes
	if !decl.duplicate {
		l.addNode(m, n)
	}
}

// addNode puts a node into its manifest, unless two blocks make the same name.
func (l *load) addNode(m *manifest, n *nodeInfo) {
	if first := m.byName[strings.ToLower(n.Name)]; first != nil {
		l.errorAt(n.At, "duplicate node "+quote(n.Name), "The node of that name at %s is made first: rename one of them.", first.At)
		return
	}
	m.byName[strings.ToLower(n.Name)] = n
	if n.Resource.Spec != nil {
		m.Nodes = append(m.Nodes, n.Node)
	}
	if n.invalid {
		l.invalid[n.Resource.Addr.String()] = true
	}
}

func instanceAttrs() []string { return []string{"count", "for_each"} }

// kindOf finds the kind that a node's type names.
func (l *load) kindOf(decl *nodeDecl, d *Decoder) *model.Kind {
	a := decl.body.Attributes["type"]
	if a == nil {
		return nil
	}
	v, ok := l.evaluate(a.Expr, d.scope)
	if !ok || v.ContainsMarked() || v.IsNull() || !v.IsKnown() || !v.Type().IsPrimitiveType() {
		return nil // decoding the attribute says what is wrong
	}
	name := valueType(v)
	if v.Type() == cty.String {
		name = v.AsString()
	}
	kinds := l.kinds.Block(nodeBlock)
	k := kinds.Get(name)
	if k == nil {
		l.errorf(a.Expr.Range(), "unknown node type "+quote(name), "%s", l.nearest(name, kinds.Names()))
	}
	return k
}

// anyKind lists the attributes and blocks of all node types, for a node whose type
// is not known.
func (l *load) anyKind() []string {
	names := instanceAttrs()
	for _, k := range l.kinds.Block(nodeBlock) {
		s := l.schemas.part(k.New(), k.Name).schema
		names = append(append(names, s.attrNames()...), s.blockNames()...)
	}
	return names
}

// ranges gives the ranges that a node's VMID may be chosen from. The slices are
// shared by all nodes.
func (l *load) ranges(n *nodeInfo) []model.VMIDRange {
	all := l.site.VMIDRanges
	name := n.VMIDRange
	if name == "" {
		name = l.site.VMIDDefault
	}
	for i, r := range all {
		if r.Name == name {
			return all[i : i+1 : i+1]
		}
	}
	return all
}
