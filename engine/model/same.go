package model

import (
	"maps"
	"reflect"
	"slices"
)

// Same reports whether two specs of one type have the same attributes: then Attrs lists
// the same for both. It makes no list to see that, since nearly all that is ever
// compared is the same.
func Same(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.Type() == y.Type() && sameFields(x.Elem(), y.Elem())
}

func sameFields(a, b reflect.Value) bool {
	for _, f := range Fields(a.Type()) {
		x, y := a.Field(f.Index), b.Field(f.Index)
		same := true
		switch {
		case !f.Compared:
		case f.Block && x.Kind() == reflect.Pointer:
			same = x.IsNil() == y.IsNil() && (x.IsNil() || sameFields(x.Elem(), y.Elem()))
		case f.Block:
			same = sameBlocks(x, y, LabelField(f.Elem))
		case x.Kind() == reflect.Map:
			m, _ := reflect.TypeAssert[map[string]string](x)
			n, _ := reflect.TypeAssert[map[string]string](y)
			same = maps.Equal(m, n)
		default:
			same = samePlain(x, y)
		}
		if !same {
			return false
		}
	}
	return true
}

// sameBlocks pairs blocks by their labels, which are few.
func sameBlocks(a, b reflect.Value, label int) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		j := labelled(b, a.Index(i).Field(label).String(), i, label)
		if j < 0 || !sameFields(a.Index(i), b.Index(j)) || labelled(a, b.Index(i).Field(label).String(), i, label) < 0 {
			return false
		}
	}
	return true
}

// labelled finds the block of a label, first where it is likely to be; -1 for none.
func labelled(list reflect.Value, name string, likely, label int) int {
	if list.Index(likely).Field(label).String() == name {
		return likely
	}
	for i := range list.Len() {
		if list.Index(i).Field(label).String() == name {
			return i
		}
	}
	return -1
}

// samePlain compares values of the types that plain knows.
func samePlain(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || samePlain(a.Elem(), b.Elem()))
	case reflect.Slice:
		x, _ := reflect.TypeAssert[[]string](a)
		y, _ := reflect.TypeAssert[[]string](b)
		return slices.Equal(x, y)
	default:
		return a.Equal(b)
	}
}
