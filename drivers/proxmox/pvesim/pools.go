package pvesim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// joinPool puts a guest into a pool; it is in one at most.
func (w *world) joinPool(name string, vmid int) {
	for _, p := range w.pools {
		delete(p.vms, vmid)
	}
	if p := w.pools[name]; p != nil {
		p.vms[vmid] = true
	}
	w.access.changed()
}

// apiCreatePool is POST /pools.
func apiCreatePool(w *world, c *call) (any, error) {
	name := c.in["poolid"]
	if err := w.needUserLock("create pool failed"); err != nil {
		return nil, err
	}
	if w.pools[name] != nil {
		return nil, fail("create pool failed: pool '%s' already exists", name)
	}
	leaf := name
	if parent, last, nested := cutLast(name, "/"); nested {
		if leaf = last; w.pools[parent] == nil {
			return nil, fail("create pool failed: parent '%s' of pool '%s' does not exist", parent, name)
		}
	}
	if first := leaf[0] | 0x20; w.v9() && (first < 'a' || first > 'z') { // Since pve-manager 9.0.0.
		return nil, fail("create pool failed: pool name must start with a letter")
	}
	p := &pool{name: name, vms: map[int]bool{}, storages: map[string]bool{}}
	if c.has("comment") {
		p.comment = kept(c.in["comment"])
	}
	w.pools[name] = p
	w.access.changed()
	return nil, nil
}

// apiPools is GET /pools: all, or with poolid one with its members.
func apiPools(w *world, c *call) (any, error) {
	list := []map[string]any{}
	if name := c.in["poolid"]; name != "" {
		p := w.pools[name] // PVE asks for Pool.Audit here, and does not look at the answer.
		if p == nil {
			return nil, fail("pool '%s' does not exist", name)
		}
		return append(list, w.showPool(c, p)), nil
	}
	for _, name := range slices.Sorted(maps.Keys(w.pools)) {
		if !c.can("/pool/"+name, "Pool.Audit") {
			continue
		}
		entry := map[string]any{"poolid": name}
		if comment := w.pools[name].comment; comment != nil {
			entry["comment"] = *comment
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiPool is GET /pools/{poolid}, the old way.
func apiPool(w *world, c *call) (any, error) {
	p := w.pools[c.in["poolid"]]
	if p == nil {
		return nil, fail("pool '%s' does not exist", c.in["poolid"])
	}
	return w.showPool(c, p), nil
}

// showPool shows a pool with its members as the status daemon saw them last.
func (w *world) showPool(c *call, p *pool) map[string]any {
	members := []any{}
	kind := c.in["type"]
	for _, vmid := range slices.Sorted(maps.Keys(p.vms)) {
		g := w.guests[vmid]
		if g == nil || kind != "" && kind != g.kind {
			continue
		}
		members = append(members, w.guestEntry(g))
	}
	for _, name := range slices.Sorted(maps.Keys(p.storages)) {
		s := w.stores[name]
		if s == nil || kind != "" && kind != "storage" {
			continue
		}
		node := w.cfg.Node // One entry stands for all nodes: the own one, if it has the storage.
		if !s.serves(node) {
			node = slices.MinFunc(w.nodeNames(), func(a, b string) int { return cmp.Compare(boolInt(!s.serves(a)), boolInt(!s.serves(b))) })
		}
		members = append(members, w.storageEntry(s, w.nodes[node]))
	}
	entry := map[string]any{"poolid": p.name, "members": members}
	if p.comment != nil {
		entry["comment"] = *p.comment
	}
	return entry
}

// apiUpdatePool is PUT /pools and PUT /pools/{poolid}: member after member, and nothing of
// it is done when one cannot be (update_pool in PVE/API2/Pool.pm).
func apiUpdatePool(w *world, c *call) (any, error) {
	if err := w.needUserLock("update pools failed"); err != nil {
		return nil, err
	}
	p := w.pools[c.in["poolid"]]
	if p == nil {
		return nil, fail("update pools failed: pool '%s' does not exist", c.in["poolid"])
	}
	of, storages := w.poolOf(), maps.Clone(p.storages)
	var moved []int
	for _, word := range c.list("vms") {
		vmid := atoi(word)
		if err := c.moveGuest(p.name, vmid, of); err != nil {
			return nil, fail("update pools failed: %s", stringified(err))
		}
		moved = append(moved, vmid)
	}
	for _, name := range c.list("storage") {
		if err := c.moveStorage(name, storages); err != nil {
			return nil, fail("update pools failed: %s", stringified(err))
		}
	}
	for _, vmid := range moved {
		delete(p.vms, vmid)
		if of[vmid] != "" {
			w.joinPool(of[vmid], vmid)
		}
	}
	p.storages = storages
	if c.has("comment") {
		p.comment = kept(c.in["comment"])
	}
	w.access.changed()
	return nil, nil
}

// moveGuest puts a guest into the pool of a call or takes it out, in what says which guest
// is where.
func (c *call) moveGuest(to string, vmid int, of map[int]string) error {
	if err := c.needModify(vmPath(vmid)); err != nil {
		return err
	}
	from := of[vmid]
	switch {
	case c.flag("delete") && from != to:
		return fail("VM %d is not a pool member", vmid)
	case c.flag("delete"):
		delete(of, vmid)
		return nil
	case from == to:
		return fail("VM %d is already a pool member", vmid)
	case from != "" && !c.flag("allow-move"):
		return fail("VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, from)
	case from != "":
		if err := c.need("/pool/"+from, "Pool.Allocate"); err != nil {
			return err
		}
	}
	of[vmid] = to
	return nil
}

// moveStorage puts a storage into the pool of a call or takes it out.
func (c *call) moveStorage(name string, members map[string]bool) error {
	if err := c.needModify("/storage/" + name); err != nil {
		return err
	}
	switch {
	case c.flag("delete") && !members[name]:
		return fail("Storage '%s' is not a pool member", name)
	case c.flag("delete"):
		delete(members, name)
	case members[name]:
		return fail("Storage '%s' is already a pool member", name)
	default:
		members[name] = true
	}
	return nil
}

// apiDeletePool is DELETE /pools and DELETE /pools/{poolid}: only an empty pool
// can go.
func apiDeletePool(w *world, c *call) (any, error) {
	if err := w.needUserLock("delete pool failed"); err != nil {
		return nil, err
	}
	name := c.in["poolid"]
	p := w.pools[name]
	if p == nil {
		return nil, fail("delete pool failed: pool '%s' does not exist", name)
	}
	for _, other := range slices.Sorted(maps.Keys(w.pools)) {
		if strings.HasPrefix(other, name+"/") {
			return nil, fail("delete pool failed: pool '%s' is not empty (contains pool '%s')", name, other)
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(p.vms)) {
		if w.guests[vmid] == nil {
			continue // A member that is not there does not count (PVE/API2/Pool.pm).
		}
		return nil, fail("delete pool failed: pool '%s' is not empty (contains VM %d)", name, vmid)
	}
	for _, storage := range slices.Sorted(maps.Keys(p.storages)) {
		if w.stores[storage] == nil {
			continue
		}
		return nil, fail("delete pool failed: pool '%s' is not empty (contains storage '%s')", name, storage)
	}
	delete(w.pools, name)
	delete(w.access.acl, "/pool/"+name)
	w.access.changed()
	return nil, nil
}
