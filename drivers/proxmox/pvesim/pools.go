package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// pool is a resource pool.
type pool struct {
	name     string
	comment  *string
	vms      map[int]bool
	storages map[string]bool
}

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

// poolOf says in which pool each guest is.
func (w *world) poolOf() map[int]string {
	of := map[int]string{}
	for name, p := range w.pools {
		for vmid := range p.vms {
			of[vmid] = name
		}
	}
	return of
}

// apiCreatePool is POST /pools.
func apiCreatePool(w *world, c *call) (any, error) {
	name := c.in["poolid"]
	if w.pools[name] != nil {
		return nil, fail("create pool failed: pool '%s' already exists", name)
	}
	if err := w.needUserLock("create pool failed"); err != nil {
		return nil, err
	}
	if parent, _, nested := cutLast(name, "/"); nested && w.pools[parent] == nil {
		return nil, fail("create pool failed: parent '%s' of pool '%s' does not exist", parent, name)
	}
	p := &pool{name: name, vms: map[int]bool{}, storages: map[string]bool{}}
	if c.has("comment") {
		p.comment = new(c.in["comment"])
	}
	w.pools[name] = p
	w.access.changed()
	return nil, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
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
	entry := w.showPool(c, p)
	delete(entry, "poolid")
	if !w.v9() {
		entry["poolid"] = p.name
	}
	return entry, nil
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
		for _, node := range w.nodeNames() {
			members = append(members, w.storageEntry(s, w.nodes[node]))
			if s.Shared {
				break
			}
		}
	}
	entry := map[string]any{"poolid": p.name, "members": members}
	if p.comment != nil {
		entry["comment"] = *p.comment
	}
	return entry
}

// apiUpdatePool is PUT /pools and PUT /pools/{poolid}.
func apiUpdatePool(w *world, c *call) (any, error) {
	p := w.pools[c.in["poolid"]]
	if p == nil {
		return nil, fail("update pools failed: pool '%s' does not exist", c.in["poolid"])
	}
	if err := w.needUserLock("update pools failed"); err != nil {
		return nil, err
	}
	remove, move := c.flag("delete"), c.flag("allow-move")
	of := w.poolOf()
	for _, word := range c.list("vms") {
		vmid := atoi(word)
		if err := c.mayMove(vmPath(vmid), p.name, of[vmid], "VM.Allocate"); err != nil {
			return nil, err
		}
		switch {
		case remove && of[vmid] != p.name:
			return nil, fail("update pools failed: VM %d is not a pool member", vmid)
		case !remove && of[vmid] == p.name:
			return nil, fail("update pools failed: VM %d is already a pool member", vmid)
		case !remove && of[vmid] != "" && !move:
			return nil, fail("update pools failed: VM %d belongs already to pool '%s'", vmid, of[vmid])
		}
	}
	for _, name := range c.list("storage") {
		if err := c.mayMove("/storage/"+name, p.name, "", "Datastore.Allocate"); err != nil {
			return nil, err
		}
		switch {
		case remove && !p.storages[name]:
			return nil, fail("update pools failed: Storage '%s' is not a pool member", name)
		case !remove && p.storages[name]:
			return nil, fail("update pools failed: Storage '%s' is already a pool member", name)
		}
	}
	for _, word := range c.list("vms") {
		if remove {
			delete(p.vms, atoi(word))
		} else {
			w.joinPool(p.name, atoi(word))
		}
	}
	for _, name := range c.list("storage") {
		if remove {
			delete(p.storages, name)
		} else {
			p.storages[name] = true
		}
	}
	if c.has("comment") {
		p.comment = new(c.in["comment"])
	}
	w.access.changed()
	return nil, nil
}

// mayMove: a member is allocated anew, as far as rights go, in its own place and
// in the pool it leaves.
func (c *call) mayMove(path, to, from, priv string) error {
	if err := c.need(path, priv); err != nil && c.need("/pool/"+to, priv) != nil {
		return err
	}
	if from != "" && from != to {
		return c.need("/pool/"+from, "Pool.Allocate")
	}
	return nil
}

// apiDeletePool is DELETE /pools and DELETE /pools/{poolid}: only an empty pool
// can go.
func apiDeletePool(w *world, c *call) (any, error) {
	name := c.in["poolid"]
	p := w.pools[name]
	if p == nil {
		return nil, fail("delete pool failed: pool '%s' does not exist", name)
	}
	if err := w.needUserLock("delete pool failed"); err != nil {
		return nil, err
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
