package lang

import (
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/homestak/homestak-gitops/engine/model"
)

// DurationType is that of attributes which hold a duration.
var DurationType = reflect.TypeFor[time.Duration]()

// Assign writes a known, unmarked value that is not null into a field of one of the types that
// model.Kind allows. It returns a problem as the end of a sentence that begins with the attribute:
// "must be a number, not a list".
func (d *Decoder) Assign(dst reflect.Value, v cty.Value) string {
	t := dst.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		inner := reflect.New(t.Elem())
		if problem := d.Assign(inner.Elem(), v); problem != "" {
			return problem
		}
		dst.Set(inner)
		return ""
	case t == DurationType:
		return assignDuration(dst, v)
	}
	switch t.Kind() {
	case reflect.String:
		s, err := convert.Convert(v, cty.String)
		if err != nil {
			return WrongType("a string", v)
		}
		dst.SetString(d.Intern(s.AsString()))
	case reflect.Bool:
		b, err := convert.Convert(v, cty.Bool)
		if err != nil {
			return WrongType("true or false", v)
		}
		dst.SetBool(b.True())
	case reflect.Int, reflect.Int64, reflect.Int32:
		n, err := convert.Convert(v, cty.Number)
		if err != nil {
			return WrongType("a whole number", v)
		}
		f := n.AsBigFloat()
		if !f.IsInt() {
			return "must be a whole number"
		}
		i, accuracy := f.Int64()
		if accuracy != big.Exact || dst.OverflowInt(i) {
			return "is too large a number"
		}
		dst.SetInt(i)
	case reflect.Float64:
		n, err := convert.Convert(v, cty.Number)
		if err != nil {
			return WrongType("a number", v)
		}
		f, _ := n.AsBigFloat().Float64()
		dst.SetFloat(f)
	case reflect.Slice:
		return d.assignList(dst, v)
	case reflect.Map:
		return d.assignMap(dst, v)
	default:
		panic(fmt.Sprintf("field of unsupported type %s", t))
	}
	return ""
}

func assignDuration(dst reflect.Value, v cty.Value) string {
	const want = `must be a duration such as "90s", "10m" or "7d"`
	if v.Type() != cty.String {
		return want + ", not " + ValueType(v)
	}
	length, err := model.ParseDuration(v.AsString())
	switch {
	case err != nil:
		return want
	case length <= 0:
		return want + ", more than zero"
	}
	dst.SetInt(int64(length))
	return ""
}

func (d *Decoder) assignList(dst reflect.Value, v cty.Value) string {
	if t := v.Type(); !t.IsListType() && !t.IsSetType() && !t.IsTupleType() {
		return WrongType("a list of strings", v)
	}
	list := reflect.MakeSlice(dst.Type(), v.LengthInt(), v.LengthInt())
	i := 0
	for it := v.ElementIterator(); it.Next(); i++ {
		_, e := it.Element()
		if e.IsNull() {
			return fmt.Sprintf("must be a list of strings, but element %d is null", i+1)
		}
		if problem := d.Assign(list.Index(i), e); problem != "" {
			return fmt.Sprintf("must be a list of strings, but element %d %s", i+1, problem)
		}
	}
	dst.Set(list)
	return ""
}

// assignMap leaves out entries that are null, as attributes that are null are.
func (d *Decoder) assignMap(dst reflect.Value, v cty.Value) string {
	if t := v.Type(); !t.IsMapType() && !t.IsObjectType() {
		return WrongType("a map of strings, such as { key = \"value\" }", v)
	}
	m := reflect.MakeMap(dst.Type())
	for it := v.ElementIterator(); it.Next(); {
		k, e := it.Element()
		if e.IsNull() {
			continue
		}
		text := reflect.New(dst.Type().Elem()).Elem()
		if problem := d.Assign(text, e); problem != "" {
			return fmt.Sprintf("must be a map of strings, but %s %s", Quote(k.AsString()), problem)
		}
		m.SetMapIndex(reflect.ValueOf(d.Intern(k.AsString())), text)
	}
	dst.Set(m)
	return ""
}

// WrongType says what a value must be, as the end of a sentence that begins with the attribute.
func WrongType(want string, v cty.Value) string {
	got := ValueType(v)
	if strings.HasPrefix(want, got) || v.Type() == cty.String && strings.HasPrefix(want, "a whole number") {
		return "must be " + want
	}
	return "must be " + want + ", not " + got
}

// unitless converts a text with a unit to a number for an attribute in MiB or GiB; "" if it is not
// one, or not a whole number of them.
func unitless(doc string, v cty.Value) string {
	if v.IsNull() || v.Type() != cty.String {
		return ""
	}
	m := withUnit.FindStringSubmatch(v.AsString())
	if m == nil {
		return ""
	}
	steps := strings.Index("MGT", strings.ToUpper(m[2])) * 10
	switch {
	case strings.Contains(doc, "MiB"):
	case strings.Contains(doc, "GiB"):
		steps -= 10
	default:
		return ""
	}
	n, err := strconv.ParseInt(m[1], 10, 32)
	if err != nil {
		return ""
	}
	if steps < 0 {
		if n%1024 != 0 {
			return ""
		}
		return strconv.FormatInt(n/1024, 10)
	}
	return strconv.FormatInt(n<<steps, 10)
}

var withUnit = regexp.MustCompile(`(?i)^\s*(\d+)\s*([MGT])(?:i?B)?\s*$`)

// ValueType names the type of a value, with the words of the reference page.
func ValueType(v cty.Value) string {
	switch t := v.Type(); {
	case v.IsNull():
		return "null"
	case t == cty.String:
		return "a string"
	case t == cty.Number:
		return "a number"
	case t == cty.Bool:
		return "true or false"
	case t.IsListType() || t.IsTupleType() || t.IsSetType():
		return "a list"
	case t.IsMapType() || t.IsObjectType():
		return "a map"
	default:
		return "this"
	}
}
