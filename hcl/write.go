package hcl

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Block is a block to write. Its attributes and inner blocks are those that the tags of Parts describe, in the order of
// the reference page, so that what the loader reads can be written without further code.
type Block struct {
	Type, Label string
	Comment     []string // lines above it
	Parts       []Part
	Inner       []Block // further inner blocks, such as the nodes of a manifest
	// Expressions replace values of attributes that are set, such as node.web for parent.
	Expressions map[string]string
}

// Part is a pointer to a struct, and one to another struct of the same type: an attribute that is equal in both is not
// written. Base may be nil, for a struct of zero values.
type Part struct{ Value, Base any }

// Write is a file with blocks, in the canonical layout. head are the lines of the comment at its beginning.
func Write(head []string, blocks []Block) []byte {
	f := hclwrite.NewEmptyFile()
	comment(f.Body(), head)
	appendBlocks(f.Body(), blocks, len(head) > 0)
	return hclwrite.Format(append(bytes.TrimRight(f.Bytes(), "\n"), '\n'))
}

func comment(body *hclwrite.Body, lines []string) {
	for _, line := range lines {
		body.AppendUnstructuredTokens(hclwrite.Tokens{{Type: hclsyntax.TokenComment, Bytes: []byte(strings.TrimRight("# "+line, " ") + "\n")}})
	}
}

// appendBlocks appends blocks with an empty line between them, and before the first one if something is above it.
func appendBlocks(body *hclwrite.Body, blocks []Block, below bool) {
	for i, b := range blocks {
		if i > 0 || below {
			body.AppendNewline()
		}
		comment(body, b.Comment)
		var labels []string
		if b.Label != "" {
			labels = []string{b.Label}
		}
		inner := body.AppendNewBlock(b.Type, labels).Body()
		var further []Block
		for _, p := range b.Parts {
			v, base := reflect.ValueOf(p.Value).Elem(), reflect.ValueOf(p.Base)
			if p.Base == nil {
				base = reflect.New(v.Type())
			}
			further = append(further, appendAttributes(inner, v, base.Elem(), b.Expressions)...)
		}
		appendBlocks(inner, append(further, b.Inner...), len(inner.Attributes()) > 0)
	}
}

// appendAttributes writes the attributes of a struct that differ from those of base, and returns its inner blocks.
func appendAttributes(body *hclwrite.Body, v, base reflect.Value, instead map[string]string) []Block {
	var blocks []Block
	for _, f := range model.Fields(v.Type()) {
		field, other := v.Field(f.Index), base.Field(f.Index)
		switch {
		case !f.Decoded || f.Label:
		case f.Block && field.Kind() == reflect.Slice:
			for i := range field.Len() {
				elem := field.Index(i)
				label := elem.Field(model.LabelField(f.Elem)).String()
				blocks = append(blocks, Block{Type: f.Name, Label: label, Parts: []Part{{elem.Addr().Interface(), labelled(other, label)}}})
			}
		case f.Block && !field.IsNil():
			p := Part{Value: field.Interface()}
			if !other.IsNil() {
				p.Base = other.Interface()
			}
			blocks = append(blocks, Block{Type: f.Name, Parts: []Part{p}})
		case f.Block, same(field, other):
		case instead[f.Name] != "":
			body.SetAttributeRaw(f.Name, hclwrite.Tokens{{Type: hclsyntax.TokenIdent, Bytes: []byte(instead[f.Name])}})
		default:
			ref := f.Ref
			if f.Secret {
				ref = "secret.passwords" // a file has the name of a secret
			}
			body.SetAttributeRaw(f.Name, tokens(field, ref))
		}
	}
	return blocks
}

// labelled is the block with a label in a list; nil if it has none.
func labelled(list reflect.Value, label string) any {
	for i := range list.Len() {
		if elem := list.Index(i); elem.Field(model.LabelField(elem.Type())).String() == label {
			return elem.Addr().Interface()
		}
	}
	return nil
}

func same(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Slice || k == reflect.Map) && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// tokens is a value as an expression: TYPE.NAME for a reference to a block of type ref.
func tokens(v reflect.Value, ref string) hclwrite.Tokens {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.String {
		return hclwrite.TokensForValue(value(v))
	}
	text := v.String()
	switch {
	case ref != "" && hclsyntax.ValidIdentifier(text):
		return hclwrite.Tokens{{Type: hclsyntax.TokenIdent, Bytes: []byte(ref + "." + text)}}
	case strings.Contains(text, "\n") && diag.Clean(text) == text: // a heredoc has no escapes
		return heredoc(text)
	default:
		return hclwrite.TokensForValue(value(v))
	}
}

// heredoc is a text of several lines. It ends in a line break, even if the text does not.
func heredoc(text string) hclwrite.Tokens {
	text = strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strings.TrimSuffix(text, "\n"))
	end, lines := "EOT", strings.Split(text, "\n")
	for slices.ContainsFunc(lines, func(line string) bool { return strings.TrimSpace(line) == end }) {
		end += "_"
	}
	return hclwrite.Tokens{{Type: hclsyntax.TokenOHeredoc, Bytes: fmt.Appendf(nil, "<<%s\n%s\n%s", end, text, end)}}
}

// value is a value of an attribute. It panics on a type that no attribute has.
func value(v reflect.Value) cty.Value {
	switch v.Kind() {
	case reflect.String:
		return cty.StringVal(v.String())
	case reflect.Bool:
		return cty.BoolVal(v.Bool())
	case reflect.Int, reflect.Int64:
		if d, ok := reflect.TypeAssert[time.Duration](v); ok {
			return cty.StringVal(model.ShortDuration(d))
		}
		return cty.NumberIntVal(v.Int())
	case reflect.Float64:
		return cty.NumberFloatVal(v.Float())
	case reflect.Slice:
		var list []cty.Value
		for i := range v.Len() {
			list = append(list, value(v.Index(i)))
		}
		return cty.TupleVal(list)
	case reflect.Map:
		entries := map[string]cty.Value{}
		for it := v.MapRange(); it.Next(); {
			entries[it.Key().String()] = value(it.Value())
		}
		return cty.ObjectVal(entries)
	default:
		panic("no attribute has the type " + v.Type().String())
	}
}
