package hcl

import (
	"cmp"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

const (
	typePVE      = "pve"  // the only node type that can be a parent
	maxInstances = 10_000 // of one node block
	maxNodes     = 50_000 // of a site
)

// manifest is a manifest block while it is decoded.
type manifest struct {
	*model.Manifest
	ranges []model.AttrRange // where its attributes are declared
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
	invalid   bool // the number of instances is unknown
	duplicate bool // a duplicate: it is decoded for its findings only
}

type instance struct {
	name   string
	values map[string]cty.Value // count or each
}

// nodeInfo is the data of a node for the rules, beside its model.
type nodeInfo struct {
	*model.Node
	refs    []lang.NodeRef // nodes that its kind's attributes name
	before  []string       // nodes of its PVE host that it waits for
	invalid bool
	guessed bool // its type is unknown, and the one in the model is probably meant
}

func (l *load) decodeManifests() {
	for _, b := range l.Blocks["manifest"] {
		m := &manifest{Manifest: &model.Manifest{At: lang.DiagRange(b.At)}, byDecl: map[string]*nodeDecl{}, byName: map[string]*nodeInfo{}}
		m.ranges = l.decodeBlock(b, m.Manifest, false).Ranges
		placeBackup(m.Backup, m.ranges)
		l.site.Manifests[b.Name] = m.Manifest
		l.manifests = append(l.manifests, m)
		l.declare(b, m)
		sc := l.manifestScope(m)
		for _, d := range m.decls {
			for _, i := range d.instances {
				l.decodeNode(m, d, i, sc)
			}
			d.body = nil
		}
		b.Body = nil // of a large site the syntax goes as it is used up
	}
}

// declare finds the node blocks of a manifest and the number of their instances.
func (l *load) declare(b *lang.Block, m *manifest) {
	for _, inner := range b.Body.Blocks {
		if inner.Type != lang.NodeBlock {
			continue
		}
		at := inner.DefRange()
		if len(inner.Labels) != 1 {
			l.Errorf(at, "node needs one name", `Write it as node "NAME" { … }.`)
			continue
		}
		d := &nodeDecl{name: l.Intern(inner.Labels[0]), body: inner.Body, at: at}
		if !l.CheckName(inner.LabelRanges[0], lang.NodeBlock, d.name) {
			continue
		}
		if first := m.byDecl[d.name]; first != nil {
			l.Errorf(at, "duplicate node "+lang.Quote(d.name), "The first of this manifest is at %s: rename or remove one of them.", lang.DiagRange(first.at))
			d.duplicate = true
		} else {
			m.byDecl[d.name] = d
		}
		m.decls = append(m.decls, d)
		if problem, where := l.expand(d); problem != "" {
			d.invalid = true
			l.Errorf(where, problem, "count is a number of nodes; for_each is a map, or a list of strings without repetition.")
		}
	}
	if !slices.ContainsFunc(b.Body.Blocks, func(i *hclsyntax.Block) bool { return i.Type == lang.NodeBlock }) {
		l.Errorf(b.At, "manifest "+lang.Quote(b.Name)+" has no nodes", `Add at least one node "NAME" { … }.`)
	}
}

// manifestScope adds the nodes of a manifest: the name of a single node, or the list of names for
// count or for_each.
func (l *load) manifestScope(m *manifest) *lang.Scope {
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
	sc := l.Base.Child(map[string]cty.Value{lang.NodeBlock: cty.ObjectVal(values)})
	sc.Nodes = make(map[string]bool, len(m.byDecl))
	for name, d := range m.byDecl {
		sc.Nodes[name] = !d.invalid
	}
	return sc
}

// decodeNode decodes one instance of a node block.
func (l *load) decodeNode(m *manifest, decl *nodeDecl, i instance, sc *lang.Scope) {
	l.Current = decl.at.Filename
	if i.values != nil {
		sc = sc.Child(i.values)
		_, sc.Count = i.values["count"]
		_, sc.Each = i.values["each"]
	}
	n := &nodeInfo{Node: &model.Node{Name: l.Intern(i.name), Block: decl.name, Manifest: m.Manifest, At: lang.DiagRange(decl.at)}}
	d := &lang.Decoder{Evaluator: l.Evaluator, Schemas: l.schemas, What: "node " + lang.Quote(decl.name), Scope: sc}
	d.Kind = l.kindOf(decl, d)
	common := l.schemas.Part(n.Node, lang.NodeBlock)
	r := &model.Resource{At: n.At, Manifest: m.Name, Node: n.Name}
	n.Resource = r
	r.Addr, r.Spec = model.Address{Kind: d.Kind.Name, Name: n.Name}, d.Kind.New()
	own := l.schemas.Part(r.Spec, d.Kind.Name)
	own.Secrets = true
	if own.Label >= 0 {
		own.Value.Field(own.Label).SetString(n.Name)
	}
	d.Body(decl.body, decl.at, instanceAttrs(), common, own)
	n.guessed, n.Type = n.Type != d.Kind.Name, d.Kind.Name
	l.schemas.Fill(common.Value, lang.NodeBlock)
	d.Finish()
	r.Needs, r.Ranges, r.Sensitive, r.Missing, r.MissingToCreate = d.Needs, d.Ranges, d.Sensitive, d.Missing, d.MissingToCreate
	placeBackup(n.Backup, r.Ranges)
	if d.Kind != nil && d.Kind.Guest {
		r.Guest = &model.Guest{VMID: n.VMID, Choose: l.ranges(n)}
	}
	if n.Type != typePVE {
		if n.Hyper != nil && r.Declares("hypervisor") && !n.guessed {
			d.Invalid = true
			l.ErrorAt(r.RangeOf("hypervisor"), "hypervisor on a node that is not of type pve", "It configures the children of a pve node: remove it, or set type = \"pve\".")
		}
		n.Hyper = nil
	}
	n.invalid, n.refs = d.Invalid, d.Nodes
	if !decl.duplicate {
		l.addNode(m, n)
	}
}

// addNode adds a node to its manifest, unless another block has an instance of the same name.
func (l *load) addNode(m *manifest, n *nodeInfo) {
	if first := m.byName[strings.ToLower(n.Name)]; first != nil {
		l.ErrorAt(n.At, "duplicate node "+lang.Quote(n.Name), "The node at %s has the same name: rename one of them.", first.At)
		return
	}
	m.byName[strings.ToLower(n.Name)] = n
	m.Nodes = append(m.Nodes, n.Node)
	if n.invalid {
		l.invalid[n.Resource.Addr.String()] = true
	}
}

func instanceAttrs() []string { return []string{"count", "for_each"} }

// kindOf finds the kind of a node's type.
func (l *load) kindOf(decl *nodeDecl, d *lang.Decoder) *model.Kind {
	a, kinds := decl.body.Attributes["type"], l.Kinds.Block(lang.NodeBlock)
	if a == nil {
		return l.likely(decl.body, kinds)
	}
	v, ok := l.Evaluate(a.Expr, d.Scope)
	if !ok || v.ContainsMarked() || v.IsNull() || !v.IsKnown() || !v.Type().IsPrimitiveType() {
		return l.likely(decl.body, kinds) // decoding the attribute reports the error
	}
	name := lang.ValueType(v)
	if v.Type() == cty.String {
		name = v.AsString()
	}
	k := kinds.Get(name)
	if k == nil {
		is := map[string]string{"qemu": "vm", "kvm": "vm", "lxc": "ct", "container": "ct"}[name]
		l.Errorf(a.Expr.Range(), "unknown node type "+lang.Quote(name), "%s", l.Nearest(cmp.Or(is, name), kinds.Names()))
		if d.Invalid = true; len(name) <= lang.MaxQuoted {
			k = kinds.Get(diag.Nearest(cmp.Or(is, name), kinds.Names()))
		}
		k = cmp.Or(k, l.likely(decl.body, kinds))
	}
	return k
}

// likely is the kind that knows most of a node whose type is unknown, so that its other mistakes are reported, too.
func (l *load) likely(b *hclsyntax.Body, kinds model.Kinds) *model.Kind {
	known := func(k *model.Kind) (n int) {
		s := l.schemas.Part(k.New(), k.Name).Schema
		for _, name := range slices.Concat(s.AttrNames(), s.BlockNames()) {
			if b.Attributes[name] != nil || slices.ContainsFunc(b.Blocks, func(i *hclsyntax.Block) bool { return i.Type == name }) {
				n++
			}
		}
		return n
	}
	return slices.MaxFunc(kinds, func(a, b *model.Kind) int { return known(a) - known(b) })
}

// ranges returns the ranges for a node's VMID. The slices are shared by all nodes.
func (l *load) ranges(n *nodeInfo) []model.VMIDRange {
	all := l.site.VMIDRanges
	name := cmp.Or(n.VMIDRange, l.site.VMIDDefault)
	for i, r := range all {
		if r.Name == name {
			return all[i : i+1 : i+1]
		}
	}
	return all
}
