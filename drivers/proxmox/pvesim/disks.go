package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Disks of a node (PVE/API2/Disks*.pm of pve-storage): one holds the system, three are
// free and can become a pool, a volume group, a thin pool or a folder.

// disk is a block device of a node; used is what holds it, empty when it is free.
type disk struct {
	path string
	size int64
	gpt  bool
	used string
	of   string // The pool or the like that it is part of.
}

// diskGroup is what was made of disks.
type diskGroup struct {
	kind, name, level string
	disks             []string
	size              int64
}

// disks are those of a node, as long as nobody changed them the ones of every host.
func (n *node) disks() []disk {
	if n.settings.disks == nil {
		n.settings.disks = []disk{{path: "/dev/sda", size: 500 << 30, gpt: true, used: "LVM"}}
		for _, letter := range "bcd" {
			n.settings.disks = append(n.settings.disks, disk{path: "/dev/sd" + string(letter), size: 1000 << 30})
		}
	}
	return n.settings.disks
}

func (c *call) node() *node { return c.w.nodes[c.in["node"]] }

// freeDisk finds a disk that nothing holds (assert_disk_unused in PVE/Diskmanage.pm).
func (c *call) freeDisk(path string) (*disk, error) {
	d, err := c.anyDisk(path)
	if err == nil && d.used != "" {
		return nil, fail("device '%s' is already in use", path)
	}
	return d, err
}

func (c *call) anyDisk(path string) (*disk, error) {
	all := c.node().disks()
	i := slices.IndexFunc(all, func(d disk) bool { return d.path == path })
	if i < 0 {
		return nil, fail("failed to get link status of '%s': No such file or directory", path)
	}
	return &all[i], nil
}

// apiDisks is GET /nodes/{node}/disks/list.
func apiDisks(_ *world, c *call) (any, error) {
	list := []map[string]any{}
	for i, d := range c.node().disks() {
		if c.in["type"] == "unused" && d.used != "" || c.in["type"] == "journal_disks" {
			continue
		}
		serial := fmt.Sprintf("SIM%05d", c.node().index*100+i)
		entry := map[string]any{
			"devpath": d.path, "size": d.size, "gpt": boolInt(d.gpt), "osdid": -1, "osdid-list": nil, "model": "Simulated_Disk", "vendor": "ATA     ", "serial": serial,
			"wwn": "unknown", "health": "PASSED", "type": "ssd", "rpm": 0, "wearout": 100, "by_id_link": "/dev/disk/by-id/ata-Simulated_Disk_" + serial,
		}
		if d.used != "" {
			entry["used"] = d.used
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiSmart is GET /nodes/{node}/disks/smart.
func apiSmart(_ *world, c *call) (any, error) {
	if _, err := c.anyDisk(c.in["disk"]); err != nil {
		return nil, err
	}
	if c.flag("healthonly") {
		return map[string]any{"health": "PASSED"}, nil
	}
	return map[string]any{"health": "PASSED", "type": "ata", "attributes": []map[string]any{{
		"id": "  9", "name": "Power_On_Hours", "flags": "-O--CK", "value": 99, "worst": 99, "threshold": 0, "fail": "-", "raw": "1000", "normalized": 99,
	}}}, nil
}

// apiInitDisk is POST …/disks/initgpt, apiWipeDisk PUT …/disks/wipedisk.
func apiInitDisk(w *world, c *call) (any, error) {
	d, err := c.anyDisk(c.in["disk"])
	switch {
	case err != nil:
		return nil, err
	case d.used != "":
		return nil, fail("disk %s already in use", d.path)
	}
	return w.fork(c, c.in["node"], job{kind: "diskinit", id: strings.TrimPrefix(d.path, "/dev/"), end: func(*task) error {
		d.gpt = true
		return nil
	}}), nil
}

func apiWipeDisk(w *world, c *call) (any, error) {
	d, err := c.anyDisk(c.in["disk"])
	switch {
	case err != nil:
		return nil, err
	case d.used != "":
		return nil, fail("disk/partition '%s' has a holder", d.path)
	}
	return w.fork(c, c.in["node"], job{kind: "wipedisk", id: strings.TrimPrefix(d.path, "/dev/"), end: func(*task) error {
		d.gpt = false
		return nil
	}}), nil
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
	all := c.settings().groups
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].kind == c.groupKind() {
			list = append(list, all[name])
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
				"path": "/mnt/pve/" + g.name, "device": g.disks[0] + "1", "type": g.level, "options": "defaults",
				"unitfile": "/etc/systemd/system/mnt-pve-" + g.name + ".mount",
			})
		}
	default:
		volume := func(name string, size int64) map[string]any {
			return map[string]any{"name": name, "size": size, "free": 0, "leaf": 0, "children": []map[string]any{}}
		}
		if w.hasLVM() {
			list = append(list, volume("pve", 499<<30))
		}
		for _, g := range groups {
			list = append(list, volume(g.name, g.size))
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
	names, level := c.list("devices"), c.in["raidlevel"]
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
	switch n := len(list); {
	case level == "":
	case level == "raid10" && n%2 != 0:
		return nil, fail("raid10 needs an even number of disks")
	case level == "single" && n > 1:
		return nil, fail("please give only one disk for single disk mode")
	case n < leastDisks[level]:
		return nil, fail("%s needs at least %d disks", level, leastDisks[level])
	}
	return list, nil
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
	s := c.settings()
	_, there := s.groups[name]
	switch {
	case c.flag("add_storage") && w.stores[name] != nil:
		return nil, fail("storage ID '%s' already exists on node %s", name, node)
	case there && kind == "zfs":
		return nil, fail("pool '%s' already exists on node '%s'", name, node)
	case there:
		return nil, fail("volume group with name '%s' already exists on node '%s'", name, node)
	}
	g := diskGroup{kind: kind, name: name, level: c.in["raidlevel"]}
	if kind == "directory" {
		if g.level = c.in["filesystem"]; g.level == "" {
			g.level = "ext4"
		}
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
		for _, d := range wanted {
			if d.used != "" {
				return fail("device '%s' is already in use", d.path)
			}
			d.used, d.of, d.gpt = about.holds, name, true
		}
		if s.groups == nil {
			s.groups = map[string]diskGroup{}
		}
		s.groups[name] = g
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
	kind, name, s := c.groupKind(), c.in["name"], c.settings()
	n := c.node()
	cleanConfig, cleanDisks := c.flag("cleanup-config"), c.flag("cleanup-disks")
	return w.fork(c, c.in["node"], job{kind: groupKinds[kind].remove, id: name, end: func(*task) error {
		if g, there := s.groups[name]; !there || g.kind != kind {
			command := map[string]string{"zfs": "zpool destroy", "lvm": "/sbin/vgremove -y", "lvmthin": "/sbin/lvremove -y", "directory": "umount"}[kind]
			return fail("command '%s %s' failed: exit code 1", command, name)
		}
		delete(s.groups, name)
		for i := range n.disks() {
			if d := &n.disks()[i]; d.of == name {
				d.used, d.of, d.gpt = "", "", d.gpt && !cleanDisks
				if !cleanDisks {
					d.used = "partitions"
				}
			}
		}
		if cleanConfig {
			delete(w.stores, name)
		}
		return nil
	}}), nil
}

func diskCalls() []pastCall {
	const at, flags = "/nodes/{node}/disks/", "cleanup-config: boolean\ncleanup-disks: boolean"
	audit, look := allOf("/", "Sys.Audit"), anyOf("/", "Sys.Audit", "Datastore.Audit")
	modify, allocate := allOf("/", "Sys.Modify"), allOf("/", "Sys.Modify", "Datastore.Allocate")
	word, list, object := &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	const device = "/^\\/dev\\/[a-zA-Z0-9\\/]+$/"
	calls := []pastCall{
		{name: "GET " + at + "list", perm: look, params: "include-partitions: boolean\nskipsmart: boolean\ntype: string unused|journal_disks", returns: list, handle: apiDisks},
		{name: "GET " + at + "smart", perm: look, params: "disk: string needed " + device + "\nhealthonly: boolean", returns: object, handle: apiSmart},
		{name: "POST " + at + "initgpt", perm: modify, params: "disk: string needed " + device + "\nuuid: string <=36", returns: word, handle: apiInitDisk},
		{name: "PUT " + at + "wipedisk", perm: modify, params: "disk: string needed " + device, returns: word, handle: apiWipeDisk},
		{name: "GET " + at + "zfs/{name}", perm: audit, params: "name: string pve-storage-id", returns: object, handle: apiZpool},
	}
	const one = "name: string pve-storage-id needed\nadd_storage: boolean\ndevice: string needed"
	params := map[string]string{
		"zfs": "name: string pve-storage-id needed\nadd_storage: boolean\ndevices: string needed\ndraid-config: string\nashift: integer 9..16\n" +
			"raidlevel: string needed single|mirror|raid10|raidz|raidz2|raidz3|draid|draid2|draid3\ncompression: string on|off|gzip|lz4|lzjb|zle|zstd",
		"lvm": one, "lvmthin": one, "directory": one + "\nfilesystem: string ext4|xfs",
	}
	for _, kind := range slices.Sorted(maps.Keys(params)) {
		shown := list
		if kind == "lvm" {
			shown = object
		}
		calls = append(calls,
			pastCall{name: "GET " + at + kind, perm: audit, returns: shown, handle: apiDiskGroups},
			pastCall{name: "POST " + at + kind, perm: allocate, params: params[kind], returns: word, handle: apiMakeGroup},
			pastCall{name: "DELETE " + at + kind + "/{name}", perm: allocate, params: flags + "\nname: string pve-storage-id\nvolume-group: string", returns: word, handle: apiDropGroup},
		)
	}
	return calls
}
