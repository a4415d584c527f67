package hcl

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// Edit is a value that an attribute of a node is to have, at its path as of model.Attrs; nil for none.
type Edit struct {
	Path  string
	Value any
	Said  any // its value now, declared or not
}

// Kept is an edit that was not made, and why.
type Kept struct {
	Path string     `json:"path"`
	Why  string     `json:"why"`
	At   diag.Range `json:"at"`
}

// Patch makes the edits in the file that declares a node. It changes only literals of this node: what other nodes share
// stays as it is. Attributes that are not there yet come in the order of the reference page.
func Patch(src []byte, n *model.Node, edits []Edit) ([]byte, []Kept, error) {
	f, diags := hclsyntax.ParseConfig(src, n.At.File, hclv2.InitialPos)
	if diags.HasErrors() {
		return nil, nil, diags
	}
	p := &patch{src: src, said: model.Attrs(n.Resource.Spec), edits: slices.Clone(edits)}
	b := blockOf(blockOf(&hclsyntax.Block{Body: f.Body.(*hclsyntax.Body)}, "manifest", n.Manifest.Name), lang.NodeBlock, n.Block)
	if b == nil {
		return nil, nil, fmt.Errorf("%s does not declare node %s any more", n.At.File, n.Name)
	}
	if a := cmp.Or(b.Body.Attributes["count"], b.Body.Attributes["for_each"]); a != nil {
		for _, e := range edits {
			p.keep(e, a.SrcRange, "the block declares several nodes by "+a.Name)
		}
		return src, p.kept, nil
	}
	p.block(b, "", reflect.TypeFor[model.Node](), reflect.TypeOf(n.Resource.Spec).Elem())
	for _, e := range p.edits {
		p.keep(e, b.DefRange(), "no attribute of the files says it")
	}
	out := p.apply()
	if bytes.Equal(hclwrite.Format(src), src) {
		out = hclwrite.Format(out)
	}
	if len(p.again) > 0 {
		out, more, err := Patch(out, n, p.again)
		return out, append(p.kept, more...), err
	}
	return out, p.kept, nil
}

// patch collects what changes in a file.
type patch struct {
	src     []byte
	said    []model.Attr // by the files
	edits   []Edit       // that no attribute was found for yet
	again   []Edit       // those in blocks that were added
	splices []splice
	kept    []Kept
}

// splice replaces the text from one offset to another.
type splice struct {
	from, to int
	text     string
}

func (p *patch) splice(from, to int, text string) {
	p.splices = append(p.splices, splice{from, to, text})
}

func (p *patch) apply() []byte {
	sort.SliceStable(p.splices, func(i, j int) bool { return p.splices[i].from < p.splices[j].from })
	var out []byte
	done := 0
	for _, s := range p.splices {
		out = append(append(out, p.src[done:s.from]...), s.text...)
		done = s.to
	}
	return append(out, p.src[done:]...)
}

func (p *patch) keep(e Edit, at hclv2.Range, why string) {
	p.kept = append(p.kept, Kept{e.Path, why, lang.DiagRange(at)})
}

// take removes the edits at a path, or below it, from those that are left, and returns them.
func (p *patch) take(path string, below bool) (out []Edit) {
	p.edits = slices.DeleteFunc(p.edits, func(e Edit) bool {
		hit := !below && e.Path == path || below && strings.HasPrefix(e.Path, path+".")
		if hit {
			out = append(out, e)
		}
		return hit
	})
	return out
}

// blockOf is an inner block by its type and label; nil if there is none.
func blockOf(b *hclsyntax.Block, kind, label string) *hclsyntax.Block {
	if b == nil {
		return nil
	}
	i := slices.IndexFunc(b.Body.Blocks, func(b *hclsyntax.Block) bool {
		return b.Type == kind && strings.Join(b.Labels, "") == label
	})
	if i < 0 {
		return nil
	}
	return b.Body.Blocks[i]
}

// block makes the edits below a path in a block, whose attributes are those of types.
func (p *patch) block(b *hclsyntax.Block, prefix string, types ...reflect.Type) {
	place := b.OpenBraceRange.End.Byte // of an attribute that is not there: below the one before it
	oneLine, before := b.OpenBraceRange.Start.Line == b.CloseBraceRange.Start.Line, len(p.splices)
	if !oneLine {
		place = p.lineEnd(place)
	}
	var inner []func()
	for _, t := range types {
		for _, f := range model.Fields(t) {
			path, a := prefix+f.Name, b.Body.Attributes[f.Name]
			switch {
			case !f.Decoded || f.Label || !f.Compared:
			case f.Block:
				inner = append(inner, func() { p.blocks(b, path, f, t) })
				continue // an attribute of the same name is another field
			case f.Type.Kind() == reflect.Map:
				p.entries(b, a, path, f.Name, place)
			default:
				for _, e := range p.take(path, false) {
					p.attribute(b, a, e, f, t, place)
				}
			}
			if a != nil && !oneLine {
				place = p.lineEnd(a.SrcRange.End.Byte)
			}
		}
	}
	if oneLine && slices.ContainsFunc(p.splices[before:], func(s splice) bool { return s.to == place }) {
		p.splices = slices.Insert(p.splices, before, splice{place, place, "\n"})
		if end := b.CloseBraceRange.Start.Byte; len(b.Body.Attributes) > 0 {
			p.splice(end, end, "\n")
		}
	}
	for _, do := range inner {
		do()
	}
}

// lineEnd is the offset behind the line of an offset.
func (p *patch) lineEnd(at int) int {
	if at > 0 && p.src[at-1] == '\n' {
		return at // a heredoc ends so
	}
	if i := bytes.IndexByte(p.src[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(p.src)
}

// insert writes an attribute that a block does not have yet.
func (p *patch) insert(b *hclsyntax.Block, place int, name, text string) {
	p.splice(place, place, strings.Repeat(" ", b.TypeRange.Start.Column+1)+name+" = "+text+"\n")
}

// remove takes out whole lines, or no more than what shares its line with something else.
func (p *patch) remove(at hclv2.Range) {
	from, to := at.Start.Byte, at.End.Byte
	start := bytes.LastIndexByte(p.src[:from], '\n') + 1
	rest := strings.TrimSpace(string(p.src[to:p.lineEnd(to)]))
	if strings.TrimSpace(string(p.src[start:from])) == "" && (rest == "" || strings.HasPrefix(rest, "#") || strings.HasPrefix(rest, "//")) {
		from, to = start, p.lineEnd(to)
	}
	p.splice(from, to, "")
}

// isNone reports whether the files say a value by leaving the attribute out.
func isNone(e Edit, f model.Field, t reflect.Type) bool {
	_, isDefault := t.Field(f.Index).Tag.Lookup("default")
	v := reflect.ValueOf(e.Value)
	switch {
	case e.Value == nil:
		return true
	case v.Kind() == reflect.Slice:
		return v.Len() == 0
	case v.Kind() == reflect.Bool:
		return e.Said == nil && !v.Bool()
	}
	return !isDefault && f.Type.Kind() != reflect.Pointer && v.IsZero()
}

func isLiteral(e hclsyntax.Expression) bool {
	_, diags := e.Value(nil)
	return !diags.HasErrors()
}

func (p *patch) text(at hclv2.Range) string { return string(at.SliceBytes(p.src)) }

func (p *patch) attribute(b *hclsyntax.Block, a *hclsyntax.Attribute, e Edit, f model.Field, t reflect.Type, place int) {
	preset := b.Body.Attributes["preset"]
	ofPreset := slices.ContainsFunc(model.Fields(reflect.TypeFor[model.Preset]()), func(of model.Field) bool { return of.Name == f.Name })
	none := isNone(e, f, t)
	switch {
	case a == nil && none && e.Said == nil:
	case f.Ref != "":
		p.keep(e, b.DefRange(), "it names another block")
	case a == nil && none:
		p.keep(e, b.DefRange(), "no attribute says that it has none: the value of the files is a default")
	case a == nil && preset != nil && ofPreset:
		p.keep(e, preset.SrcRange, fmt.Sprintf("its value is that of the preset; for this node alone, write %s = %s", f.Name, written(e.Value)))
	case a == nil:
		p.insert(b, place, f.Name, written(e.Value))
	case !isLiteral(a.Expr):
		p.keep(e, a.SrcRange, "its value is the expression "+diag.FirstLine(p.text(a.Expr.Range())))
	case none:
		p.remove(a.SrcRange)
	default:
		text, end := written(e.Value), a.Expr.Range().End.Byte
		if strings.HasPrefix(text, "<<") && strings.TrimSpace(string(p.src[end:p.lineEnd(end)])) != "" {
			text = string(hclwrite.TokensForValue(value(reflect.ValueOf(e.Value))).Bytes()) // a heredoc ends its line
		}
		p.splice(a.Expr.Range().Start.Byte, end, text)
	}
}

// written is a value as an expression.
func written(v any) string { return string(tokens(reflect.ValueOf(v), "").Bytes()) }

// entries makes the edits of a map.
func (p *patch) entries(b *hclsyntax.Block, a *hclsyntax.Attribute, path, name string, place int) {
	edits := p.take(path, true)
	if len(edits) == 0 {
		return
	}
	var items []string
	separator, object := "\n", &hclsyntax.ObjectConsExpr{}
	if a != nil {
		o, ok := a.Expr.(*hclsyntax.ObjectConsExpr)
		if text := p.text(a.Expr.Range()); !ok || strings.ContainsAny(text, "#") || strings.Contains(text, "//") {
			for _, e := range edits {
				p.keep(e, a.SrcRange, "its map is an expression, or has comments")
			}
			return
		} else if !strings.Contains(text, "\n") {
			separator = ", "
		}
		object = o
	}
	for _, item := range object.Items {
		value := p.text(item.ValueExpr.Range())
		key, diags := item.KeyExpr.Value(nil)
		i := slices.IndexFunc(edits, func(e Edit) bool {
			return !diags.HasErrors() && key.Type() == cty.String && e.Path == path+"."+key.AsString()
		})
		if i >= 0 {
			e := edits[i]
			edits = slices.Delete(edits, i, i+1)
			switch {
			case !isLiteral(item.ValueExpr):
				p.keep(e, item.ValueExpr.Range(), "its value is the expression "+value)
			case e.Value == nil:
				continue
			default:
				value = written(e.Value)
			}
		}
		items = append(items, p.text(item.KeyExpr.Range())+" = "+value)
	}
	for _, e := range edits {
		key := strings.TrimPrefix(e.Path, path+".")
		if !hclsyntax.ValidIdentifier(key) {
			key = written(key)
		}
		if e.Value == nil {
			p.keep(e, b.DefRange(), "no attribute of this node says it")
		} else {
			items = append(items, key+" = "+written(e.Value))
		}
	}
	text := "{" + separator + strings.Join(items, separator) + separator + "}"
	if separator != "\n" {
		text = "{ " + strings.Join(items, separator) + " }"
	}
	switch {
	case a != nil && len(items) == 0:
		p.remove(a.SrcRange)
	case a != nil:
		p.splice(a.Expr.Range().Start.Byte, a.Expr.Range().End.Byte, text)
	case len(items) > 0:
		p.insert(b, place, name, text)
	}
}

// blocks makes the edits of inner blocks of a type.
func (p *patch) blocks(b *hclsyntax.Block, path string, f model.Field, t reflect.Type) {
	for {
		i := slices.IndexFunc(p.edits, func(e Edit) bool { return strings.HasPrefix(e.Path, path+".") })
		if i < 0 {
			return
		}
		label, at := "", path
		if f.Type.Kind() == reflect.Slice {
			label, _, _ = strings.Cut(strings.TrimPrefix(p.edits[i].Path, path+"."), ".")
			at += "." + label
		}
		inner := blockOf(b, f.Name, label)
		switch {
		case inner != nil && p.goes(at):
			p.take(at, true)
			p.remove(hclv2.RangeBetween(inner.TypeRange, inner.CloseBraceRange))
		case inner != nil:
			p.block(inner, at+".", f.Elem)
		default:
			p.short(b, at, f.Name, t)
			p.add(b, at, label, f.Name)
		}
		for _, e := range p.take(at, true) {
			p.keep(e, b.DefRange(), "no attribute of the files says it")
		}
	}
}

// goes reports whether nothing is left of a block.
func (p *patch) goes(at string) bool {
	gone := map[string]bool{}
	for _, e := range p.edits {
		gone[e.Path] = e.Value == nil
		if e.Value != nil && strings.HasPrefix(e.Path, at+".") {
			return false
		}
	}
	return !slices.ContainsFunc(p.said, func(a model.Attr) bool {
		return strings.HasPrefix(a.Path, at+".") && a.Value != nil && !gone[a.Path]
	})
}

// short makes the edit of a block that is declared by an attribute of the same name, as disk = 20 is the size of the
// root disk.
func (p *patch) short(b *hclsyntax.Block, at, name string, t reflect.Type) {
	fields := model.Fields(t)
	i := slices.IndexFunc(fields, func(f model.Field) bool { return f.Name == name && !f.Block })
	a := b.Body.Attributes[name]
	if i < 0 || a == nil && b.Body.Attributes["preset"] == nil {
		return
	}
	for _, e := range slices.Clone(p.edits) {
		if _, number := e.Said.(int64); number && e.Value != nil && e.Path == at+".size" {
			p.attribute(b, a, p.take(e.Path, false)[0], fields[i], t, 0)
		}
	}
}

// add writes an empty block, which the next round fills, if the host has more than nothing of it.
func (p *patch) add(b *hclsyntax.Block, at, label, name string) {
	if !slices.ContainsFunc(p.edits, func(e Edit) bool { return e.Value != nil && strings.HasPrefix(e.Path, at+".") }) {
		return
	}
	p.again = append(p.again, p.take(at, true)...)
	if label != "" {
		name += " " + written(label)
	}
	indent, end := strings.Repeat(" ", b.TypeRange.Start.Column+1), b.CloseBraceRange.Start.Byte
	if b.OpenBraceRange.Start.Line != b.CloseBraceRange.Start.Line {
		end = bytes.LastIndexByte(p.src[:end], '\n') + 1
	}
	p.splice(end, end, "\n"+indent+name+" {\n"+indent+"}\n")
}
