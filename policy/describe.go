package policy

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// open is the secrecy of values that cannot be secret: the loader rejects secrets there.
func open(string) bool { return false }

// secretsOf reports which attributes come from secrets: the named ones, their children and their
// parents.
func secretsOf(sensitive []string) func(path string) bool {
	if len(sensitive) == 0 {
		return open
	}
	return func(path string) bool {
		return slices.ContainsFunc(sensitive, func(s string) bool {
			return s == path || strings.HasPrefix(path, s+".") || strings.HasPrefix(s, path+".")
		})
	}
}

// describe writes the attributes of a struct under their names in the language: blocks with a label as an object by
// label, others as an object or null. Undeclared optional attributes are null, except lists, maps and booleans.
func describe(v reflect.Value, prefix string, secret func(path string) bool) map[string]any {
	fields := model.Fields(v.Type())
	d := make(map[string]any, len(fields)+4)
	for i := range fields {
		f := &fields[i]
		if !f.Decoded || f.Label {
			continue
		}
		path, field := prefix+f.Name, v.Field(f.Index)
		switch {
		case f.Block && field.Kind() == reflect.Pointer && field.IsNil():
			d[f.Name] = nil
		case f.Block && field.Kind() == reflect.Pointer:
			d[f.Name] = describe(field.Elem(), path+".", secret)
		case f.Block:
			label := model.LabelField(f.Elem)
			list := make(map[string]any, field.Len())
			for i := range field.Len() {
				name := field.Index(i).Field(label).String()
				list[name] = describe(field.Index(i), path+"."+name+".", secret)
			}
			d[f.Name] = list
		case field.Kind() == reflect.Map:
			list := make(map[string]any, field.Len())
			for it := field.MapRange(); it.Next(); {
				k := it.Key().String()
				list[k] = masked(it.Value().String(), f.Secret || secret(path+"."+k))
			}
			d[f.Name] = list
		default:
			d[f.Name] = masked(attribute(f, field), f.Secret || secret(path))
		}
	}
	return d
}

// masked hides a value, but not whether it is set.
func masked(v any, secret bool) any {
	if v == nil || !secret {
		return v
	}
	return model.Sensitive
}

func attribute(f *model.Field, v reflect.Value) any {
	pointer := v.Kind() == reflect.Pointer
	if pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	unset := f.Optional && !pointer && v.IsZero()
	switch x := v.Interface().(type) {
	case bool:
		return x
	case []string:
		return append([]string{}, x...)
	case time.Duration:
		if unset {
			return nil
		}
		return x.String()
	}
	if unset {
		return nil
	}
	return v.Interface() // string, int, int64 or float64, by the contract of model.Kind
}

// text is a string, or null if it is empty.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func or[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// unique keeps the first of equal texts.
func unique(l []string) []string {
	seen := make(map[string]bool, len(l))
	return slices.DeleteFunc(l, func(s string) bool {
		was := seen[s]
		seen[s] = true
		return was
	})
}

// texts is a list of texts, empty rather than null.
func texts(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}
