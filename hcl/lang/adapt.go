package lang

import (
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// adapters change values before they are written, by the path of the attribute.
var adapters = map[string]func(*Decoder, cty.Value) (cty.Value, string){
	"spec.access.user.ssh_keys": adaptKeys,
	"node.parent":               adaptParent,
	"node.depends_on":           adaptDependsOn,
}

// adaptKeys replaces keys by their names: secret.ssh_keys.ops becomes "ops", even if the value is
// unknown here, so that the spec is the same everywhere. A literal key is unchanged.
func adaptKeys(d *Decoder, v cty.Value) (cty.Value, string) {
	unmarked, marks := v.Unmark()
	if !unmarked.IsKnown() {
		return cty.ListValEmpty(cty.String).WithMarks(marks), "" // a login must not depend on a guess
	}
	if unmarked.IsNull() || !unmarked.CanIterateElements() || unmarked.Type().IsMapType() || unmarked.Type().IsObjectType() {
		return v, ""
	}
	names := []string{}
	if d.Inputs.Secrets != nil {
		names = slices.Sorted(maps.Keys(d.Inputs.Secrets.Values["ssh_keys"]))
	}
	var out []cty.Value
	for it := unmarked.ElementIterator(); it.Next(); {
		_, e := it.Element()
		text, own := e.Unmark()
		if name, ok := d.keyName(text, own); ok {
			out = append(out, cty.StringVal(name))
			continue
		}
		out = append(out, e)
		if len(own) > 0 || !text.IsKnown() || text.IsNull() || text.Type() != cty.String || keyText(text.AsString()) || d.Inputs.Secrets == nil {
			continue
		}
		if s := text.AsString(); !slices.Contains(names, s) {
			return v, "names the unknown key " + Quote(s) + hint(d.NearestOr(s, names, "the section ssh_keys is empty"))
		}
	}
	if len(out) == 0 {
		return cty.ListValEmpty(cty.String), ""
	}
	return cty.TupleVal(out).WithMarks(marks), ""
}

func hint(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// keyName returns the name of a secret if the value is that secret, unchanged.
func (d *Decoder) keyName(v cty.Value, marks cty.ValueMarks) (string, bool) {
	if len(marks) != 1 {
		return "", false
	}
	for m := range marks {
		s, ok := m.(secretMark)
		if !ok || s.Section != "ssh_keys" || s.Key == "" {
			return "", false
		}
		if !v.IsKnown() {
			return s.Key, true
		}
		return s.Key, v.Type() == cty.String && !v.IsNull() && v.AsString() == d.Inputs.Secrets.Values[s.Section][s.Key]
	}
	return "", false
}

// adaptParent accepts node.x of a node with count = 1 as that single node.
func adaptParent(_ *Decoder, v cty.Value) (cty.Value, string) {
	if v.IsMarked() || !v.IsKnown() || v.IsNull() || !v.Type().IsTupleType() && !v.Type().IsListType() {
		return v, ""
	}
	if v.LengthInt() != 1 {
		return v, fmt.Sprintf("names %d nodes: a node has one parent, such as node.NAME[0]", v.LengthInt())
	}
	return v.Index(cty.NumberIntVal(0)), ""
}

// adaptDependsOn flattens the names and lists of names that node.x evaluates to.
func adaptDependsOn(_ *Decoder, v cty.Value) (cty.Value, string) {
	if v.ContainsMarked() || !v.IsWhollyKnown() || v.IsNull() {
		return v, ""
	}
	var flat []cty.Value
	var walk func(cty.Value)
	walk = func(v cty.Value) {
		if t := v.Type(); !v.IsNull() && (t.IsTupleType() || t.IsListType() || t.IsSetType()) {
			for it := v.ElementIterator(); it.Next(); {
				_, e := it.Element()
				walk(e)
			}
			return
		}
		flat = append(flat, v)
	}
	if walk(v); len(flat) == 0 {
		return cty.ListValEmpty(cty.String), ""
	}
	return cty.TupleVal(flat), ""
}
