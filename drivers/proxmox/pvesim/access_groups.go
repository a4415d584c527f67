package pvesim

import (
	"maps"
	"slices"
)

// apiCreateGroup is POST /access/groups.
func apiCreateGroup(w *world, c *call) (any, error) {
	name := c.in["groupid"]
	if err := w.needUserLock("create group failed"); err != nil {
		return nil, err
	}
	if w.access.groups[name] != nil {
		return nil, fail("create group failed: group '%s' already exists", name)
	}
	g := &group{users: map[string]bool{}}
	if c.has("comment") {
		g.comment = kept(c.in["comment"])
	}
	w.access.groups[name] = g
	w.access.changed()
	return nil, nil
}

// apiGetGroup is GET /access/groups/{groupid}.
func apiGetGroup(w *world, c *call) (any, error) {
	g := w.access.groups[c.in["groupid"]]
	if g == nil {
		return nil, fail("group '%s' does not exist", c.in["groupid"])
	}
	members := slices.Sorted(maps.Keys(g.users))
	if members == nil {
		members = []string{}
	}
	entry := map[string]any{"members": members}
	if g.comment != nil {
		entry["comment"] = *g.comment
	}
	return entry, nil
}

// apiUpdateGroup is PUT /access/groups/{groupid}.
func apiUpdateGroup(w *world, c *call) (any, error) {
	if err := w.needUserLock("update group failed"); err != nil {
		return nil, err
	}
	g := w.access.groups[c.in["groupid"]]
	if g == nil {
		return nil, fail("update group failed: group '%s' does not exist", c.in["groupid"])
	}
	if c.has("comment") {
		g.comment = kept(c.in["comment"])
	}
	return nil, nil
}

// apiDeleteGroup is DELETE /access/groups/{groupid}; its entries in the access list
// go with it.
func apiDeleteGroup(w *world, c *call) (any, error) {
	name := c.in["groupid"]
	if err := w.needUserLock("delete group failed"); err != nil {
		return nil, err
	}
	if w.access.groups[name] == nil {
		return nil, fail("delete group failed: group '%s' does not exist", name)
	}
	for _, path := range w.access.aclPaths() {
		w.access.revoke(path, "", sideGroups, name)
	}
	delete(w.access.groups, name)
	w.access.changed()
	return nil, nil
}
