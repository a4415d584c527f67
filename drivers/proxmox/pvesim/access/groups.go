package access

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiCreateGroup is POST /access/groups.
func apiCreateGroup(w *core.World, c *core.Call) (any, error) {
	name := c.In["groupid"]
	if err := w.NeedUserLock("create group failed"); err != nil {
		return nil, err
	}
	if w.Access.Groups[name] != nil {
		return nil, perl.Fail("create group failed: group '%s' already exists", name)
	}
	g := &core.Group{Users: map[string]bool{}}
	if c.Has("comment") {
		g.Comment = perl.Kept(c.In["comment"])
	}
	w.Access.Groups[name] = g
	w.Access.Changed()
	return nil, nil
}

// apiGetGroup is GET /access/groups/{groupid}.
func apiGetGroup(w *core.World, c *core.Call) (any, error) {
	g := w.Access.Groups[c.In["groupid"]]
	if g == nil {
		return nil, perl.Fail("group '%s' does not exist", c.In["groupid"])
	}
	members := slices.Sorted(maps.Keys(g.Users))
	if members == nil {
		members = []string{}
	}
	entry := map[string]any{"members": members}
	if g.Comment != nil {
		entry["comment"] = *g.Comment
	}
	return entry, nil
}

// apiUpdateGroup is PUT /access/groups/{groupid}.
func apiUpdateGroup(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedUserLock("update group failed"); err != nil {
		return nil, err
	}
	g := w.Access.Groups[c.In["groupid"]]
	if g == nil {
		return nil, perl.Fail("update group failed: group '%s' does not exist", c.In["groupid"])
	}
	if c.Has("comment") {
		g.Comment = perl.Kept(c.In["comment"])
	}
	return nil, nil
}

// apiDeleteGroup is DELETE /access/groups/{groupid}; its entries in the access list
// go with it.
func apiDeleteGroup(w *core.World, c *core.Call) (any, error) {
	name := c.In["groupid"]
	if err := w.NeedUserLock("delete group failed"); err != nil {
		return nil, err
	}
	if w.Access.Groups[name] == nil {
		return nil, perl.Fail("delete group failed: group '%s' does not exist", name)
	}
	for _, path := range w.Access.ACLPaths() {
		w.Access.Revoke(path, "", sideGroups, name)
	}
	delete(w.Access.Groups, name)
	w.Access.Changed()
	return nil, nil
}
