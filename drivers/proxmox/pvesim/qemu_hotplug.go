package pvesim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// fastKeys have no effect on a running VM, so they change at once. All keys of
// cloud-init are among them: the drive is then out of date ($fast_plug_option in
// PVE/QemuServer.pm).
var fastKeys = map[string]bool{
	"description": true, "hookscript": true, "lock": true, "migrate_downtime": true, "migrate_speed": true, "name": true,
	"onboot": true, "protection": true, "shares": true, "startup": true, "tags": true, "vmstatestorage": true,
}

func isFast(key string) bool { return fastKeys[key] || isCloudKey(key) }

// hotplug makes those waiting changes of a running VM that can be made
// (vmconfig_hotplug_pending in PVE/QemuServer.pm). Only keys of this change are
// tried, but for those that cannot fail. What fails behind all that has no key.
func (c *call) hotplug(g *guest, modified map[string]bool, problems map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		if key != "delete" && isFast(key) {
			g.commit(key, g.pend[key])
		}
	}
	can := hotplugFeatures(g.conf["hotplug"])
	going := g.deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if !modified[key] || !unplugs(g, key, can) {
			continue
		}
		if value, ok := g.conf[key]; ok && isDrive(key) {
			if err := c.dropDrive(g, key, value, going[key]); err != nil {
				problems[key] = "hotplug problem - " + err.Error() + "\n"
				continue
			}
			delete(g.run.disks, key)
		}
		g.recordCloud(key, g.conf[key], "", true, false)
		delete(g.conf, key)
		delete(going, key)
	}
	g.setDeletions(going)
	cloudDrive := func(key string) bool { return isDrive(key) && parseDrive(key, g.pend[key]).cloudinit() }
	for _, key := range slices.SortedFunc(maps.Keys(g.pend), func(a, b string) int { // The drive of cloud-init comes last.
		return cmp.Or(boolInt(cloudDrive(a))-boolInt(cloudDrive(b)), strings.Compare(a, b))
	}) {
		if key == "delete" || !modified[key] {
			continue
		}
		if cloudDrive(key) {
			conf := maps.Clone(g.conf)
			conf[key] = g.pend[key]
			if err := c.w.writeCloudDrive(g, conf, func(string, ...any) {}); err != nil {
				problems[key] = "hotplug problem - " + err.Error() + "\n"
				continue
			}
		}
		done, err := c.plugs(g, key, g.pend[key], can)
		if err != nil {
			problems[key] = "hotplug problem - " + err.Error() + "\n"
			continue
		}
		if done {
			g.commit(key, g.pend[key])
		}
	}
	c.w.write(g)
	if can["cloudinit"] && len(g.cloud) > 0 {
		return c.w.updateCloudDrive(g, func(string, ...any) {})
	}
	return nil
}

// commit turns a waiting value into the one in force.
func (g *guest) commit(key, value string) {
	old, set := g.conf[key]
	g.recordCloud(key, old, value, set, true)
	g.conf[key] = value
	delete(g.pend, key)
}

// recordCloud notes what the cloud-init drive still says otherwise: the old
// value, or that there was none ("added").
func (g *guest) recordCloud(key, old, value string, had, has bool) {
	family := familyOf(key)
	if !isCloudKey(key) && key != "name" && family != "net" {
		return
	}
	added := map[string]bool{}
	for _, k := range splitList(g.cloud["added"]) {
		added[k] = true
	}
	delete(g.cloud, "added")
	recorded, known := g.cloud[key]
	switch {
	case has && known && value == recorded:
		delete(g.cloud, key)
		delete(added, key)
	case known, has && added[key], !has && !had:
	case has && had, !has && !added[key]:
		g.cloud[key] = old
	case has:
		added[key] = true
	default:
		delete(added, key)
	}
	if len(added) > 0 {
		g.cloud["added"] = strings.Join(slices.Sorted(maps.Keys(added)), ",")
	}
}

// hotplugFeatures reads the hotplug key; its default, also written 1, is
// network, disk and usb.
func hotplugFeatures(value string) map[string]bool {
	if value == "" || value == "1" {
		value = "network,disk,usb"
	}
	features := map[string]bool{}
	for _, f := range splitList(value) {
		features[f] = true
	}
	return features
}

// unplugs says whether a key can be removed while the VM runs.
func unplugs(g *guest, key string, can map[string]bool) bool {
	family := familyOf(key)
	switch {
	case isFast(key), key == "cpuunits", key == "cpulimit":
		return true
	case key == "hotplug":
		return !strings.Contains(g.conf[key], "cpu") && !strings.Contains(g.conf[key], "memory")
	case key == "tablet":
		return can["usb"]
	case family == "usb" && key != family:
		return can["usb"] && hotUSB(g.conf["ostype"])
	case key == "vcpus":
		return can["cpu"]
	case key == "balloon":
		return g.conf[key] != "0"
	case family == "net":
		return can["network"]
	case isDrive(key):
		return can["disk"] && (family == "scsi" || family == "virtio")
	case key == "memory":
		return can["memory"]
	default:
		return false
	}
}

func hotUSB(ostype string) bool {
	return ostype == "l26" || ostype == "win8" || ostype == "win10" || ostype == "win11"
}

// plugs says whether a new value can be taken over while the VM runs.
func (c *call) plugs(g *guest, key, value string, can map[string]bool) (bool, error) {
	family := familyOf(key)
	switch {
	case key == "cpuunits", key == "cpulimit":
		return true, nil
	case key == "hotplug":
		for _, feature := range []string{"cpu", "memory"} {
			if strings.Contains(value, feature) || strings.Contains(g.conf[key], feature) {
				return false, nil
			}
		}
		return true, nil
	case key == "tablet":
		return can["usb"], nil
	case family == "usb" && key != family:
		return can["usb"] && hotUSB(g.conf["ostype"]), nil
	case key == "vcpus":
		return can["cpu"], nil
	case key == "balloon":
		old, set := g.conf[key]
		return (!set || old != "0") == (value != "0"), nil
	case family == "net":
		return c.w.plugsNet(g, key, value, can["network"])
	case isDrive(key):
		return c.plugsDrive(g, key, value, can["disk"])
	case key == "memory":
		return can["memory"] && g.conf["numa"] == "1", nil
	case key == "agent":
		return plugsAgent(g.conf[key], value), nil
	default:
		return false, nil
	}
}

// plugsNet: a bridge or VLAN can be changed under the guest, another device
// only by unplugging (vmconfig_update_net).
func (w *world) plugsNet(g *guest, key, value string, hot bool) (bool, error) {
	after := parseProperty(key, value)
	there := after["bridge"] == "" || slices.Contains(w.bridges, after["bridge"])
	if old := g.conf[key]; old != "" {
		before := parseProperty(key, old)
		same := before["bridge"] != "" && after["bridge"] != ""
		for _, option := range []string{"model", "macaddr", "queues", "mtu"} {
			same = same && before[option] == after[option]
		}
		switch {
		case same && !there:
			return false, fail("bridge '%s' does not exist", after["bridge"])
		case same && w.trunkTrouble(g.node, after) != "":
			return false, fail("%s", w.trunkTrouble(g.node, after))
		case same:
			return true, nil
		}
	}
	if err := w.mtuTrouble(g.node, key, after); hot && there && err != nil {
		return false, err
	}
	if hot && (!there || w.trunkTrouble(g.node, after) != "") {
		return false, fail("VM %d qmp command 'netdev_add' failed - network script /usr/libexec/qemu-server/pve-bridge-hotplug failed with status 512", g.vmid)
	}
	return hot, nil
}

// plugsAgent: of the agent only fstrim_cloned_disks may change.
func plugsAgent(old, value string) bool {
	if old == "" {
		return false
	}
	before, after := parseProperty("agent", old), parseProperty("agent", value)
	delete(before, "fstrim_cloned_disks")
	delete(after, "fstrim_cloned_disks")
	return maps.Equal(before, after)
}

// plugsDrive follows vmconfig_update_disk.
func (c *call) plugsDrive(g *guest, key, value string, hot bool) (bool, error) {
	family := familyOf(key)
	if family == "efidisk" || family == "tpmstate" {
		return false, nil
	}
	d := parseDrive(key, value)
	old, attached := g.conf[key]
	if !attached {
		if !hot || family == "ide" || family == "sata" {
			return false, nil
		}
		if d.file == "none" || d.file == "cdrom" { // activate_volumes in PVE/Storage.pm takes a volume only
			return false, fail("unable to parse volume ID '%s'", d.file)
		}
		g.run.disks[key] = true
		return true, nil
	}
	before := parseDrive(key, old)
	switch {
	case before.cdrom() != d.cdrom():
		return false, fail("unable to change media type")
	case before.cdrom():
		if before.cloudinit() && d.file == "none" {
			c.w.unuse(g, before)
		}
		return true, nil
	case before.file != d.file:
		if !hot || family == "ide" || family == "sata" {
			return false, nil
		}
		c.w.unuse(g, before)
		return true, nil
	}
	for _, option := range []string{"aio", "cache", "discard", "iothread", "product", "queues", "ro", "ssd", "vendor"} {
		if before.opts[option] != d.opts[option] {
			return false, nil
		}
	}
	return true, nil
}
