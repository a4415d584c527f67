package model

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Attr is one comparable attribute of a spec. Path joins block type, label and
// attribute by dots: "memory", "disk.data.size", "options.cpu". Value is one of
// nil (not declared), string, bool, int64, float64, []string; a duration is its text.
type Attr struct {
	Path   string
	Value  any
	Cost   Class
	Secret bool
}

// Attrs lists the comparable attributes of a spec (a pointer to a kind's struct)
// in the order of its fields; blocks in the order of their labels, map entries in
// that of their keys. Undeclared optional blocks and nil pointers give nothing
// resp. a nil value.
func Attrs(spec any) []Attr {
	return AppendAttrs(make([]Attr, 0, 2*reflect.TypeOf(spec).Elem().NumField()), spec)
}

// AppendAttrs appends the attributes that Attrs lists.
func AppendAttrs(out []Attr, spec any) []Attr {
	return appendAttrs(out, "", reflect.ValueOf(spec).Elem())
}

// ValueOf is the value of one attribute outside of blocks, as Attrs lists it; nil if it is not declared, or the kind does not
// have it.
func ValueOf(spec any, name string) any {
	v := reflect.ValueOf(spec).Elem()
	for _, f := range Fields(v.Type()) {
		if f.Name == name && f.Compared && !f.Block && f.Type.Kind() != reflect.Map {
			return plain(v.Field(f.Index))
		}
	}
	return nil
}

// TextOf is ValueOf for an attribute that is a string; "" without a value.
func TextOf(spec any, name string) string {
	s, _ := ValueOf(spec, name).(string)
	return s
}

// StaticAddresses are the addresses that the network cards of a guest's spec declare, without their prefixes.
func StaticAddresses(spec any) (out []netip.Addr) {
	for _, a := range Attrs(spec) {
		text, _ := a.Value.(string)
		if !strings.HasPrefix(a.Path, "nic.") || !strings.HasSuffix(a.Path, ".ip") && !strings.HasSuffix(a.Path, ".ip6") {
			continue
		}
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}

func appendAttrs(out []Attr, prefix string, v reflect.Value) []Attr {
	for _, f := range Fields(v.Type()) {
		if !f.Compared {
			continue
		}
		path, fv := prefix+f.Name, v.Field(f.Index)
		switch {
		case f.Block && fv.Kind() == reflect.Pointer:
			if !fv.IsNil() {
				out = appendAttrs(out, path+".", fv.Elem())
			}
		case f.Block:
			label := LabelField(f.Elem)
			for _, i := range byLabel(fv, label) {
				out = appendAttrs(out, path+"."+fv.Index(i).Field(label).String()+".", fv.Index(i))
			}
		case fv.Kind() == reflect.Map:
			m, _ := reflect.TypeAssert[map[string]string](fv)
			for _, k := range slices.Sorted(maps.Keys(m)) {
				out = append(out, Attr{path + "." + k, m[k], f.Cost, f.Secret})
			}
		default:
			out = append(out, Attr{path, plain(fv), f.Cost, f.Secret})
		}
	}
	return out
}

func byLabel(list reflect.Value, label int) []int {
	order := make([]int, list.Len())
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return CompareNames(list.Index(a).Field(label).String(), list.Index(b).Field(label).String())
	})
	return order
}

func plain(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return d.String()
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int64:
		return v.Int()
	case reflect.Float64:
		return v.Float()
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{}
		}
		list, _ := reflect.TypeAssert[[]string](v)
		return slices.Clone(list)
	default:
		panic(fmt.Sprintf("attribute of unsupported type %s", v.Type()))
	}
}

// Field is one field of a spec or site struct, as its tags describe it.
type Field struct {
	Index    int
	Name     string // attribute or block type; for a label "name"
	Decoded  bool   // has an hcl tag
	Compared bool   // takes part in the diff
	Label    bool
	Block    bool
	Optional bool
	Secret   bool
	Quoted   bool // takes a string alone: a number that becomes one is a date without quotes
	Ref      string
	Cost     Class
	Doc      string
	Type     reflect.Type
	Elem     reflect.Type // of a block: the struct behind pointer or slice
}

// fieldsOf remembers what readFields found, by type. Tags are read for every
// resource of every pass, which costs more than all the rest of a comparison. It is
// a memo only: an entry never changes, and any goroutine may add one.
var fieldsOf sync.Map // reflect.Type → []Field

// Fields reads the tags of a struct type, in field order, leaving out fields
// without any; the result is shared and only to be read. It panics on tags that
// make no sense: that is a programming error which the test of every kind finds.
func Fields(t reflect.Type) []Field {
	if known, ok := fieldsOf.Load(t); ok {
		return known.([]Field)
	}
	known, _ := fieldsOf.LoadOrStore(t, readFields(t))
	return known.([]Field)
}

func readFields(t reflect.Type) []Field {
	out := make([]Field, 0, t.NumField())
	for i := range t.NumField() {
		sf := t.Field(i)
		h, decoded := sf.Tag.Lookup("hcl")
		p, planned := sf.Tag.Lookup("plan")
		if !decoded && !planned {
			continue
		}
		name, opts, _ := strings.Cut(h, ",")
		f := Field{
			Index: i, Name: name, Decoded: decoded, Compared: p != "-", Type: sf.Type,
			Label: opts == "label", Block: opts == "block", Optional: opts == "optional" || opts == "block",
			Secret: sf.Tag.Get("secret") == "true", Quoted: sf.Tag.Get("quoted") == "true", Ref: sf.Tag.Get("ref"), Cost: ClassNone, Doc: sf.Tag.Get("doc"),
		}
		if planned && p != "-" {
			f.Name = p
		}
		if c := sf.Tag.Get("cost"); c != "" {
			f.Cost = Class(c)
		}
		if f.Label {
			f.Compared = false
		}
		if f.Block {
			f.Elem = sf.Type.Elem()
		}
		if f.Name == "" || f.Cost.rank() < 0 || (f.Block && f.Elem.Kind() != reflect.Struct) {
			panic(fmt.Sprintf("%s.%s: tags are not possible here: %s", t, sf.Name, sf.Tag))
		}
		out = append(out, f)
	}
	return out
}

// LabelField finds the index of the field that holds a block's label; it panics
// when there is none, since lists are keyed by it.
func LabelField(t reflect.Type) int {
	for _, f := range Fields(t) {
		if f.Label {
			return f.Index
		}
	}
	panic(t.String() + " has no label, so a list of it has no keys")
}

// Clone makes a deep copy of a spec (a pointer to a struct of the types Kind allows).
func Clone(spec any) any {
	v := reflect.ValueOf(spec)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return spec
	}
	n := reflect.New(v.Type().Elem())
	n.Elem().Set(v.Elem())
	own(n.Elem())
	return n.Interface()
}

// own replaces what a value shares with the one that it was copied from by copies. The value must be settable.
func own(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n := reflect.New(v.Type().Elem())
			n.Elem().Set(v.Elem())
			own(n.Elem())
			v.Set(n)
		}
	case reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // Value.Fields allocates for each field
			if f := v.Field(i); f.CanSet() {
				own(f)
			}
		}
	case reflect.Slice:
		if !v.IsNil() {
			n := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(n, v)
			for i := range n.Len() {
				own(n.Index(i))
			}
			v.Set(n)
		}
	case reflect.Map:
		if !v.IsNil() {
			n := reflect.MakeMapWithSize(v.Type(), v.Len())
			for it := v.MapRange(); it.Next(); {
				e := reflect.New(v.Type().Elem()).Elem()
				e.Set(it.Value())
				own(e)
				n.SetMapIndex(it.Key(), e)
			}
			v.Set(n)
		}
	default: // it shares nothing
	}
}

// Sensitive is shown in place of a value that must not be shown.
const Sensitive = "(sensitive)"
