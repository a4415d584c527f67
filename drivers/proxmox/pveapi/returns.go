package pveapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckReturn lists deviations of a response's data, as decoded from JSON, from the description of the method: a
// value of another type, a missing member that is not optional, a member that the description excludes. Values
// themselves (enumerations, patterns) are not checked; PVE does not check its own responses either.
//
// Perl's numbers are tolerated: any scalar may be a string that reads as such ("cpulimit":"0.5"), a string that
// reads as a number may be one, and a boolean is 0, 1, true or false. Additional members are allowed unless the
// description excludes them: see Extra.
func (m *Method) CheckReturn(data any) []string {
	return m.walk(data).deviations
}

// Extra lists members of an answer's data that the description does not have,
// with "[]" for any element of an array ("[].pressure"), sorted.
func (m *Method) Extra(data any) []string {
	extra := m.walk(data).extra
	slices.Sort(extra)
	return slices.Compact(extra)
}

func (m *Method) walk(data any) *comparison {
	c := &comparison{}
	if m.Returns != nil {
		c.compare(m.Returns, data, "")
	}
	return c
}

// comparison collects how an answer differs from its description.
type comparison struct {
	deviations, extra []string
}

func (c *comparison) deviate(path, format string, args ...any) {
	path = cmp.Or(path, "data")
	c.deviations = append(c.deviations, path+": "+fmt.Sprintf(format, args...))
}

func (c *comparison) compare(v *Value, data any, path string) {
	if data == nil {
		if v.Type != "null" && v.Type != "any" && v.Type != "" && !v.Optional {
			c.deviate(path, "null instead of %s", v.Type)
		}
		return
	}
	switch v.Type {
	case "null":
		c.deviate(path, "%s instead of null", jsonType(data))
	case "array":
		elements, ok := data.([]any)
		if !ok {
			c.deviate(path, "%s instead of array", jsonType(data))
			return
		}
		for i := range elements {
			if v.Items != nil {
				c.compare(v.Items, elements[i], fmt.Sprintf("%s[%d]", path, i))
			}
		}
	case "object":
		members, ok := data.(map[string]any)
		if !ok {
			c.deviate(path, "%s instead of object", jsonType(data))
			return
		}
		c.compareObject(v, members, path)
	case "string", "integer", "number", "boolean":
		if !isScalar(v.Type, data) {
			c.deviate(path, "%s instead of %s", jsonType(data), v.Type)
		}
	default:
	}
}

func (c *comparison) compareObject(v *Value, members map[string]any, path string) {
	if v.Props == nil && (v.Additional == nil || v.Additional.Value == nil) {
		return // PVE says no more than that it is an object.
	}
	for _, name := range slices.Sorted(maps.Keys(v.Props)) {
		if _, ok := members[name]; !ok && !v.Props[name].Optional && !strings.HasSuffix(name, "[n]") {
			c.deviate(join(path, name), "missing")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		member, ok := v.Props[name]
		if !ok {
			member, ok = indexed(v.Props, name)
		}
		switch {
		case ok:
			c.compare(member, members[name], join(path, name))
		case v.Additional != nil && v.Additional.Value != nil:
			c.compare(v.Additional.Value, members[name], join(path, name))
		case v.Additional != nil && !v.Additional.Allowed:
			c.deviate(join(path, name), "not in the description, which allows no more")
		default:
			c.extra = append(c.extra, anyElement(join(path, name)))
		}
	}
}

// anyElement replaces the indexes in a path: "[3].name" becomes "[].name".
func anyElement(path string) string {
	var out strings.Builder
	for path != "" {
		before, after, found := strings.Cut(path, "[")
		out.WriteString(before)
		if !found {
			break
		}
		out.WriteString("[]")
		_, path, _ = strings.Cut(after, "]")
	}
	return out.String()
}

// isScalar says whether a decoded value can stand for a type.
func isScalar(declared string, data any) bool {
	switch data.(type) {
	case []any, map[string]any:
		return false
	case bool:
		return declared == "boolean"
	}
	word := Text(data)
	switch declared {
	case "integer":
		return isInteger(word)
	case "number":
		return isNumber(word)
	case "boolean":
		return word == "0" || word == "1"
	default:
		return true
	}
}

// jsonType names the JSON type of a decoded value, for messages.
func jsonType(data any) string {
	switch data := data.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number, float64, int:
		return "number " + Text(data)
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		return fmt.Sprintf("%T", data)
	}
}
