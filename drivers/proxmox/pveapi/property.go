package pveapi

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// ParseProperty takes a property string apart ("virtio=BC:24:11:00:00:01,tag=5"):
// into its members by name, with the name supplied where the default member
// stands without one, aliases replaced, and booleans ("on", "yes") as 0 or 1.
// Defaults are not filled in. The error is PVE's text without what PVE puts
// before it ("invalid format - "), so it often ends with a line break.
//
// v must describe a property string: by Sub or by a format that is one.
func (v *Value) ParseProperty(s string) (map[string]string, error) {
	members, validate := v.members()
	if members == nil {
		return nil, errors.New("not described as a property string")
	}
	parsed, err := (&verifier{}).parseProperty(members, s, "")
	if err == nil && validate != nil {
		err = validate("", parsed)
	}
	if err != nil {
		return nil, err
	}
	return parsed, nil
}

// Members describes the members of a property string by name; nil if v is none.
func (v *Value) Members() map[string]*Value {
	m, _ := v.members()
	return m
}

// members are those of a property string, and what is verified once each of
// them is fine; nil if v is none.
func (v *Value) members() (map[string]*Value, func(version string, members map[string]string) error) {
	if v.Sub != nil {
		return v.Sub, nil
	}
	named, ok := propertyFormats()[v.Format]
	if !ok {
		return nil, nil
	}
	return named.members, named.validate
}

// parseProperty follows parse_property_string in PVE/JSONSchema.pm; path goes
// in front of the members' names in its texts.
func (c *verifier) parseProperty(members map[string]*Value, s, path string) (map[string]string, error) {
	parsed := map[string]string{}
	unnamed := "" // The member that stood without its name.
	for part := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, named := strings.Cut(part, "=")
		switch {
		case !named:
			if unnamed != "" {
				return nil, duplicate(unnamed)
			}
			if unnamed = defaultKey(members); unnamed == "" {
				return nil, died("value without key, but schema does not define a default key")
			}
			if truthy(parsed[unnamed]) {
				return nil, duplicate(unnamed)
			}
			if members[unnamed].Type == "boolean" && !before9(c.version) {
				part = BooleanWord(part) // Since libpve-common-perl 9.0.12.
			}
			parsed[unnamed] = part
		case key == "" || !isOneLine(value):
			return nil, died("missing key in comma-separated list property")
		default:
			if err := c.put(members, parsed, key, strings.TrimSuffix(value, "\n")); err != nil {
				return nil, err
			}
		}
	}
	if found := c.checkMembers(members, parsed, path); len(found) > 0 {
		lines := []string{"format error"}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			lines = append(lines, name+": "+found[name])
		}
		return nil, died(strings.Join(lines, "\n"))
	}
	return parsed, nil
}

var isOneLine = expression(`.+`)

// put stores one named member.
func (c *verifier) put(members map[string]*Value, parsed map[string]string, key, value string) error {
	if _, ok := parsed[key]; ok {
		return duplicate(key)
	}
	member := members[key]
	if member != nil && member.Alias != "" {
		if member.KeyAlias != "" {
			if _, ok := parsed[member.KeyAlias]; ok {
				return refuse("key alias '%s' is already defined", member.KeyAlias)
			}
			parsed[member.KeyAlias] = key
		}
		key = member.Alias
		member = members[key]
		if _, ok := parsed[key]; ok && atLeast92(c.version) {
			return refuse("key '%s' is already defined (via alias)", key)
		}
	}
	if member != nil && member.Type == "boolean" {
		value = BooleanWord(value)
	}
	parsed[key] = value
	return nil
}

func duplicate(key string) error {
	return refuse("duplicate key in comma-separated list property: %s", key)
}

func defaultKey(members map[string]*Value) string {
	for name, member := range members {
		if member.DefaultKey {
			return name
		}
	}
	return ""
}

// BooleanWord turns the words that a property string may use into 0 and 1, and
// leaves others to be refused. Parameters themselves know only 0 and 1.
func BooleanWord(value string) string {
	switch strings.ToLower(value) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	default:
		return value
	}
}

// checkMembers verifies the members, once each by its own rules.
func (c *verifier) checkMembers(members map[string]*Value, parsed map[string]string, path string) problems {
	inner := &verifier{version: c.version, found: problems{}}
	for name, member := range members {
		word, ok := parsed[name]
		switch {
		case ok:
			inner.check(member, word, join(path, name))
		case !member.mayMiss():
			inner.found.add(join(path, name), missing)
		}
	}
	for name := range parsed {
		member := members[name]
		if member == nil {
			inner.found.add(join(path, name), unknown)
			continue
		}
		if _, ok := parsed[member.Requires]; member.Requires != "" && !ok {
			inner.found.add(join(path, member.Requires), c.requires(join(path, name)))
		}
	}
	return inner.found
}
