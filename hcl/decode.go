package hcl

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Decoder turns one block, with all inside it, into structs, and notes on the way
// what the structs cannot hold.
type Decoder struct {
	*evaluator
	schemas schemas
	what    string // for messages: preset "small"
	scope   *scope
	kind    *model.Kind // of a node; nil elsewhere
	nodes   []nodeRef   // names of nodes that the attributes of a kind hold

	ranges    []model.AttrRange
	sensitive []string
	missing   []string
	needs     []model.Address
	invalid   bool // a value is not as it was meant to be
}

// part is one of the structs that a block body is decoded into.
type part struct {
	*schema
	value   reflect.Value // of the struct
	rule    string        // path in the table of values.go: spec.access.user
	prefix  string        // of the paths in places: disk.data.
	secrets bool          // values made from secrets may stand here
}

// part is a struct as a part of a block; rule is the type of the block.
func (all schemas) part(target any, rule string) part {
	v := reflect.ValueOf(target).Elem()
	return part{schema: all.of(v.Type()), value: v, rule: rule}
}

// nodeRef is the name of a node of the manifest in an attribute.
type nodeRef struct {
	name string
	at   diag.Range
}

// body decodes a body into all parts at once: what one does not know, another may.
// Names in extra are somebody else's business.
// What the body lacks is told at its head.
func (d *Decoder) body(b *hclsyntax.Body, head hclv2.Range, extra []string, parts ...part) {
	known := 0
	for _, p := range parts {
		for i := range p.attrs {
			f := &p.attrs[i]
			a := b.Attributes[f.Name]
			declared := a != nil && d.attribute(a, f, p)
			if a != nil {
				known++
			}
			if !declared && !f.Optional && a == nil {
				d.invalid = true
				d.errorf(head, "missing attribute "+quote(f.Name)+" in "+d.what, "%s", f.Doc)
			}
		}
		d.innerBlocks(b, p)
	}
	if known != len(b.Attributes) {
		d.unknownAttributes(b, extra, parts)
	}
	d.unknownBlocks(b, extra, parts)
}

// attribute writes a declared attribute into its field and reports whether it says
// anything: null is as good as not declared.
func (d *Decoder) attribute(a *hclsyntax.Attribute, f *model.Field, p part) bool {
	path := p.prefix + f.Name
	d.recordRange(path, a.SrcRange)
	rule := p.rule + "." + f.Name
	at := a.Expr.Range()
	if !d.rightType(a.Expr, f, rule) {
		return true
	}
	v, ok := d.evaluate(a.Expr, d.scope)
	if ok && adapters[rule] != nil {
		var problem string
		if v, problem = adapters[rule](d, v); problem != "" {
			d.errorf(at, f.Name+" "+problem, "%s", f.Doc)
			ok = false
		}
	}
	if !ok {
		d.invalid = true
		return true
	}
	if v.IsNull() {
		if !f.Optional {
			d.invalid = true
			d.errorf(at, "missing attribute "+quote(f.Name)+" in "+d.what, "Its value is null, which is as good as none. %s", f.Doc)
		}
		return false
	}
	d.literalSecrets(a.Expr, v)
	plain, secret := d.unmark(v, f, p, path, at)
	switch {
	case plain == cty.NilVal:
		return true
	case !plain.IsWhollyKnown():
		return true // told in missing: the field keeps what it has
	case f.Secret && !secret && !plain.RawEquals(cty.StringVal("")):
		d.invalid = true
		d.refuseLiteral(at, f.Name)
		return true
	}
	dst := p.value.Field(f.Index)
	if problem := d.assign(dst, plain); problem != "" {
		if n := unitless(f.Doc, plain); n != "" {
			problem += ": write " + n + ", without a unit"
		}
		d.invalid = true
		d.errorf(at, f.Name+" "+problem, "%s", f.Doc)
		return true
	}
	if dst.Kind() == reflect.Map {
		d.recordMapRanges(a.Expr, path)
		d.recordMapNeeds(a.Expr)
	}
	if f.Ref != "" {
		d.reference(dst, f, at)
	}
	d.checkValue(dst, rule, f.Name, at)
	return true
}

// unmark takes the marks of secrets off a value and notes what they say. NilVal
// means that no secret may stand here.
func (d *Decoder) unmark(v cty.Value, f *model.Field, p part, path string, at hclv2.Range) (plain cty.Value, secret bool) {
	if !v.ContainsMarked() {
		return v, false
	}
	var entries []string
	if outer, marks := v.Unmark(); f.Type.Kind() == reflect.Map && outer.CanIterateElements() {
		if len(marks) > 0 {
			d.invalid = true
			d.errorf(at, "names in "+f.Name+" must not be made from a secret", "They are shown in plans: only the values may come from secrets.")
			return cty.NilVal, true
		}
		for it := outer.ElementIterator(); it.Next(); {
			if k, e := it.Element(); e.ContainsMarked() {
				k, _ = k.Unmark()
				entries = append(entries, path+"."+k.AsString())
			}
		}
	} else {
		entries = []string{path}
	}
	plain, marks := v.UnmarkDeep()
	if f.Ref != "" || (!p.secrets && !f.Secret) {
		d.invalid = true
		d.errorf(at, f.Name+" must not be made from a secret", "It is shown in plans and reports.")
		return cty.NilVal, true
	}
	d.sensitive = append(d.sensitive, entries...)
	for m := range marks {
		if s, ok := m.(secretMark); ok && !s.known {
			d.missing = append(d.missing, s.String())
		}
	}
	return plain, true
}

// rightType refuses preset = spec.base, where the name of one thing is written for
// that of another.
func (d *Decoder) rightType(e hclsyntax.Expression, f *model.Field, rule string) bool {
	ref := f.Ref
	if rule == "node.parent" || rule == "node.depends_on" {
		ref = nodeBlock
	}
	t, ok := e.(*hclsyntax.ScopeTraversalExpr)
	if !ok || ref == "" {
		return true
	}
	root := t.Traversal.RootName()
	if root == ref || !d.isNamed(root) && root != nodeBlock {
		return true
	}
	d.invalid = true
	d.errorf(e.Range(), fmt.Sprintf("%s wants %s.NAME, not %s.NAME", f.Name, ref, root), "%s", f.Doc)
	return false
}

// reference checks the names that a field holds, and notes the resources among them.
func (d *Decoder) reference(dst reflect.Value, f *model.Field, at hclv2.Range) {
	var names []string
	switch v := dst.Interface().(type) {
	case string:
		names = []string{v}
	case []string:
		names = v
	case *string:
		names = []string{*v}
	}
	if f.Ref == nodeBlock {
		for _, name := range names {
			d.nodes = append(d.nodes, nodeRef{name, diagRange(at)})
		}
		return
	}
	for _, name := range names {
		b := d.named[f.Ref][name]
		if b == nil {
			d.invalid = true
			d.unknown(at, f.Ref, name, slices.Sorted(maps.Keys(d.named[f.Ref])))
			continue
		}
		d.invalid = d.invalid || b.invalid
		if b.btype.kind != nil {
			d.needs = append(d.needs, model.Address{Kind: b.btype.kind.Name, Name: b.name})
		}
	}
}

func (d *Decoder) innerBlocks(b *hclsyntax.Body, p part) {
	if len(b.Blocks) == 0 {
		return
	}
	for i := range p.blocks {
		f := &p.blocks[i]
		var first *hclsyntax.Block
		labels := map[string]*hclsyntax.Block{}
		field := p.value.Field(f.Index)
		for _, inner := range b.Blocks {
			if inner.Type != f.Name {
				continue
			}
			if !f.many {
				if first != nil {
					d.invalid = true
					d.errorf(inner.DefRange(), "second "+f.Name+" block in "+d.what, "One is possible; the first is at %s.", diagRange(first.DefRange()))
					continue
				}
				first = inner
			}
			if f.many && first == nil {
				first = inner
				field.SetLen(0)
			}
			d.inner(inner, f, p, field, labels)
		}
	}
}

// inner decodes one block inside of another one.
func (d *Decoder) inner(b *hclsyntax.Block, f *blockField, outer part, field reflect.Value, labels map[string]*hclsyntax.Block) {
	p := part{schema: f.schema, rule: outer.rule + "." + f.Name, prefix: outer.prefix + f.Name + ".", secrets: outer.secrets}
	target := reflect.New(f.Elem)
	what := d.what
	defer func() { d.what = what }()
	d.what = f.Name + " in " + what
	if !f.many && !field.IsNil() {
		target.Elem().Set(field.Elem()) // the kind's defaults
	}
	p.value = target.Elem()
	want := 0
	if p.label >= 0 {
		want = 1
	}
	if len(b.Labels) != want {
		d.invalid = true
		if want == 1 {
			d.errorf(b.DefRange(), f.Name+" needs one name", `Write it as %s "NAME" { … }.`, f.Name)
		} else {
			d.errorf(b.DefRange(), f.Name+" has no name", "Write it as %s { … }.", f.Name)
		}
		return
	}
	if want == 1 {
		name := d.intern(b.Labels[0])
		d.what = f.Name + " " + quote(name) + " in " + what
		if !d.checkLabel(b.LabelRanges[0], p.rule, f.Name, name) {
			d.invalid = true
			return
		}
		if first := labels[name]; first != nil {
			d.invalid = true
			d.errorf(b.DefRange(), "duplicate "+d.what, "The first is at %s: rename or remove one of them.", diagRange(first.DefRange()))
			return
		}
		labels[name] = b
		p.value.Field(p.label).SetString(name)
		p.prefix += name + "."
	}
	d.recordRange(strings.TrimSuffix(p.prefix, "."), b.DefRange())
	before := d.invalid
	d.invalid = false
	d.body(b.Body, b.DefRange(), nil, p)
	d.checkBlock(p, b.DefRange())
	d.invalid = d.invalid || before
	if f.many {
		field.Set(reflect.Append(field, target.Elem()))
	} else {
		field.Set(target)
	}
}

func (d *Decoder) unknownAttributes(b *hclsyntax.Body, extra []string, parts []part) {
	names, blocks := slices.Clone(extra), []string{}
	for _, p := range parts {
		names, blocks = append(names, p.attrNames()...), append(blocks, p.blockNames()...)
	}
	for _, a := range sortedAttributes(b) {
		if slices.Contains(names, a.Name) {
			continue
		}
		d.invalid = true
		detail := d.nearest(a.Name, names)
		switch {
		case slices.Contains(blocks, a.Name):
			detail = fmt.Sprintf("It is a block: write %s { … } without =.", a.Name)
		case len(holders(a.Name, parts)) > 0:
			detail = fmt.Sprintf("It stands in a block of its own: write %s.", strings.Join(holders(a.Name, parts), ", or "))
		case d.absentInside(a.Name, parts) != "":
			d.errorf(a.NameRange, fmt.Sprintf("%s has no place in %s", quote(a.Name), d.what), "%s", d.absentInside(a.Name, parts))
			continue
		case d.elsewhere(a.Name, false) != "":
			d.errorf(a.NameRange, fmt.Sprintf("%s is an attribute of %s nodes", a.Name, d.elsewhere(a.Name, false)), "%s", d.whyAbsent(a.Name))
			continue
		case slices.Contains(names, "options") && !strings.HasPrefix(detail, "did you mean"):
			detail = fmt.Sprintf("If it is a key of PVE's own: options = { %s = … }; %s", a.Name, detail)
		}
		d.errorf(a.NameRange, "unknown attribute "+quote(a.Name)+" in "+d.what, "%s", detail)
	}
}

// holders spells an attribute as it stands in the inner blocks that have it.
func holders(name string, parts []part) []string {
	var out []string
	for _, p := range parts {
		for _, b := range p.blocks {
			if _, ok := b.schema.byName[name]; ok {
				label := ""
				if b.schema.label >= 0 {
					label = ` "NAME"`
				}
				out = append(out, fmt.Sprintf("%s%s { %s = … }", b.Name, label, name))
			}
		}
	}
	return out
}

func (d *Decoder) unknownBlocks(b *hclsyntax.Body, extra []string, parts []part) {
	var names, attrs []string
	for _, inner := range b.Blocks {
		if slices.Contains(extra, inner.Type) || slices.ContainsFunc(parts, func(p part) bool { _, ok := p.inner[inner.Type]; return ok }) {
			continue
		}
		if names == nil {
			for _, p := range parts {
				names, attrs = append(names, p.blockNames()...), append(attrs, p.attrNames()...)
			}
		}
		d.invalid = true
		detail := d.nearest(inner.Type, names)
		switch {
		case slices.Contains(attrs, inner.Type):
			detail = fmt.Sprintf("It is an attribute: write %s = ….", inner.Type)
		case d.elsewhere(inner.Type, true) != "":
			d.errorf(inner.TypeRange, fmt.Sprintf("%s is a block of %s nodes", inner.Type, d.elsewhere(inner.Type, true)), "It has no place in %s.", d.what)
			continue
		}
		d.errorf(inner.TypeRange, "unknown block "+quote(inner.Type)+" in "+d.what, "%s", detail)
	}
}

// recordRange notes where an attribute or block was declared.
func (d *Decoder) recordRange(path string, at hclv2.Range) {
	d.ranges = append(d.ranges, model.AttrRange{Path: d.intern(path), At: diagRange(at)})
}

// recordMapRanges notes where the entries of a map stand, if they are written out.
func (d *Decoder) recordMapRanges(e hclsyntax.Expression, path string) {
	o, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return
	}
	for _, item := range o.Items {
		if key, diags := item.KeyExpr.Value(nil); !diags.HasErrors() && key.Type() == cty.String {
			d.recordRange(path+"."+key.AsString(), hclv2.RangeBetween(item.KeyExpr.Range(), item.ValueExpr.Range()))
		}
	}
}

// finish brings what was noted into the form that model.Resource wants.
func (d *Decoder) finish() {
	slices.SortStableFunc(d.ranges, func(a, b model.AttrRange) int { return strings.Compare(a.Path, b.Path) })
	d.ranges = slices.Clip(d.ranges)
	for _, list := range []*[]string{&d.sensitive, &d.missing} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	slices.SortFunc(d.needs, model.Address.Compare)
	d.needs = slices.Compact(d.needs)
}

// whyAbsent says why a node does not have an attribute of others.
func (d *Decoder) whyAbsent(name string) string {
	text := fmt.Sprintf("It has no place in %s", d.what)
	if why := d.kind.Absent[name]; why != "" {
		return text + ": " + why + "."
	}
	return text + "."
}

// absentInside says why an inner block of a node does not have an attribute that the
// block has in nodes of other types; "" if nothing is known.
func (d *Decoder) absentInside(name string, parts []part) string {
	if d.kind == nil || len(parts) != 1 {
		return ""
	}
	block, inner := strings.CutPrefix(parts[0].rule, d.kind.Name+".")
	if why := d.kind.Absent[block+"."+name]; inner && why != "" {
		return strings.ToUpper(why[:1]) + why[1:] + "."
	}
	return ""
}

// elsewhere names the other node types that have an attribute or block; "" if none.
func (d *Decoder) elsewhere(name string, block bool) string {
	if d.kind == nil {
		return ""
	}
	var types []string
	for _, k := range d.kinds.Block(nodeBlock) {
		s := d.schemas.part(k.New(), k.Name).schema
		names := s.attrNames()
		if block {
			names = s.blockNames()
		}
		if k != d.kind && slices.Contains(names, name) {
			types = append(types, k.Name)
		}
	}
	return strings.Join(types, " and ")
}

// secretName matches keys of maps whose values are secrets.
var secretName = regexp.MustCompile(`^[\w-]*(?:token|password|passwd|secret)$`)

// literalSecrets refuses entries of a map that by their names are secrets, such as
// cipassword in options, and have their values in the files.
func (d *Decoder) literalSecrets(e hclsyntax.Expression, v cty.Value) {
	o, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return
	}
	outer, _ := v.Unmark()
	if !outer.Type().IsObjectType() || outer.IsNull() || !outer.IsKnown() {
		return
	}
	for _, item := range o.Items {
		key, diags := item.KeyExpr.Value(nil)
		if diags.HasErrors() || key.Type() != cty.String || !secretName.MatchString(key.AsString()) || !outer.Type().HasAttribute(key.AsString()) {
			continue
		}
		if value := outer.GetAttr(key.AsString()); !value.ContainsMarked() && !value.IsNull() && !value.RawEquals(cty.StringVal("")) {
			d.invalid = true
			d.refuseLiteral(hclv2.RangeBetween(item.KeyExpr.Range(), item.ValueExpr.Range()), key.AsString())
		}
	}
}

// recordMapNeeds notes the resources that the values of a map refer to, as the text around
// "${image.NAME}" is no name that could be looked up later.
func (d *Decoder) recordMapNeeds(e hclsyntax.Expression) {
	for _, t := range e.Variables() {
		name, ok := stepName(t, 1)
		if b := d.named[t.RootName()][name]; ok && d.isNamed(t.RootName()) && b != nil && b.btype.kind != nil {
			d.invalid = d.invalid || b.invalid
			d.needs = append(d.needs, model.Address{Kind: b.btype.kind.Name, Name: b.name})
		}
	}
}
