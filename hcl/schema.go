package hcl

import (
	"reflect"

	"github.com/homestak/homestak-gitops/engine/model"
)

// schema is what the tags of a struct say of the block that is decoded into it.
type schema struct {
	label  int // index of the field, -1 without one
	attrs  []model.Field
	blocks []blockField
	byName map[string]int // of attrs
	inner  map[string]int // of blocks
}

type blockField struct {
	model.Field
	many   bool
	schema *schema
}

// schemas are those that were read so far.
type schemas map[reflect.Type]*schema

// of reads the tags of a type once.
func (all schemas) of(t reflect.Type) *schema {
	if s := all[t]; s != nil {
		return s
	}
	s := &schema{label: -1, byName: map[string]int{}, inner: map[string]int{}}
	all[t] = s
	for _, f := range model.Fields(t) {
		switch {
		case !f.Decoded:
		case f.Label:
			s.label = f.Index
		case f.Block:
			s.inner[f.Name] = len(s.blocks)
			s.blocks = append(s.blocks, blockField{Field: f, many: f.Type.Kind() == reflect.Slice, schema: all.of(f.Elem)})
		default:
			s.byName[f.Name] = len(s.attrs)
			s.attrs = append(s.attrs, f)
		}
	}
	return s
}

func (s *schema) attrNames() []string {
	names := make([]string, len(s.attrs))
	for i, f := range s.attrs {
		names[i] = f.Name
	}
	return names
}

func (s *schema) blockNames() []string {
	names := make([]string, len(s.blocks))
	for i, f := range s.blocks {
		names[i] = f.Name
	}
	return names
}
