package lang

import (
	"reflect"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Schema describes a block, from the tags of its struct.
type Schema struct {
	Label  int // index of the field, -1 without one
	Attrs  []model.Field
	Blocks []blockField
	ByName map[string]int // of attrs
	Inner  map[string]int // of blocks
}

// blockField is a field for an inner block, or for a list of them.
type blockField struct {
	model.Field
	Many   bool
	Schema *Schema
}

// Schemas caches schemas by the type of the struct.
type Schemas map[reflect.Type]*Schema

// Of reads the tags of a type once.
func (all Schemas) Of(t reflect.Type) *Schema {
	if s := all[t]; s != nil {
		return s
	}
	s := &Schema{Label: -1, ByName: map[string]int{}, Inner: map[string]int{}}
	all[t] = s
	for _, f := range model.Fields(t) {
		switch {
		case !f.Decoded:
		case f.Label:
			s.Label = f.Index
		case f.Block:
			s.Inner[f.Name] = len(s.Blocks)
			s.Blocks = append(s.Blocks, blockField{Field: f, Many: f.Type.Kind() == reflect.Slice, Schema: all.Of(f.Elem)})
		default:
			s.ByName[f.Name] = len(s.Attrs)
			s.Attrs = append(s.Attrs, f)
		}
	}
	return s
}

// AttrNames lists the attributes.
func (s *Schema) AttrNames() []string {
	names := make([]string, len(s.Attrs))
	for i, f := range s.Attrs {
		names[i] = f.Name
	}
	return names
}

// BlockNames lists the inner blocks.
func (s *Schema) BlockNames() []string {
	names := make([]string, len(s.Blocks))
	for i, f := range s.Blocks {
		names[i] = f.Name
	}
	return names
}
