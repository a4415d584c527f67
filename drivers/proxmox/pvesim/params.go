package pvesim

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// words is a parameter that is a list.
func (c *call) words(name string) []string {
	switch value := c.values[name].(type) {
	case []any:
		list := make([]string, len(value))
		for i := range value {
			list[i] = text(value[i])
		}
		return list
	case nil:
		return nil
	default:
		return strings.Split(text(value), "\x00")
	}
}

// modified fails when a call names another digest than that in force.
func (c *call) modified(digest string) error {
	if c.has("digest") && c.in["digest"] != digest {
		return fail("detected modified configuration - file changed by other user? Try again.")
	}
	return nil
}

// section is update for a file of sections, which has no line for an option without a
// value (format_config_line in PVE/SectionConfig.pm): sent empty, it is gone.
func (c *call) section(conf config, but ...string) {
	c.update(conf, but...)
	maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
}

// digestOf is the digest of a file with sections.
func digestOf(sections map[string]config) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		b.WriteString(name + "\n")
		writeSection(&b, sections[name], false)
	}
	return sumOf(b.String())
}

// typedBy shows values in the types that the parameters of another method have.
func typedBy(name string, conf config) map[string]any {
	m := method(name)
	entry := map[string]any{}
	for key, value := range conf {
		entry[key] = value
		if v, ok := m.Param(key); ok && (v.Type == "integer" || v.Type == "boolean") {
			entry[key] = atoi(value)
		}
	}
	return entry
}

// parted is a property string, a parameter of a method, in its parts, of which only
// booleans are no text (parse_property_string in PVE/JSONSchema.pm).
func parted(name, option, value string) any {
	v, _ := method(name).Param(option)
	members, err := v.ParseProperty(value)
	if err != nil {
		return value
	}
	entry := map[string]any{}
	for name, text := range members {
		entry[name] = text
		if m := v.Members()[name]; m != nil && m.Type == "boolean" {
			entry[name] = atoi(text)
		}
	}
	return entry
}

// subdirs is the answer of an index: a list of one key each.
func subdirs(key string, names ...string) []map[string]any {
	list := make([]map[string]any, len(names))
	for i, name := range names {
		list[i] = map[string]any{key: name}
	}
	return list
}

// apiNone is a list without entries, for what a host never has here.
func apiNone(*world, *call) (any, error) { return []any{}, nil }

func method(name string) *pveapi.Method {
	verb, path, _ := strings.Cut(name, " ")
	m, _, _ := pveapi.Lookup(verb, path)
	return m
}

// paged is data together with what a list answers beside it.
type paged struct {
	data  any
	total int
}

// beside is data with something else beside it (set_result_attrib).
type beside struct {
	data       any
	attributes map[string]any
}

// configParams describes the keys of a configuration, by the kind of guest.
var configParams = map[string]func() *pveapi.Method{
	"qemu": sync.OnceValue(func() *pveapi.Method { return method("POST /nodes/n/qemu") }),
	"lxc":  sync.OnceValue(func() *pveapi.Method { return method("POST /nodes/n/lxc") }),
}

// node is the node of the path.
func (c *call) node() *node { return c.w.nodes[c.in["node"]] }

// section is one of a file as the API shows it.
func section(conf config, beside map[string]any) map[string]any {
	entry := maps.Clone(beside)
	for key, value := range conf {
		entry[key] = value
		if slices.Contains(sectionNumbers, key) {
			entry[key] = atoi(value)
		}
	}
	return entry
}

// sectionNumbers are the options of sections that are no text.
var sectionNumbers = []string{
	"max_restart", "max_relocate", "failback", "nofailback", "restricted", "strict", "disable", "enabled", "all",
	"repeat-missed", "quiet", "stop", "stdexcludes", "remove", "protected", "bwlimit", "ionice", "lockwait", "maxfiles", "pigz", "stopwait", "zstd",
}

// update takes over what a call sets in a section and removes what it deletes.
func (c *call) update(conf config, but ...string) {
	for key, value := range c.in {
		if key != "digest" && key != "delete" && !slices.Contains(but, key) {
			conf[key] = value
		}
	}
	for _, key := range c.list("delete") {
		delete(conf, key)
	}
}

// mayDrop fails when a call deletes an option that a section does not have, or must.
func (c *call) mayDrop(optional, required string) error {
	for _, option := range c.list("delete") {
		if slices.Contains(strings.Fields(required), option) {
			return fail("unable to delete required option '%s'", option)
		} else if !slices.Contains(strings.Fields(optional), option) {
			return fail("no such option '%s'", option)
		}
	}
	return nil
}
