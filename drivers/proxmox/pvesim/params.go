package pvesim

import (
	"maps"
	"slices"
	"strings"
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

// node is the node of the path.
func (c *call) node() *node { return c.w.nodes[c.in["node"]] }

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
