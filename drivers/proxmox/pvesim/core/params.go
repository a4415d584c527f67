package core

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// Words is a parameter that is a list.
func (c *Call) Words(name string) []string {
	switch value := c.Values[name].(type) {
	case []any:
		list := make([]string, len(value))
		for i := range value {
			list[i] = perl.Text(value[i])
		}
		return list
	case nil:
		return nil
	default:
		return strings.Split(perl.Text(value), "\x00")
	}
}

// Modified fails when a call names another digest than that in force.
func (c *Call) Modified(digest string) error {
	if c.Has("digest") && c.In["digest"] != digest {
		return perl.Fail("detected modified configuration - file changed by other user? Try again.")
	}
	return nil
}

// Section is update for a file of sections, which has no line for an option without a
// value (format_config_line in PVE/SectionConfig.pm): sent empty, it is gone.
func (c *Call) Section(conf property.Config, but ...string) {
	c.Update(conf, but...)
	maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
}

// Subdirs is the answer of an index: a list of one key each.
func Subdirs(key string, names ...string) []map[string]any {
	list := make([]map[string]any, len(names))
	for i, name := range names {
		list[i] = map[string]any{key: name}
	}
	return list
}

// APINone is a list without entries, for what a host never has here.
func APINone(*World, *Call) (any, error) { return []any{}, nil }

// Paged is data together with what a list answers beside it.
type Paged struct {
	Data  any
	Total int
}

// Beside is data with something else beside it (set_result_attrib).
type Beside struct {
	Data       any
	Attributes map[string]any
}

// Node is the node of the path.
func (c *Call) Node() *Node { return c.W.Nodes[c.In["node"]] }

// Update takes over what a call sets in a section and removes what it deletes.
func (c *Call) Update(conf property.Config, but ...string) {
	for key, value := range c.In {
		if key != "digest" && key != "delete" && !slices.Contains(but, key) {
			conf[key] = value
		}
	}
	for _, key := range c.List("delete") {
		delete(conf, key)
	}
}

// MayDrop fails when a call deletes an option that a section does not have, or must.
func (c *Call) MayDrop(optional, required string) error {
	for _, option := range c.List("delete") {
		if slices.Contains(strings.Fields(required), option) {
			return perl.Fail("unable to delete required option '%s'", option)
		} else if !slices.Contains(strings.Fields(optional), option) {
			return perl.Fail("no such option '%s'", option)
		}
	}
	return nil
}
