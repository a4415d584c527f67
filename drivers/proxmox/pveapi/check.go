package pveapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Check verifies the parameters of a request, those of its path included, as
// PVE does before it runs a method, and returns PVE's text for each parameter
// that fails; nil when all is well. A newer PVE's table is used, see CheckFor.
//
// A value is what a request carries: string (all a form or a query can say),
// []any or []string for a repeated name, and for a JSON body also bool,
// json.Number, float64, integers, map[string]any and nil.
func (m *Method) Check(values map[string]any) map[string]string {
	return m.CheckFor("", values)
}

// CheckFor verifies parameters as a host of the given version does ("8.4",
// "9.1.4", as GET /version says it): a parameter that is newer is unknown there,
// one that PVE 9 dropped is known to 8.4. The table knows 8.4, 9.0, 9.1.1 and
// the state of April 2026, which the empty version means.
func (m *Method) CheckFor(version string, values map[string]any) map[string]string {
	c := &verifier{version: version, found: problems{}}
	c.checkParams(m, m.normalized(values))
	if len(c.found) == 0 {
		return nil
	}
	return c.found
}

// CheckParam is Check for one parameter alone: it reports PVE's text about this value, and "" if all is well.
func (m *Method) CheckParam(name string, value any) string {
	c := &verifier{found: problems{}}
	c.checkParam(m, name, m.normalizedParam(name, value))
	return c.found[name]
}

// verifier collects the errors of the values of one request.
type verifier struct {
	version string // Of the host; empty means the newest.
	found   problems
}

func (c *verifier) known(v *Value) bool { return within(c.version, v.Since, v.Until) }

func (c *verifier) checkParams(m *Method, values map[string]any) {
	for _, name := range m.neededParams() {
		if v := m.Params[name]; values[name] == nil && c.known(v) {
			c.check(v, nil, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := c.checkParam(m, name, values[name])
		if v != nil && v.Requires != "" && values[v.Requires] == nil {
			c.found.add(v.Requires, c.requires(name))
		}
	}
}

// checkParam checks one parameter, and returns what it is; nil if it is unknown.
func (c *verifier) checkParam(m *Method, name string, value any) *Value {
	v, ok := m.Param(name)
	if !ok || !c.known(v) {
		if !m.AdditionalParams {
			c.found.add(name, unknown)
		}
		return nil
	}
	if value != nil || m.Params[name] == nil { // Else it was checked as one that may not miss.
		c.check(v, value, name)
	}
	return v
}

// neededParams are the names of the parameters that may not miss. They are few of many, and
// of a method of the table they were collected when it was read.
func (m *Method) neededParams() []string {
	if m.needed != nil {
		return m.needed
	}
	needed := []string{}
	for name, v := range m.Params {
		if !v.mayMiss() && !strings.HasSuffix(name, "[n]") {
			needed = append(needed, name)
		}
	}
	return needed
}

// PVE's texts for members of objects, parameters and property strings alike.
const (
	unknown = "property is not defined in schema and the schema does not allow additional properties"
	missing = "property is missing and it is not optional"
)

// requires returns the message about a property that is missing although another one, which is
// given, needs it (check_object in PVE/JSONSchema.pm, since libpve-common-perl 9.0.8 in
// other words).
func (c *verifier) requires(name string) string {
	if before9(c.version) {
		return "missing property - '" + name + "' requires this property"
	}
	return "missing property required by '" + name + "'"
}

// normalized applies what PVE does before the check because forms know neither
// lists nor a list of one: an array for a string that is a list is joined, a
// single value for an array becomes one ($normalize_legacy_param_formats in
// PVE/RESTHandler.pm). Values that count as false in Perl stay as they are.
func (m *Method) normalized(values map[string]any) map[string]any {
	result := make(map[string]any, len(values))
	for name, value := range values {
		result[name] = m.normalizedParam(name, value)
	}
	return result
}

func (m *Method) normalizedParam(name string, value any) any {
	if list, ok := value.([]string); ok {
		elements := make([]any, len(list))
		for i := range list {
			elements[i] = list[i]
		}
		value = elements
	}
	if v, ok := m.Params[name]; ok {
		switch list, isList := value.([]any); {
		case isList && v.Type == "string" && strings.HasSuffix(v.Format, "-list"):
			words := make([]string, len(list))
			for i := range list {
				words[i] = Text(list[i])
			}
			return strings.Join(words, ",")
		case !isList && v.Type == "array" && !isObject(value) && truthy(value):
			return []any{value}
		}
	}
	return value
}

// problems maps the path of a value ("net0", "net0.tag") to its error.
type problems map[string]string

// add records a problem. A second one on the same path is appended behind a
// backslash and an n, not a line break: that is what PVE's join does.
func (p problems) add(path, text string) {
	path = cmp.Or(path, "_root")
	if before, ok := p[path]; ok {
		text = before + `\n` + text
	}
	p[path] = text
}

// check verifies one value (nil when absent); the order of the tests and that
// all but the last end the check are check_prop's in PVE/JSONSchema.pm.
func (c *verifier) check(v *Value, value any, path string) {
	if value == nil {
		if !v.mayMiss() {
			c.found.add(path, missing)
		}
		return
	}
	if wrong := v.checkType(value); wrong != "" {
		c.found.add(path, wrong)
		return
	}
	switch value := value.(type) {
	case []any:
		if v.Items != nil {
			for i, element := range value {
				c.check(v.Items, element, fmt.Sprintf("%s[%d]", path, i))
			}
		}
	case map[string]any:
		c.checkObject(v, value, path)
	case bool:
	default:
		if wrong := c.checkText(v, Text(value), path); wrong != "" {
			c.found.add(path, wrong)
		}
	}
}

// mayMiss says whether nothing is wrong with a value that is not there. Most values of the
// table may miss in most requests, so it is asked before a path is put together.
func (v *Value) mayMiss() bool { return v.Optional || v.Alias != "" || v.Type == "null" }

func (c *verifier) checkObject(v *Value, members map[string]any, path string) {
	if v.Props == nil && (v.Additional == nil || v.Additional.Value == nil) {
		return
	}
	for name, member := range v.Props {
		if value := members[name]; (value != nil || !member.mayMiss()) && !strings.HasSuffix(name, "[n]") {
			c.check(member, value, join(path, name))
		}
	}
	for name, value := range members {
		switch {
		case v.Props[name] != nil:
		case v.Additional != nil && v.Additional.Value != nil:
			c.check(v.Additional.Value, value, join(path, name))
		case v.Additional != nil && !v.Additional.Allowed:
			c.found.add(join(path, name), unknown)
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// isType says whether a value is of the declared type, as far as Perl tells types apart.
func (v *Value) isType(value any) bool {
	switch value := value.(type) {
	case []any:
		return v.Type == "array" || v.Type == "any" || v.Type == ""
	case map[string]any:
		return v.Type == "object" || v.Type == "any" || v.Type == ""
	case bool:
		return v.Type == "boolean" || v.Type == "any" || v.Type == ""
	default:
		switch v.Type {
		case "boolean":
			word := Text(value)
			return word == "0" || word == "1"
		case "integer":
			return isInteger(Text(value))
		case "number":
			return isNumber(Text(value))
		case "array", "object", "null":
			return false
		default:
			return true
		}
	}
}

// checkType says in PVE's words how a value is not of the declared type.
func (v *Value) checkType(value any) string {
	if v.isType(value) {
		return ""
	}
	plain := fmt.Sprintf("type check ('%s') failed", v.Type)
	structured := v.Type == "array" || v.Type == "object" || v.Type == "null" // For these PVE says no more.
	got := ""
	switch value := value.(type) {
	case []any:
		got = "ARRAY"
	case map[string]any:
		got = "HASH"
	case bool:
		got = "JSON::PP::Boolean" // Perl's name of the type.
	default:
		if v.Type == "null" {
			return plain + " - value is not null"
		}
		got = "'" + Text(value) + "'"
	}
	if structured {
		return plain
	}
	return plain + " - got " + got
}

// checkText verifies a scalar beyond its type.
func (c *verifier) checkText(v *Value, word, path string) string {
	if err := c.checkFormat(v, word, path); err != nil {
		return "invalid format - " + err.Error()
	}
	length := utf8.RuneCountInString(word)
	switch {
	case v.Pattern != "" && !v.matches(word):
		return "value does not match the regex pattern"
	case v.MaxLength != nil && length > *v.MaxLength:
		return fmt.Sprintf("value may only be %d characters long", *v.MaxLength)
	case v.MinLength != nil && length < *v.MinLength:
		return fmt.Sprintf("value must be at least %d characters long", *v.MinLength)
	}
	if isNumber(word) {
		n, _ := strconv.ParseFloat(strings.TrimSuffix(word, "\n"), 64) // Too large is infinite, as wanted.
		if limit, err := v.Max.Float64(); err == nil && n > limit {
			return "value must have a maximum value of " + v.Max.String()
		}
		if limit, err := v.Min.Float64(); err == nil && n < limit {
			return "value must have a minimum value of " + v.Min.String()
		}
	}
	if v.Enum != nil && !slices.Contains(v.Enum, word) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", word, strings.Join(v.Enum, ", "))
	}
	return ""
}

// matches applies the pattern of v, which is compiled once for a value of the
// table.
func (v *Value) matches(word string) bool {
	if v.expression != nil {
		return v.expression(word)
	}
	return expression(v.Pattern)(word)
}

// Text is a scalar as Perl would write it.
func Text(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	case bool:
		if value {
			return "1"
		}
		return "0"
	case json.Number:
		return value.String()
	case float64:
		return strconv.FormatFloat(value, 'g', 15, 64)
	default:
		return fmt.Sprint(value)
	}
}

// truthy says whether Perl takes a scalar for true.
func truthy(value any) bool {
	word := Text(value)
	return word != "" && word != "0"
}

func isObject(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}
