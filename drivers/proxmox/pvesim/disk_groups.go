package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// What disks of a node can become (PVE/API2/Disks/ZFS.pm, LVM.pm, LVMThin.pm and
// Directory.pm of pve-storage).

// diskGroup is what was made of disks.
type diskGroup struct {
	kind, name, level string
	uuid              string // Of the file system.
	disks             []string
	size              int64
}

// leastDisks are how many a level of ZFS takes.
var leastDisks = map[string]int{"single": 1, "mirror": 2, "raid10": 4, "raidz": 3, "raidz2": 4, "raidz3": 5, "draid": 3, "draid2": 4, "draid3": 5}

// groupKinds are what disks can become: the part of the path, the type of storage, what
// holds the disks then, and the type of the task.
var groupKinds = map[string]struct{ storage, holds, task, remove string }{
	"zfs": {"zfspool", "ZFS", "zfscreate", "zfsremove"}, "lvm": {"lvm", "LVM", "lvmcreate", "lvmremove"},
	"lvmthin": {"lvmthin", "LVM", "lvmthincreate", "lvmthinremove"}, "directory": {"dir", "mounted", "dircreate", "dirremove"},
}

func (c *call) groupKind() string { return segments(c.m.Path)[3] }

// groups are those of one kind on the node of a call, by name.
func (c *call) groups() []diskGroup {
	var list []diskGroup
	all := devicesOf(c.node()).groups
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].kind == c.groupKind() {
			list = append(list, all[name])
		}
	}
	return list
}

// volumeGroups are those of LVM, of thin pools, too.
func (c *call) volumeGroups() []diskGroup {
	var list []diskGroup
	all := devicesOf(c.node()).groups
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, "lvm/") {
			list = append(list, all[key])
		}
	}
	return list
}

// apiDiskGroups is GET /nodes/{node}/disks/zfs and the like.
func apiDiskGroups(w *world, c *call) (any, error) {
	list := []map[string]any{}
	groups := c.groups()
	switch c.groupKind() {
	case "zfs":
		for _, g := range groups {
			list = append(list, map[string]any{"name": g.name, "health": "ONLINE", "size": g.size, "alloc": 0, "free": g.size, "frag": 0, "dedup": 1.0})
		}
	case "lvmthin":
		if w.hasLVM() {
			list = append(list, map[string]any{"lv": "data", "vg": "pve", "lv_size": 300 << 30, "used": 0, "metadata_size": 1 << 30, "metadata_used": 0})
		}
		for _, g := range groups {
			list = append(list, map[string]any{"lv": g.name, "vg": g.name, "lv_size": g.size, "used": 0, "metadata_size": 1 << 30, "metadata_used": 0})
		}
	case "directory":
		for _, g := range groups {
			list = append(list, map[string]any{
				"path": "/mnt/pve/" + g.name, "device": "/dev/disk/by-uuid/" + g.uuid, "type": g.level, "options": "defaults",
				"unitfile": "/etc/systemd/system/mnt-pve-" + g.name + ".mount",
			})
		}
	default:
		volume := func(name, on string, size, free int64, volumes int) map[string]any {
			return map[string]any{
				"name": name, "size": size, "free": free, "lvcount": volumes, "leaf": 0,
				"children": []map[string]any{{"name": on, "size": size, "free": free, "leaf": 1}},
			}
		}
		if w.hasLVM() {
			list = append(list, volume("pve", "/dev/sda3", 499<<30, 0, 3))
		}
		for _, g := range c.volumeGroups() {
			if g.kind == "lvmthin" {
				list = append(list, volume(g.name, g.disks[0], g.size, 0, 1))
			} else {
				list = append(list, volume(g.name, g.disks[0], g.size, g.size, 0))
			}
		}
		return map[string]any{"leaf": 0, "children": list}, nil
	}
	return list, nil
}

// apiZpool is GET /nodes/{node}/disks/zfs/{name}.
func apiZpool(_ *world, c *call) (any, error) {
	for _, g := range c.groups() {
		if g.name != c.in["name"] {
			continue
		}
		leaves := []map[string]any{}
		for _, path := range g.disks {
			leaves = append(leaves, map[string]any{"name": path, "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 1})
		}
		top := leaves
		if g.level != "single" {
			top = []map[string]any{{"name": g.level + "-0", "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 0, "children": leaves}}
		}
		whole := map[string]any{"name": g.name, "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 0, "children": top}
		return map[string]any{"name": g.name, "state": "ONLINE", "errors": "No known data errors", "leaf": 0, "children": []map[string]any{whole}}, nil
	}
	return nil, fail("command '/sbin/zpool status -P %s' failed: exit code 1", c.in["name"])
}

// wantedDisks are the disks of a call that makes something of them.
func (c *call) wantedDisks() ([]*disk, error) {
	names := c.list("devices")
	if c.has("device") {
		names = []string{c.in["device"]}
	}
	var list []*disk
	for _, name := range names {
		d, err := c.freeDisk(name)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// enoughDisks says whether a level of ZFS takes so many.
func enoughDisks(level string, n int) error {
	switch {
	case level == "raid10" && n%2 != 0:
		return fail("raid10 needs an even number of disks")
	case level == "single" && n > 1:
		return fail("please give only one disk for single disk mode")
	case n < leastDisks[level]:
		return fail("%s needs at least %d disks", level, leastDisks[level])
	}
	return nil
}

// mayAdd says whether what is made can become a storage of its name (create_or_update in
// PVE/API2/Storage/Config.pm).
func (w *world) mayAdd(c *call, name, kind string) error {
	old := w.stores[name]
	switch node := c.in["node"]; {
	case !c.flag("add_storage") || old == nil:
		return nil
	case old.extra["nodes"] == "" || slices.Contains(splitList(old.extra["nodes"]), node):
		return fail("Storage ID '%s' already exists on node %s", name, node)
	case old.Type != kind:
		return fail("Option 'type' (%s) does not match existing storage configuration '%s'", kind, old.Type)
	}
	return nil
}

// groupKey is what a group is known by on its node: volume groups are one sort, thin
// pool or not.
func groupKey(kind, name string) string {
	if kind == "lvmthin" {
		kind = "lvm"
	}
	return kind + "/" + name
}

// apiMakeGroup is POST /nodes/{node}/disks/zfs and the like.
func apiMakeGroup(w *world, c *call) (any, error) {
	kind, name, node := c.groupKind(), c.in["name"], c.in["node"]
	about := groupKinds[kind]
	if c.has("draid-config") && !strings.HasPrefix(c.in["raidlevel"], "draid") {
		return nil, fail("draid-config set without using dRAID level")
	}
	wanted, err := c.wantedDisks()
	if err != nil {
		return nil, err
	}
	if err := w.mayAdd(c, name, about.storage); err != nil {
		return nil, err
	}
	s := devicesOf(c.node())
	_, there := s.groups[groupKey(kind, name)]
	switch {
	case there && kind == "zfs":
		return nil, fail("pool '%s' already exists on node '%s'", name, node)
	case there && kind == "directory":
		at := s.groups[groupKey(kind, name)].disks[0]
		return nil, fail("the path for '%s' is already mounted: /mnt/pve/%s (%s1)", name, name, at)
	}
	if err := enoughDisks(c.in["raidlevel"], len(wanted)); err != nil {
		return nil, err
	}
	g := diskGroup{kind: kind, name: name, level: c.in["raidlevel"]}
	if kind == "directory" {
		if g.level = c.in["filesystem"]; g.level == "" {
			g.level = "ext4"
		}
		g.uuid = w.uuid()
	}
	for _, d := range wanted {
		g.disks = append(g.disks, d.path)
		g.size += d.size
	}
	if strings.HasPrefix(g.level, "mirror") {
		g.size = wanted[0].size
	}
	add := c.flag("add_storage")
	return w.fork(c, node, job{kind: about.task, id: name, end: func(t *task) error {
		if _, there := s.groups[groupKey(kind, name)]; about.holds == "LVM" && (there || name == "pve" && w.hasLVM()) {
			return fail("volume group with name '%s' already exists on node '%s'", name, node)
		}
		for _, d := range wanted {
			if d.used != "" {
				return fail("device '%s' is already in use", d.path)
			}
			d.used, d.of, d.gpt = about.holds, groupKey(kind, name), true
		}
		if s.groups == nil {
			s.groups = map[string]diskGroup{}
		}
		s.groups[groupKey(kind, name)] = g
		t.logf("# %s %s", map[string]string{"zfs": "/sbin/zpool create -o ashift=12", "lvm": "/sbin/vgcreate", "lvmthin": "/sbin/vgcreate", "directory": "/sbin/mkfs"}[kind], name)
		if add {
			w.addGroupStorage(g, node)
		}
		return nil
	}}), nil
}

// addGroupStorage configures what was made as a storage of its node.
func (w *world) addGroupStorage(g diskGroup, node string) {
	about := groupKinds[g.kind]
	if old := w.stores[g.name]; old != nil { // Of other nodes so far.
		old.extra["nodes"] += "," + node
		return
	}
	entry := Storage{Name: g.name, Type: about.storage, Content: []string{"images", "rootdir"}, Size: g.size}
	s := newStore(entry)
	s.extra = config{"nodes": node}
	switch g.kind {
	case "zfs":
		s.extra["pool"] = g.name
	case "lvmthin":
		s.extra["vgname"], s.extra["thinpool"] = g.name, g.name
	case "lvm":
		s.extra["vgname"] = g.name
	default:
		s.Path, s.extra["is_mountpoint"] = "/mnt/pve/"+g.name, "1"
		s.Content = []string{"backup", "images", "iso", "rootdir", "snippets", "vztmpl"}
	}
	w.stores[g.name] = s
}

// apiDropGroup is DELETE /nodes/{node}/disks/zfs/{name} and the like.
func apiDropGroup(w *world, c *call) (any, error) {
	kind, name, s, n, node := c.groupKind(), c.in["name"], devicesOf(c.node()), c.node(), c.in["node"]
	cleanConfig, cleanDisks := c.flag("cleanup-config"), c.flag("cleanup-disks")
	id, volumeGroup := name, name
	if kind == "lvmthin" {
		volumeGroup = c.in["volume-group"]
		id = volumeGroup + "-" + name
	}
	key := groupKey(kind, volumeGroup)
	return w.fork(c, node, job{kind: groupKinds[kind].remove, id: id, end: func(*task) error {
		g, there := s.groups[key]
		if !there || kind == "lvmthin" && (g.kind != kind || g.name != name) {
			return noGroup(kind, volumeGroup, name, cleanDisks)
		}
		if kind == "lvmthin" && !cleanDisks { // The volume group around it stays.
			g.kind = "lvm"
			s.groups[key] = g
		} else {
			delete(s.groups, key)
			n.release(key, cleanDisks)
		}
		if cleanConfig {
			w.dropGroupStorage(groupKinds[kind].storage, name, node)
		}
		return nil
	}}), nil
}

// noGroup is how the removal of what is not there fails.
func noGroup(kind, volumeGroup, name string, cleanDisks bool) error {
	unit := "mnt-pve-" + name + ".mount"
	switch {
	case kind == "zfs":
		return fail("command 'zpool destroy %s' failed: exit code 1", name)
	case kind == "lvm":
		return fail("no such volume group '%s'", name)
	case kind == "lvmthin":
		return fail("no such thin pool %s/%s", volumeGroup, name)
	case cleanDisks:
		return fail("can't open '/etc/systemd/system/%s' - No such file or directory", unit)
	}
	return fail("command 'systemctl stop %s' failed: exit code 5", unit)
}

// release frees the disks of a group; what was written on them stays, unless they are
// wiped.
func (n *node) release(key string, wipe bool) {
	for i := range n.disks() {
		if d := &n.disks()[i]; d.of == key {
			d.of, d.gpt = "", d.gpt && !wipe
			switch {
			case wipe:
				d.used = ""
			case d.used != "LVM":
				d.used = "partitions"
			}
		}
	}
}

// dropGroupStorage takes a node from the storage of a group, and with the last node the
// storage (cleanup_storages_for_node in PVE/API2/Storage/Config.pm).
func (w *world) dropGroupStorage(kind, name, node string) {
	old := w.stores[name]
	if old == nil || old.Type != kind {
		return
	}
	nodes := splitList(old.extra["nodes"])
	if len(nodes) == 0 {
		nodes = w.nodeNames()
	}
	left := slices.DeleteFunc(slices.Clone(nodes), func(other string) bool { return other == node })
	if len(left) == 0 {
		delete(w.stores, name)
		return
	}
	if old.extra == nil {
		old.extra = config{}
	}
	old.extra["nodes"] = strings.Join(left, ",")
}
