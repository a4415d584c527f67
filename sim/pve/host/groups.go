package host

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// locked makes a handler of a change of user.cfg behind its lock: what goes wrong there is
// reported with what failed (lock_user_config in PVE/AccessControl.pm).
func locked(failed string, change func(*core.World, *core.Call) error) core.Handler {
	return func(w *core.World, c *core.Call) (any, error) {
		if err := w.NeedUserLock(failed); err != nil {
			return nil, err
		}
		if err := change(w, c); err != nil {
			return nil, perl.Fail("%s: %s", failed, perl.Stringified(err))
		}
		w.Access.Changed()
		return nil, nil
	}
}

// apiCreateGroup is POST /access/groups.
func apiCreateGroup(w *core.World, c *core.Call) error {
	name := c.In["groupid"]
	if w.Access.Groups[name] != nil {
		return perl.Fail("group '%s' already exists", name)
	}
	g := &core.Group{Users: map[string]bool{}}
	if c.Has("comment") {
		g.Comment = kept(c.In["comment"])
	}
	w.Access.Groups[name] = g
	return nil
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
func apiUpdateGroup(w *core.World, c *core.Call) error {
	g := w.Access.Groups[c.In["groupid"]]
	if g == nil {
		return perl.Fail("group '%s' does not exist", c.In["groupid"])
	}
	if c.Has("comment") {
		g.Comment = kept(c.In["comment"])
	}
	return nil
}

// apiDeleteGroup is DELETE /access/groups/{groupid}; its entries in the access list
// go with it.
func apiDeleteGroup(w *core.World, c *core.Call) error {
	name := c.In["groupid"]
	if w.Access.Groups[name] == nil {
		return perl.Fail("group '%s' does not exist", name)
	}
	for _, path := range w.Access.ACLPaths() {
		w.Access.Revoke(path, "", sideGroups, name)
	}
	delete(w.Access.Groups, name)
	return nil
}

// JoinPool puts a guest into a pool; it is in one at most.
func JoinPool(w *core.World, name string, vmid int) {
	for _, p := range w.Access.Pools {
		delete(p.Vms, vmid)
	}
	if p := w.Access.Pools[name]; p != nil {
		p.Vms[vmid] = true
	}
	w.Access.Changed()
}

// apiCreatePool is POST /pools.
func apiCreatePool(w *core.World, c *core.Call) error {
	name := c.In["poolid"]
	if w.Access.Pools[name] != nil {
		return perl.Fail("pool '%s' already exists", name)
	}
	leaf := name
	if parent, last, nested := perl.CutLast(name, "/"); nested {
		if leaf = last; w.Access.Pools[parent] == nil {
			return perl.Fail("parent '%s' of pool '%s' does not exist", parent, name)
		}
	}
	if first := leaf[0] | 0x20; w.V9() && (first < 'a' || first > 'z') { // Since pve-manager 9.0.0.
		return perl.Fail("pool name must start with a letter")
	}
	p := &core.Pool{Name: name, Vms: map[int]bool{}, Storages: map[string]bool{}}
	if c.Has("comment") {
		p.Comment = kept(c.In["comment"])
	}
	w.Access.Pools[name] = p
	return nil
}

// apiPools is GET /pools: all, or with poolid one with its members.
func apiPools(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	if name := c.In["poolid"]; name != "" {
		p := w.Access.Pools[name] // PVE checks Pool.Audit here, and ignores the result.
		if p == nil {
			return nil, perl.Fail("pool '%s' does not exist", name)
		}
		return append(list, showPool(w, c, p)), nil
	}
	for _, name := range slices.Sorted(maps.Keys(w.Access.Pools)) {
		if !c.Can("/pool/"+name, "Pool.Audit") {
			continue
		}
		entry := map[string]any{"poolid": name}
		if comment := w.Access.Pools[name].Comment; comment != nil {
			entry["comment"] = *comment
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiPool is GET /pools/{poolid}, the old way.
func apiPool(w *core.World, c *core.Call) (any, error) {
	p := w.Access.Pools[c.In["poolid"]]
	if p == nil {
		return nil, perl.Fail("pool '%s' does not exist", c.In["poolid"])
	}
	return showPool(w, c, p), nil
}

// showPool shows a pool with its members as the status daemon saw them last.
func showPool(w *core.World, c *core.Call, p *core.Pool) map[string]any {
	members := []any{}
	kind := c.In["type"]
	for _, vmid := range slices.Sorted(maps.Keys(p.Vms)) {
		g := w.Guests[vmid]
		if g == nil || kind != "" && kind != g.Kind {
			continue
		}
		members = append(members, guests.GuestEntryOf(w, g))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Storages)) {
		s := w.Stores[name]
		if s == nil || kind != "" && kind != "storage" {
			continue
		}
		node := w.Cfg.Node // One entry stands for all nodes: the own one, if it has the storage.
		if !s.Serves(node) {
			node = slices.MinFunc(w.NodeNames(), func(a, b string) int { return cmp.Compare(perl.BoolInt(!s.Serves(a)), perl.BoolInt(!s.Serves(b))) })
		}
		members = append(members, guests.StorageEntryOf(w, s, w.Nodes[node]))
	}
	entry := map[string]any{"poolid": p.Name, "members": members}
	if p.Comment != nil {
		entry["comment"] = *p.Comment
	}
	return entry
}

// apiUpdatePool is PUT /pools and PUT /pools/{poolid}: member after member, and nothing of
// it is done when one cannot be (update_pool in PVE/API2/Pool.pm).
func apiUpdatePool(w *core.World, c *core.Call) error {
	p := w.Access.Pools[c.In["poolid"]]
	if p == nil {
		return perl.Fail("pool '%s' does not exist", c.In["poolid"])
	}
	of, storages := w.Access.PoolOf(), maps.Clone(p.Storages)
	var moved []int
	for _, word := range c.List("vms") {
		vmid := perl.Atoi(word)
		if err := moveGuest(c, p.Name, vmid, of); err != nil {
			return err
		}
		moved = append(moved, vmid)
	}
	for _, name := range c.List("storage") {
		if err := moveStorage(c, name, storages); err != nil {
			return err
		}
	}
	for _, vmid := range moved {
		delete(p.Vms, vmid)
		if of[vmid] != "" {
			JoinPool(w, of[vmid], vmid)
		}
	}
	p.Storages = storages
	if c.Has("comment") {
		p.Comment = kept(c.In["comment"])
	}
	return nil
}

// moveGuest puts a guest into the pool of a call or takes it out, in what says which guest
// is where.
func moveGuest(c *core.Call, to string, vmid int, of map[int]string) error {
	if err := c.NeedModify(core.VMPath(vmid)); err != nil {
		return err
	}
	from := of[vmid]
	switch {
	case c.Flag("delete") && from != to:
		return perl.Fail("VM %d is not a pool member", vmid)
	case c.Flag("delete"):
		delete(of, vmid)
		return nil
	case from == to:
		return perl.Fail("VM %d is already a pool member", vmid)
	case from != "" && !c.Flag("allow-move"):
		return perl.Fail("VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, from)
	case from != "":
		if err := c.Need("/pool/"+from, "Pool.Allocate"); err != nil {
			return err
		}
	}
	of[vmid] = to
	return nil
}

// moveStorage puts a storage into the pool of a call or takes it out.
func moveStorage(c *core.Call, name string, members map[string]bool) error {
	if err := c.NeedModify("/storage/" + name); err != nil {
		return err
	}
	switch {
	case c.Flag("delete") && !members[name]:
		return perl.Fail("Storage '%s' is not a pool member", name)
	case c.Flag("delete"):
		delete(members, name)
	case members[name]:
		return perl.Fail("Storage '%s' is already a pool member", name)
	default:
		members[name] = true
	}
	return nil
}

// apiDeletePool is DELETE /pools and DELETE /pools/{poolid}: only an empty pool
// can go.
func apiDeletePool(w *core.World, c *core.Call) error {
	name := c.In["poolid"]
	p := w.Access.Pools[name]
	if p == nil {
		return perl.Fail("pool '%s' does not exist", name)
	}
	for _, other := range slices.Sorted(maps.Keys(w.Access.Pools)) {
		if strings.HasPrefix(other, name+"/") {
			return perl.Fail("pool '%s' is not empty (contains pool '%s')", name, other)
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(p.Vms)) {
		if w.Guests[vmid] == nil {
			continue // A member that is not there does not count (PVE/API2/Pool.pm).
		}
		return perl.Fail("pool '%s' is not empty (contains VM %d)", name, vmid)
	}
	for _, storage := range slices.Sorted(maps.Keys(p.Storages)) {
		if w.Stores[storage] == nil {
			continue
		}
		return perl.Fail("pool '%s' is not empty (contains storage '%s')", name, storage)
	}
	delete(w.Access.Pools, name)
	delete(w.Access.ACL, "/pool/"+name)
	return nil
}

// kept is a text that a file keeps: one that Perl takes for false is gone once the file is
// read again.
func kept(value string) *string {
	if !perl.IsTrue(value) {
		return nil
	}
	return &value
}
