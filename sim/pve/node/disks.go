package node

// This part of the package is the disks of nodes and what is made of them: volume groups, thin pools,
// directories, ZFS pools. Ceph is not installed.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// DiskArea is the disks of nodes.
func DiskArea() core.Area {
	return core.Area{
		Calls: slices.Concat(diskCalls(), cephCalls()),
	}
}

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

func devicesOf(n *core.Node) *devices { return core.PartOf[devices](&n.Parts) }

// disks are those of a node, as long as nobody changed them the ones of every host.
func disks(n *core.Node) []disk {
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
func freeDisk(c *core.Call, path string) (*disk, error) {
	d, err := anyDisk(c, path)
	if err == nil && d.used != "" {
		return nil, perl.Fail("device '%s' is already in use", path)
	}
	return d, err
}

func anyDisk(c *core.Call, path string) (*disk, error) {
	all := disks(c.Node())
	i := slices.IndexFunc(all, func(d disk) bool { return d.path == path })
	if i < 0 {
		return nil, perl.Fail("failed to get link status of '%s': No such file or directory", path)
	}
	return &all[i], nil
}

// apiDisks is GET /nodes/{node}/disks/list.
func apiDisks(_ *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for i, d := range disks(c.Node()) {
		if c.In["type"] == "unused" && d.used != "" || c.In["type"] == "journal_disks" {
			continue
		}
		serial := fmt.Sprintf("SIM%05d", c.Node().Index*100+i)
		entry := map[string]any{
			"devpath": d.path, "size": d.size, "gpt": perl.BoolInt(d.gpt), "osdid": -1, "osdid-list": nil, "model": "Simulated_Disk", "vendor": "ATA     ", "serial": serial,
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
func apiSmart(_ *core.World, c *core.Call) (any, error) {
	if _, err := anyDisk(c, c.In["disk"]); err != nil {
		return nil, err
	}
	if c.Flag("healthonly") {
		return map[string]any{"health": "PASSED"}, nil
	}
	return map[string]any{"health": "PASSED", "type": "ata", "attributes": []map[string]any{{
		"id": "  9", "name": "Power_On_Hours", "flags": "-O--CK", "value": 99, "worst": 99, "threshold": 0, "fail": "-", "raw": "1000", "normalized": 99,
	}}}, nil
}

// partition is POST …/disks/initgpt and PUT …/disks/wipedisk: whether a free disk has a
// table of partitions.
func partition(kind, inUse string, gpt bool) core.Handler {
	return func(w *core.World, c *core.Call) (any, error) {
		d, err := anyDisk(c, c.In["disk"])
		switch {
		case err != nil:
			return nil, err
		case d.used != "":
			return nil, perl.Fail(inUse, d.path)
		}
		return w.Fork(c, c.In["node"], core.Job{Kind: kind, ID: strings.TrimPrefix(d.path, "/dev/"), End: func(*core.Task) error {
			d.gpt = gpt
			return nil
		}}), nil
	}
}

func diskCalls() []core.ExtraCall {
	const at, flags = "/nodes/{node}/disks/", "cleanup-config: boolean\ncleanup-disks: boolean"
	audit, read := core.AllOf("/", "Sys.Audit"), core.AnyOf("/", "Sys.Audit", "Datastore.Audit")
	modify, allocate := core.AllOf("/", "Sys.Modify"), core.AllOf("/", "Sys.Modify", "Datastore.Allocate")
	word, list, object := &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	const device = "/^\\/dev\\/[a-zA-Z0-9\\/]+$/"
	calls := []core.ExtraCall{
		{Name: "GET " + at + "list", Perm: read, Params: "include-partitions: boolean\nskipsmart: boolean\ntype: string unused|journal_disks", Returns: list, Handle: apiDisks},
		{Name: "GET " + at + "smart", Perm: read, Params: "disk: string needed " + device + "\nhealthonly: boolean", Returns: object, Handle: apiSmart},
		{Name: "POST " + at + "initgpt", Perm: modify, Params: "disk: string needed " + device + "\nuuid: string <=36", Returns: word, Handle: partition("diskinit", "disk %s already in use", true)},
		{Name: "PUT " + at + "wipedisk", Perm: modify, Params: "disk: string needed " + device, Returns: word, Handle: partition("wipedisk", "disk/partition '%s' has a holder", false)},
		{Name: "GET " + at + "zfs/{name}", Perm: audit, Params: "name: string pve-storage-id", Returns: object, Handle: apiZpool},
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
			core.ExtraCall{Name: "GET " + at + kind, Perm: audit, Returns: shown, Handle: apiDiskGroups},
			core.ExtraCall{Name: "POST " + at + kind, Perm: allocate, Params: params[kind], Returns: word, Handle: apiMakeGroup},
			core.ExtraCall{Name: "DELETE " + at + kind + "/{name}", Perm: allocate, Params: drop, Returns: word, Handle: apiDropGroup},
		)
	}
	return calls
}

// hasLVM says whether there is a volume group, pve.
func hasLVM(w *core.World) bool {
	for _, s := range w.Stores {
		if s.Type == "lvm" || s.Type == "lvmthin" {
			return true
		}
	}
	return false
}

// cephReadings and cephWritings are the calls about Ceph (PVE/API2/Cluster/Ceph.pm,
// PVE/API2/Ceph.pm), by where they stand.
var (
	cephReadings = map[string]string{
		"/cluster/ceph/":      "status metadata flags flags/{flag}",
		"/nodes/{node}/ceph/": "status osd mon mds mgr pool pool/{name} pool/{name}/status fs rules crush log cmd-safety cfg/raw cfg/db cfg/value osd/{osdid}",
	}
	cephWritings = map[string]string{"/nodes/{node}/ceph/": "init osd pool start stop restart mon/{monid} mds/{name} mgr/{id} fs/{name}"}
)

// apiCeph is any of them: nothing of Ceph is installed (check_ceph_installed in
// PVE/Ceph/Tools.pm).
func apiCeph(*core.World, *core.Call) (any, error) {
	return nil, perl.Fail("binary not installed: /usr/bin/ceph-mon")
}

func cephCalls() []core.ExtraCall {
	audit, modify := core.AnyOf("/", "Sys.Audit", "Datastore.Audit"), core.AllOf("/", "Sys.Modify")
	calls := []core.ExtraCall{{
		Name: "GET /nodes/{node}/ceph", Perm: core.AnyOf("/nodes/{node}/ceph", "Sys.Audit", "Datastore.Audit"), Returns: &pveapi.Value{Type: "array"},
		Handle: core.DirectoryIndex{Key: "name", Names: "cmd-safety cfg crush fs init log mds mgr mon osd pool restart rules start status stop"}.Handler,
	}}
	for at, paths := range cephReadings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, core.ExtraCall{Name: "GET " + at + path, Perm: audit, Returns: &pveapi.Value{}, More: true, Handle: apiCeph})
		}
	}
	for at, paths := range cephWritings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, core.ExtraCall{Name: "POST " + at + path, Perm: modify, Returns: &pveapi.Value{}, More: true, Handle: apiCeph})
		}
	}
	return calls
}
