package node

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
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

func groupKind(c *core.Call) string { return perl.Segments(c.M.Path)[3] }

// groups are those of one kind on the node of a call, by name.
func groups(c *core.Call) []diskGroup {
	var list []diskGroup
	all := devicesOf(c.Node()).groups
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].kind == groupKind(c) {
			list = append(list, all[name])
		}
	}
	return list
}

// volumeGroups are those of LVM, of thin pools, too.
func volumeGroups(c *core.Call) []diskGroup {
	var list []diskGroup
	all := devicesOf(c.Node()).groups
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, "lvm/") {
			list = append(list, all[key])
		}
	}
	return list
}

// apiDiskGroups is GET /nodes/{node}/disks/zfs and the like.
func apiDiskGroups(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	groups := groups(c)
	switch groupKind(c) {
	case "zfs":
		for _, g := range groups {
			list = append(list, map[string]any{"name": g.name, "health": "ONLINE", "size": g.size, "alloc": 0, "free": g.size, "frag": 0, "dedup": 1.0})
		}
	case "lvmthin":
		if hasLVM(w) {
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
		if hasLVM(w) {
			list = append(list, volume("pve", "/dev/sda3", 499<<30, 0, 3))
		}
		for _, g := range volumeGroups(c) {
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
func apiZpool(_ *core.World, c *core.Call) (any, error) {
	for _, g := range groups(c) {
		if g.name != c.In["name"] {
			continue
		}
		devices := []map[string]any{}
		for _, path := range g.disks {
			devices = append(devices, map[string]any{"name": path, "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 1})
		}
		top := devices
		if g.level != "single" {
			top = []map[string]any{{"name": g.level + "-0", "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 0, "children": devices}}
		}
		whole := map[string]any{"name": g.name, "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": "", "leaf": 0, "children": top}
		return map[string]any{"name": g.name, "state": "ONLINE", "errors": "No known data errors", "leaf": 0, "children": []map[string]any{whole}}, nil
	}
	return nil, perl.Fail("command '/sbin/zpool status -P %s' failed: exit code 1", c.In["name"])
}

// wantedDisks are the disks of a call that makes something of them.
func wantedDisks(c *core.Call) ([]*disk, error) {
	names := c.List("devices")
	if c.Has("device") {
		names = []string{c.In["device"]}
	}
	var list []*disk
	for _, name := range names {
		d, err := freeDisk(c, name)
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
		return perl.Fail("raid10 needs an even number of disks")
	case level == "single" && n > 1:
		return perl.Fail("please give only one disk for single disk mode")
	case n < leastDisks[level]:
		return perl.Fail("%s needs at least %d disks", level, leastDisks[level])
	}
	return nil
}

// mayAdd says whether what is made can become a storage of its name (create_or_update in
// PVE/API2/Storage/Config.pm).
func mayAdd(w *core.World, c *core.Call, name, kind string) error {
	old := w.Stores[name]
	switch node := c.In["node"]; {
	case !c.Flag("add_storage") || old == nil:
		return nil
	case old.Extra["nodes"] == "" || slices.Contains(perl.SplitList(old.Extra["nodes"]), node):
		return perl.Fail("Storage ID '%s' already exists on node %s", name, node)
	case old.Type != kind:
		return perl.Fail("Option 'type' (%s) does not match existing storage configuration '%s'", kind, old.Type)
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
func apiMakeGroup(w *core.World, c *core.Call) (any, error) {
	kind, name, node := groupKind(c), c.In["name"], c.In["node"]
	about := groupKinds[kind]
	if c.Has("draid-config") && !strings.HasPrefix(c.In["raidlevel"], "draid") {
		return nil, perl.Fail("draid-config set without using dRAID level")
	}
	wanted, err := wantedDisks(c)
	if err != nil {
		return nil, err
	}
	if err := mayAdd(w, c, name, about.storage); err != nil {
		return nil, err
	}
	s := devicesOf(c.Node())
	_, there := s.groups[groupKey(kind, name)]
	switch {
	case there && kind == "zfs":
		return nil, perl.Fail("pool '%s' already exists on node '%s'", name, node)
	case there && kind == "directory":
		at := s.groups[groupKey(kind, name)].disks[0]
		return nil, perl.Fail("the path for '%s' is already mounted: /mnt/pve/%s (%s1)", name, name, at)
	}
	if err := enoughDisks(c.In["raidlevel"], len(wanted)); err != nil {
		return nil, err
	}
	g := diskGroup{kind: kind, name: name, level: c.In["raidlevel"]}
	if kind == "directory" {
		if g.level = c.In["filesystem"]; g.level == "" {
			g.level = "ext4"
		}
		g.uuid = w.Rng.UUID()
	}
	for _, d := range wanted {
		g.disks = append(g.disks, d.path)
		g.size += d.size
	}
	if strings.HasPrefix(g.level, "mirror") {
		g.size = wanted[0].size
	}
	add := c.Flag("add_storage")
	return w.Fork(c, node, core.Job{Kind: about.task, ID: name, End: func(t *core.Task) error {
		if _, there := s.groups[groupKey(kind, name)]; about.holds == "LVM" && (there || name == "pve" && hasLVM(w)) {
			return perl.Fail("volume group with name '%s' already exists on node '%s'", name, node)
		}
		for _, d := range wanted {
			if d.used != "" {
				return perl.Fail("device '%s' is already in use", d.path)
			}
			d.used, d.of, d.gpt = about.holds, groupKey(kind, name), true
		}
		if s.groups == nil {
			s.groups = map[string]diskGroup{}
		}
		s.groups[groupKey(kind, name)] = g
		t.Logf("# %s %s", map[string]string{"zfs": "/sbin/zpool create -o ashift=12", "lvm": "/sbin/vgcreate", "lvmthin": "/sbin/vgcreate", "directory": "/sbin/mkfs"}[kind], name)
		if add {
			addGroupStorage(w, g, node)
		}
		return nil
	}}), nil
}

// addGroupStorage configures what was made as a storage of its node.
func addGroupStorage(w *core.World, g diskGroup, node string) {
	about := groupKinds[g.kind]
	if old := w.Stores[g.name]; old != nil { // Of other nodes so far.
		old.Extra["nodes"] += "," + node
		return
	}
	entry := core.Storage{Name: g.name, Type: about.storage, Content: []string{"images", "rootdir"}, Size: g.size}
	s := core.NewStore(entry)
	s.Extra = perl.Config{"nodes": node}
	switch g.kind {
	case "zfs":
		s.Extra["pool"] = g.name
	case "lvmthin":
		s.Extra["vgname"], s.Extra["thinpool"] = g.name, g.name
	case "lvm":
		s.Extra["vgname"] = g.name
	default:
		s.Path, s.Extra["is_mountpoint"] = "/mnt/pve/"+g.name, "1"
		s.Content = []string{"backup", "images", "iso", "rootdir", "snippets", "vztmpl"}
	}
	w.Stores[g.name] = s
}

// apiDropGroup is DELETE /nodes/{node}/disks/zfs/{name} and the like.
func apiDropGroup(w *core.World, c *core.Call) (any, error) {
	kind, name, s, n, node := groupKind(c), c.In["name"], devicesOf(c.Node()), c.Node(), c.In["node"]
	cleanConfig, cleanDisks := c.Flag("cleanup-config"), c.Flag("cleanup-disks")
	id, volumeGroup := name, name
	if kind == "lvmthin" {
		volumeGroup = c.In["volume-group"]
		id = volumeGroup + "-" + name
	}
	key := groupKey(kind, volumeGroup)
	return w.Fork(c, node, core.Job{Kind: groupKinds[kind].remove, ID: id, End: func(*core.Task) error {
		g, there := s.groups[key]
		if !there || kind == "lvmthin" && (g.kind != kind || g.name != name) {
			return noGroup(kind, volumeGroup, name, cleanDisks)
		}
		if kind == "lvmthin" && !cleanDisks { // The volume group around it stays.
			g.kind = "lvm"
			s.groups[key] = g
		} else {
			delete(s.groups, key)
			release(n, key, cleanDisks)
		}
		if cleanConfig {
			dropGroupStorage(w, groupKinds[kind].storage, name, node)
		}
		return nil
	}}), nil
}

// noGroup is how the removal of what is not there fails.
func noGroup(kind, volumeGroup, name string, cleanDisks bool) error {
	unit := "mnt-pve-" + name + ".mount"
	switch {
	case kind == "zfs":
		return perl.Fail("command 'zpool destroy %s' failed: exit code 1", name)
	case kind == "lvm":
		return perl.Fail("no such volume group '%s'", name)
	case kind == "lvmthin":
		return perl.Fail("no such thin pool %s/%s", volumeGroup, name)
	case cleanDisks:
		return perl.Fail("can't open '/etc/systemd/system/%s' - No such file or directory", unit)
	}
	return perl.Fail("command 'systemctl stop %s' failed: exit code 5", unit)
}

// release frees the disks of a group; what was written on them stays, unless they are
// wiped.
func release(n *core.Node, key string, wipe bool) {
	for i := range disks(n) {
		if d := &disks(n)[i]; d.of == key {
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
func dropGroupStorage(w *core.World, kind, name, node string) {
	old := w.Stores[name]
	if old == nil || old.Type != kind {
		return
	}
	nodes := perl.SplitList(old.Extra["nodes"])
	if len(nodes) == 0 {
		nodes = w.NodeNames()
	}
	left := slices.DeleteFunc(slices.Clone(nodes), func(other string) bool { return other == node })
	if len(left) == 0 {
		delete(w.Stores, name)
		return
	}
	if old.Extra == nil {
		old.Extra = perl.Config{}
	}
	old.Extra["nodes"] = strings.Join(left, ",")
}
