// Package lang is the site language below the loader: it turns files into blocks (source.go), evaluates their
// expressions (scope.go), and decodes blocks into structs (decode.go).
package lang

// Decoding a block into a struct. The tags of the struct are the schema (schema.go); a table adds rules for values,
// and defaults (values.go). A Decoder records what the struct cannot store: where attributes are declared, which
// ones come from secrets, and what the block needs.

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Decoder turns one block with its inner blocks into structs, and records what the structs cannot
// store.
type Decoder struct {
	*Evaluator
	Schemas Schemas
	What    string // for messages: preset "small"
	Scope   *Scope
	Kind    *model.Kind // of a node; nil elsewhere
	Nodes   []NodeRef   // names of nodes that the attributes of a kind hold

	Ranges    []model.AttrRange
	Sensitive []string
	Missing   []string
	Needs     []model.Address

	MissingToCreate []string // see model.Resource
	Invalid         bool     // a value is invalid
}

// Part is one of the structs that a block body is decoded into.
type Part struct {
	*Schema
	Value   reflect.Value // of the struct
	Rule    string        // path in the table of values.go: spec.access.user
	prefix  string        // of the paths in places: disk.data.
	Secrets bool          // values from secrets are allowed
}

// Part is a struct as a part of a block; rule is the type of the block.
func (all Schemas) Part(target any, rule string) Part {
	v := reflect.ValueOf(target).Elem()
	return Part{Schema: all.Of(v.Type()), Value: v, Rule: rule}
}

// NodeRef is the name of a node of the manifest in an attribute.
type NodeRef struct {
	Name string
	At   diag.Range
}

// Body decodes a body into all parts at once: an attribute that one part does not know may belong
// to another. The caller handles the names in extra. Missing attributes are reported at the head of
// the block.
func (d *Decoder) Body(b *hclsyntax.Body, head hclv2.Range, extra []string, parts ...Part) {
	known := 0
	d.Ranges = slices.Grow(d.Ranges, len(b.Attributes)+4*len(b.Blocks))
	for _, p := range parts {
		for i := range p.Attrs {
			f := &p.Attrs[i]
			a := b.Attributes[f.Name]
			declared := a != nil && d.attribute(a, f, p)
			if a != nil {
				known++
			}
			if !declared && !f.Optional && a == nil {
				d.Invalid = true
				d.Errorf(head, "missing attribute "+Quote(f.Name)+" in "+d.What, "%s", f.Doc)
			}
		}
		d.innerBlocks(b, p)
	}
	if known != len(b.Attributes) {
		d.unknownAttributes(b, extra, parts)
	}
	d.unknownBlocks(b, extra, parts)
}

// attribute writes a declared attribute into its field and reports whether it has a value: null
// counts as not declared.
func (d *Decoder) attribute(a *hclsyntax.Attribute, f *model.Field, p Part) bool {
	path := p.prefix + f.Name
	d.RecordRange(path, a.SrcRange)
	rule := p.Rule + "." + f.Name
	at := a.Expr.Range()
	if !d.rightType(a.Expr, f, rule) {
		return true
	}
	v, ok := d.Evaluate(a.Expr, d.Scope)
	if ok && adapters[rule] != nil {
		var problem string
		if v, problem = adapters[rule](d, v); problem != "" {
			d.Errorf(at, f.Name+" "+problem, "%s", f.Doc)
			ok = false
		}
	}
	if !ok {
		d.Invalid = true
		return true
	}
	if v.IsNull() {
		d.Ranges = d.Ranges[:len(d.Ranges)-1]
		if !f.Optional {
			d.Invalid = true
			d.Errorf(at, "missing attribute "+Quote(f.Name)+" in "+d.What, "Its value is null, which counts as missing. %s", f.Doc)
		}
		return false
	}
	d.literalSecrets(a.Expr, v)
	plain, secret := d.unmark(v, f, p, path, at)
	switch {
	case plain == cty.NilVal:
		return true
	case !plain.IsWhollyKnown():
		return true // reported by Missing: the field keeps what it has
	case f.Secret && !secret && !plain.RawEquals(cty.StringVal("")):
		d.Invalid = true
		if f.Name == "key" && plain.Type() == cty.String && (strings.HasPrefix(plain.AsString(), "/") || strings.HasPrefix(plain.AsString(), "~/")) {
			d.Errorf(at, "key is a path, not a key", `Put the key itself into the secrets, and write secret.ssh_keys["NAME"]: a file is not read.`)
			return true
		}
		d.RefuseLiteral(at, f.Name)
		return true
	}
	dst := p.Value.Field(f.Index)
	_, quoted := a.Expr.(*hclsyntax.TemplateWrapExpr) // "${…}" is what is inside
	if f.Quoted && (plain.Type() != cty.String && !quoted || subtracts(a.Expr)) {
		d.Invalid = true
		d.unquoted(a.Expr, f, plain)
		return true
	}
	if problem := d.Assign(dst, plain); problem != "" {
		if n := unitless(f.Doc, plain); n != "" {
			problem += ": write " + n + ", without a unit"
		}
		d.Invalid = true
		d.Errorf(at, f.Name+" "+problem, "%s", f.Doc)
		return true
	}
	if dst.Kind() == reflect.Map {
		d.recordMapRanges(a.Expr, path)
		d.recordMapNeeds(a.Expr)
	}
	if f.Ref != "" {
		d.reference(dst, f, at)
	}
	d.CheckValue(dst, rule, f.Name, at)
	return true
}

// unquoted reports the value of an attribute that has to be in quotes.
func (d *Decoder) unquoted(e hclsyntax.Expression, f *model.Field, v cty.Value) {
	at, is, why := e.Range(), ValueType(v), ""
	if subtracts(e) {
		is, why = "a number", ": without them it is a subtraction"
	}
	text := "2026-11"
	switch e.(type) {
	case *hclsyntax.BinaryOpExpr, *hclsyntax.LiteralValueExpr:
		text = string(at.SliceBytes(d.Sources[at.Filename]))
	}
	d.Errorf(at, f.Name+" is "+is+", not a string", "Write it in quotes, such as %s%s.", Quote(text), why)
}

// subtracts reports whether the value of an expression is a date without quotes, which is a subtraction of numbers. One in an
// index, a condition or a call is meant.
func subtracts(e hclsyntax.Expression) bool {
	switch e := e.(type) {
	case *hclsyntax.ParenthesesExpr:
		return subtracts(e.Expression)
	case *hclsyntax.ConditionalExpr:
		return subtracts(e.TrueResult) || subtracts(e.FalseResult)
	case *hclsyntax.TemplateWrapExpr:
		return subtracts(e.Wrapped)
	case *hclsyntax.TemplateExpr:
		return slices.ContainsFunc(e.Parts, subtracts)
	case *hclsyntax.BinaryOpExpr:
		_, left := e.LHS.(*hclsyntax.LiteralValueExpr)
		_, right := e.RHS.(*hclsyntax.LiteralValueExpr)
		return e.Op == hclsyntax.OpSubtract && right && (left || subtracts(e.LHS))
	default:
		return false
	}
}

// unmark removes the marks of secrets from a value and records them. NilVal means that secrets are
// not allowed here.
func (d *Decoder) unmark(v cty.Value, f *model.Field, p Part, path string, at hclv2.Range) (plain cty.Value, secret bool) {
	if !v.ContainsMarked() {
		return v, false
	}
	var entries []string
	if outer, marks := v.Unmark(); f.Type.Kind() == reflect.Map && outer.CanIterateElements() {
		if len(marks) > 0 {
			d.Invalid = true
			d.Errorf(at, "names in "+f.Name+" must not come from a secret", "Plans show them: only the values may come from secrets.")
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
	if f.Ref != "" || (!p.Secrets && !f.Secret) {
		d.Invalid = true
		d.Errorf(at, f.Name+" must not come from a secret", "Plans and reports show it.")
		return cty.NilVal, true
	}
	d.Sensitive = append(d.Sensitive, entries...)
	missing := &d.Missing
	if f.Secret && !f.Compared {
		missing = &d.MissingToCreate
	}
	for m := range marks {
		if s, ok := m.(secretMark); ok && !s.Known {
			*missing = append(*missing, s.String())
		}
	}
	return plain, true
}

// rightType rejects a reference to another type, such as preset = spec.base.
func (d *Decoder) rightType(e hclsyntax.Expression, f *model.Field, rule string) bool {
	ref := f.Ref
	if rule == "node.parent" || rule == "node.depends_on" {
		ref = NodeBlock
	}
	t, ok := e.(*hclsyntax.ScopeTraversalExpr)
	if !ok || ref == "" {
		return true
	}
	root := t.Traversal.RootName()
	if root == ref || !d.IsNamed(root) && root != NodeBlock {
		return true
	}
	d.Invalid = true
	d.Errorf(e.Range(), fmt.Sprintf("%s wants %s.NAME, not %s.NAME", f.Name, ref, root), "%s", f.Doc)
	return false
}

// reference checks the names in a field, and records the resources among them.
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
	if f.Ref == NodeBlock {
		for _, name := range names {
			d.Nodes = append(d.Nodes, NodeRef{name, DiagRange(at)})
		}
		return
	}
	for _, name := range names {
		b := d.Named[f.Ref][name]
		if b == nil {
			d.Invalid = true
			d.Unknown(at, f.Ref, name, slices.Sorted(maps.Keys(d.Named[f.Ref])))
			continue
		}
		d.Invalid = d.Invalid || b.Invalid
		if b.Type.Kind != nil {
			d.Needs = append(d.Needs, model.Address{Kind: b.Type.Kind.Name, Name: b.Name})
		}
	}
}

func (d *Decoder) innerBlocks(b *hclsyntax.Body, p Part) {
	if len(b.Blocks) == 0 {
		return
	}
	for i := range p.Blocks {
		f := &p.Blocks[i]
		var first *hclsyntax.Block
		labels := map[string]*hclsyntax.Block{}
		field := p.Value.Field(f.Index)
		for _, inner := range b.Blocks {
			if inner.Type != f.Name {
				continue
			}
			if !f.Many {
				if first != nil {
					d.Invalid = true
					d.Errorf(inner.DefRange(), "second "+f.Name+" block in "+d.What, "Only one is allowed; the first is at %s.", DiagRange(first.DefRange()))
					continue
				}
				first = inner
			}
			if f.Many && first == nil {
				first = inner
				field.SetLen(0)
			}
			d.inner(inner, f, p, field, labels)
		}
	}
}

// inner decodes an inner block.
func (d *Decoder) inner(b *hclsyntax.Block, f *blockField, outer Part, field reflect.Value, labels map[string]*hclsyntax.Block) {
	p := Part{Schema: f.Schema, Rule: outer.Rule + "." + f.Name, prefix: outer.prefix + f.Name + ".", Secrets: outer.Secrets}
	target := reflect.New(f.Elem)
	what := d.What
	defer func() { d.What = what }()
	d.What = f.Name + " in " + what
	if !f.Many && !field.IsNil() {
		target.Elem().Set(field.Elem()) // the kind's defaults
	}
	p.Value = target.Elem()
	want := 0
	if p.Label >= 0 {
		want = 1
	}
	if len(b.Labels) != want {
		d.Invalid = true
		if want == 1 {
			d.Errorf(b.DefRange(), f.Name+" needs one name", `Write it as %s "NAME" { … }.`, f.Name)
		} else {
			d.Errorf(b.DefRange(), f.Name+" has no name", "Write it as %s { … }.", f.Name)
		}
		return
	}
	if want == 1 {
		name := d.Intern(b.Labels[0])
		d.What = f.Name + " " + Quote(name) + " in " + what
		if !d.checkLabel(b.LabelRanges[0], p.Rule, f.Name, name) {
			d.Invalid = true
			return
		}
		if first := labels[name]; first != nil {
			d.Invalid = true
			d.Errorf(b.DefRange(), "duplicate "+d.What, "The first is at %s: rename or remove one of them.", DiagRange(first.DefRange()))
			return
		}
		labels[name] = b
		p.Value.Field(p.Label).SetString(name)
		p.prefix += name + "."
	}
	d.RecordRange(strings.TrimSuffix(p.prefix, "."), b.DefRange())
	before := d.Invalid
	d.Invalid = false
	d.Body(b.Body, b.DefRange(), nil, p)
	d.checkBlock(p, b.DefRange())
	d.Invalid = d.Invalid || before
	if f.Many {
		field.Set(reflect.Append(field, target.Elem()))
	} else {
		field.Set(target)
	}
}

func (d *Decoder) unknownAttributes(b *hclsyntax.Body, extra []string, parts []Part) {
	names, blocks := slices.Clone(extra), []string{}
	for _, p := range parts {
		names, blocks = append(names, p.AttrNames()...), append(blocks, p.BlockNames()...)
	}
	for _, a := range SortedAttributes(b) {
		if slices.Contains(names, a.Name) {
			continue
		}
		d.Invalid = true
		detail := d.Nearest(a.Name, names)
		switch {
		case slices.Contains(names, synonyms[a.Name]):
			detail = fmt.Sprintf("did you mean %q?", synonyms[a.Name])
			if a.Name == "cpu" && slices.Contains(names, "options") {
				detail += " If it is a PVE key: options = { cpu = … }."
			}
		case slices.Contains(blocks, a.Name):
			detail = fmt.Sprintf("It is a block: write %s { … } without =.", a.Name)
		case d.elsewhere(a.Name, false) != "" && d.Kind.Absent[a.Name] != "": // before the advice of a block that this kind may not use either
			d.Errorf(a.NameRange, fmt.Sprintf("%s is an attribute of %s nodes", a.Name, d.elsewhere(a.Name, false)), "%s", d.whyAbsent(a.Name))
			continue
		case len(holders(a.Name, parts)) > 0:
			detail = fmt.Sprintf("It needs its own block: write %s.", strings.Join(holders(a.Name, parts), ", or "))
		case d.absentInside(a.Name, parts) != "":
			d.Errorf(a.NameRange, fmt.Sprintf("%s is not allowed in %s", Quote(a.Name), d.What), "%s", d.absentInside(a.Name, parts))
			continue
		case d.elsewhere(a.Name, false) != "":
			d.Errorf(a.NameRange, fmt.Sprintf("%s is an attribute of %s nodes", a.Name, d.elsewhere(a.Name, false)), "%s", d.whyAbsent(a.Name))
			continue
		case slices.Contains(names, "options") && !strings.HasPrefix(detail, "did you mean"):
			detail = fmt.Sprintf("If it is a PVE key: options = { %s = … }; %s", a.Name, detail)
		}
		d.Errorf(a.NameRange, "unknown attribute "+Quote(a.Name)+" in "+d.What, "%s", detail)
	}
}

// synonyms are words of other programs, with those of this language.
var synonyms = map[string]string{
	"ram": "memory", "cpu": "cores", "cpus": "cores", "vcpus": "cores", "network": "nic", "net": "nic", "anti_affinity": "spread",
	"until": "expires", "reports_to": "parent", "token": "api_token", "mail": "smtp", "email": "smtp",
}

// holders lists the inner blocks that have an attribute, as it is written there.
func holders(name string, parts []Part) []string {
	var out []string
	for _, p := range parts {
		for _, b := range p.Blocks {
			if _, ok := b.Schema.ByName[name]; ok {
				label := ""
				if b.Schema.Label >= 0 {
					label = ` "NAME"`
				}
				out = append(out, fmt.Sprintf("%s%s { %s = … }", b.Name, label, name))
			}
		}
	}
	return out
}

func (d *Decoder) unknownBlocks(b *hclsyntax.Body, extra []string, parts []Part) {
	var names, attrs []string
	for _, inner := range b.Blocks {
		if slices.Contains(extra, inner.Type) || slices.ContainsFunc(parts, func(p Part) bool { _, ok := p.Inner[inner.Type]; return ok }) {
			continue
		}
		if names == nil {
			for _, p := range parts {
				names, attrs = append(names, p.BlockNames()...), append(attrs, p.AttrNames()...)
			}
		}
		d.Invalid = true
		detail := d.Nearest(inner.Type, names)
		switch {
		case slices.Contains(names, synonyms[inner.Type]):
			detail = fmt.Sprintf("did you mean %q?", synonyms[inner.Type])
		case slices.Contains(attrs, inner.Type):
			detail = fmt.Sprintf("It is an attribute: write %s = ….", inner.Type)
		case d.elsewhere(inner.Type, true) != "":
			d.Errorf(inner.TypeRange, fmt.Sprintf("%s is a block of %s nodes", inner.Type, d.elsewhere(inner.Type, true)), "It is not allowed in %s.", d.What)
			continue
		}
		d.Errorf(inner.TypeRange, "unknown block "+Quote(inner.Type)+" in "+d.What, "%s", detail)
	}
}

// RecordRange records where an attribute or block was declared.
func (d *Decoder) RecordRange(path string, at hclv2.Range) {
	d.Ranges = append(d.Ranges, model.AttrRange{Path: d.Intern(path), At: DiagRange(at)})
}

// recordMapRanges records the positions of the entries of a literal map.
func (d *Decoder) recordMapRanges(e hclsyntax.Expression, path string) {
	o, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return
	}
	for _, item := range o.Items {
		if key, diags := item.KeyExpr.Value(nil); !diags.HasErrors() && key.Type() == cty.String {
			d.RecordRange(path+"."+key.AsString(), hclv2.RangeBetween(item.KeyExpr.Range(), item.ValueExpr.Range()))
		}
	}
}

// Finish converts what was recorded for model.Resource.
func (d *Decoder) Finish() {
	sort.SliceStable(d.Ranges, func(i, j int) bool { return d.Ranges[i].Path < d.Ranges[j].Path })
	d.Ranges = slices.Clip(d.Ranges)
	for _, list := range []*[]string{&d.Sensitive, &d.Missing, &d.MissingToCreate} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	slices.SortFunc(d.Needs, model.Address.Compare)
	d.Needs = slices.Compact(d.Needs)
}

// whyAbsent explains why a node does not have an attribute of other nodes.
func (d *Decoder) whyAbsent(name string) string {
	text := fmt.Sprintf("It is not allowed in %s", d.What)
	if why := d.Kind.Absent[name]; why != "" {
		return text + ": " + why + "."
	}
	return text + "."
}

// absentInside says why an inner block of a node does not have an attribute that the
// block has in nodes of other types; "" if nothing is known.
func (d *Decoder) absentInside(name string, parts []Part) string {
	if d.Kind == nil || len(parts) != 1 {
		return ""
	}
	block, inner := strings.CutPrefix(parts[0].Rule, d.Kind.Name+".")
	if why := d.Kind.Absent[block+"."+name]; inner && why != "" {
		return strings.ToUpper(why[:1]) + why[1:] + "."
	}
	return ""
}

// elsewhere names the other node types that have an attribute or block; "" if none.
func (d *Decoder) elsewhere(name string, block bool) string {
	if d.Kind == nil {
		return ""
	}
	var types []string
	for _, k := range d.Kinds.Block(NodeBlock) {
		s := d.Schemas.Part(k.New(), k.Name).Schema
		names := s.AttrNames()
		if block {
			names = s.BlockNames()
		}
		if k != d.Kind && slices.Contains(names, name) {
			types = append(types, k.Name)
		}
	}
	return strings.Join(types, " and ")
}

// secretName matches keys of maps whose values are secrets.
var secretName = regexp.MustCompile(`^[\w-]*(?:token|password|passwd|secret)$`)

// literalSecrets rejects literal values of map entries whose names suggest a secret, such as
// cipassword in options.
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
			d.Invalid = true
			d.RefuseLiteral(hclv2.RangeBetween(item.KeyExpr.Range(), item.ValueExpr.Range()), key.AsString())
		}
	}
}

// recordMapNeeds records the resources in the values of a map, because a text with "${image.NAME}"
// in it cannot be resolved as a name later.
func (d *Decoder) recordMapNeeds(e hclsyntax.Expression) {
	for _, t := range e.Variables() {
		name, ok := stepName(t, 1)
		if b := d.Named[t.RootName()][name]; ok && d.IsNamed(t.RootName()) && b != nil && b.Type.Kind != nil {
			d.Invalid = d.Invalid || b.Invalid
			d.Needs = append(d.Needs, model.Address{Kind: b.Type.Kind.Name, Name: b.Name})
		}
	}
}
