package policy

import (
	"maps"
	"reflect"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// shape says which fields a part of an input document has, so that a misspelt one is found when a
// policy is compiled: to Rego it would be merely undefined, and the rule would never report
// anything. The nil shape may be anything.
type shape struct {
	fields map[string]*shape // of an object whose fields are known; nil for a list or map
	each   *shape            // of every element of a list, or every value of a map
	list   bool              // each is of a list
}

// plain is a value without fields: text, number, truth value, null.
var plain = object(map[string]*shape{})

func object(fields map[string]*shape) *shape { return &shape{fields: fields} }

func listOf(each *shape) *shape { return &shape{each: each} }

// with gives an object with further fields, which replace those of the same name.
func (s *shape) with(more map[string]*shape) *shape {
	fields := maps.Clone(s.fields)
	maps.Copy(fields, more)
	return object(fields)
}

// union is the shape of a value that has one of two: what either has may be asked for.
func union(a, b *shape) *shape {
	switch {
	case a == nil || b == nil || (a.fields == nil) != (b.fields == nil):
		return nil
	case a.fields == nil:
		return &shape{each: union(a.each, b.each), list: a.list && b.list}
	}
	u := a.with(b.fields)
	for name := range a.fields {
		if other, both := b.fields[name]; both {
			u.fields[name] = union(a.fields[name], other)
		}
	}
	return u
}

// shapes are those of the two documents; either is for packages of no fixed use.
type shapes struct{ pass, auth, either *shape }

// shapesOf derives them from the types that the documents are made of. Without kinds
// the attributes of nodes may be anything.
func shapesOf(kinds model.Kinds) shapes {
	at := object(map[string]*shape{"file": plain, "line": plain})
	posture := attributesOf(reflect.TypeFor[model.Posture]()).with(map[string]*shape{"name": plain, "at": at})
	spec := attributesOf(reflect.TypeFor[model.Spec]()).with(map[string]*shape{"name": plain})
	spec.fields["access"].fields["posture"] = posture
	var attributes *shape
	for i, k := range kinds.Block("node") {
		s := attributesOf(reflect.TypeOf(k.New()).Elem())
		if attributes = union(attributes, s); i == 0 {
			attributes = s
		}
	}
	node := attributesOf(reflect.TypeFor[model.Node]()).with(map[string]*shape{
		"manifest": plain, "host": plain, "mode": plain, "at": at, "spec": spec, "attributes": attributes,
	})
	delete(node.fields, "execution")
	site := attributesOf(reflect.TypeFor[model.Site]()).with(map[string]*shape{
		"name": plain, "postures": listOf(posture), "jobs": listOf(attributesOf(reflect.TypeFor[model.Job]()).with(map[string]*shape{"at": at})), "nodes": listOf(node),
		"packs":   listOf(attributesOf(reflect.TypeFor[model.Pack]()).with(map[string]*shape{"at": at})),
		"waivers": listOf(attributesOf(reflect.TypeFor[model.Waiver]()).with(map[string]*shape{"at": at})),
		"hosts":   listOf(attributesOf(reflect.TypeFor[model.Host]()).with(map[string]*shape{"at": at})),
	})
	for field, k := range beside(kinds) {
		site.fields[field] = listOf(attributesOf(reflect.TypeOf(k.New()).Elem()).with(map[string]*shape{"at": at}))
	}
	pass := object(map[string]*shape{
		"version": plain, "plan": planShape(), "now": plain, "unattended": plain, "destroy": plain, "allow_deletes": plain, "trailers_grant": plain,
		"site":   site,
		"before": object(map[string]*shape{"nodes": plain, "lost": listOf(plain), "granted": plain}),
		"owned":  object(map[string]*shape{"count": plain}),
		"commit": object(map[string]*shape{
			"id": plain, "parents": listOf(plain), "signer": plain, "trailers": listOf(plain), "age_seconds": plain,
			"author": object(map[string]*shape{"name": plain, "email": plain}),
		}),
	})
	auth := object(map[string]*shape{
		"version": plain, "method": plain, "path": plain, "identity": plain, "remote": plain, "posture": posture,
		"credential": object(map[string]*shape{"kind": plain, "valid": plain, "identity": plain}),
	})
	return shapes{pass: pass, auth: auth, either: union(pass, auth)}
}

// attributesOf mirrors describe.
func attributesOf(t reflect.Type) *shape {
	s := object(map[string]*shape{})
	for _, f := range model.Fields(t) {
		switch {
		case !f.Decoded || f.Label:
		case f.Block && f.Type.Kind() == reflect.Pointer:
			s.fields[f.Name] = attributesOf(f.Elem)
		case f.Block:
			s.fields[f.Name] = listOf(attributesOf(f.Elem))
		default:
			s.fields[f.Name] = valueShape(f.Type)
		}
	}
	return s
}

func valueShape(t reflect.Type) *shape {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		return &shape{each: plain, list: t.Kind() == reflect.Slice}
	}
	return plain
}

// planShape is the shape of the plan document, by the JSON names of its types. Types with a JSON form of their own
// are listed here; a test compares all of it with real plans.
func planShape() *shape {
	s := jsonShape(reflect.TypeFor[plan.Plan](), map[reflect.Type]*shape{
		reflect.TypeFor[model.Address](): plain,
		reflect.TypeFor[diag.Range]():    object(map[string]*shape{"file": plain, "line": plain, "column": plain}),
		reflect.TypeFor[plan.Change](): object(map[string]*shape{
			"path": plain, "before": nil, "after": nil, "sensitive": plain, "class": plain,
		}),
	})
	s.fields["steps"].each.fields["protected"] = plain
	return s
}

func jsonShape(t reflect.Type, known map[reflect.Type]*shape) *shape {
	if s, ok := known[t]; ok {
		return s
	}
	switch t.Kind() {
	case reflect.Slice:
		return &shape{each: jsonShape(t.Elem(), known), list: true}
	case reflect.Map:
		return listOf(jsonShape(t.Elem(), known))
	case reflect.Interface:
		return nil
	case reflect.Struct:
		s := object(map[string]*shape{})
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				s.fields[name] = jsonShape(f.Type, known)
			}
		}
		return s
	default:
		return plain
	}
}
