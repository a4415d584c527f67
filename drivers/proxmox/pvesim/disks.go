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

// devices are the disks of a node, nil for those of every host, and what was made of them,
// by name.
type devices struct {
	disks  []disk
	groups map[string]diskGroup
}

func devicesOf(n *node) *devices { return partOf[devices](&n.parts) }

// disks are those of a node, as long as nobody changed them the ones of every host.
func (n *node) disks() []disk {
	own := devicesOf(n)
	if own.disks == nil {
		own.disks = []disk{{path: "/dev/sda", size: 500 << 30, gpt: true, used: "LVM"}}
		for _, letter := range "bcd" {
			own.disks = append(own.disks, disk{path: "/dev/sd" + string(letter), size: 1000 << 30})
		}
	}
	return own.disks
}

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
		shown, drop := list, flags+"\nname: string pve-storage-id"
		switch kind {
		case "lvm":
			shown = object
		case "lvmthin":
			drop += "\nvolume-group: string pve-storage-id needed"
		}
		calls = append(calls,
			pastCall{name: "GET " + at + kind, perm: audit, returns: shown, handle: apiDiskGroups},
			pastCall{name: "POST " + at + kind, perm: allocate, params: params[kind], returns: word, handle: apiMakeGroup},
			pastCall{name: "DELETE " + at + kind + "/{name}", perm: allocate, params: drop, returns: word, handle: apiDropGroup},
		)
	}
	return calls
}

// hasLVM says whether there is a volume group, pve.
func (w *world) hasLVM() bool {
	for _, s := range w.stores {
		if s.Type == "lvm" || s.Type == "lvmthin" {
			return true
		}
	}
	return false
}
