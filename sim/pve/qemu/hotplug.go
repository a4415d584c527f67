package qemu

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// fastKeys have no effect on a running VM, so they change at once. All keys of
// cloud-init are among them: the drive is then out of date ($fast_plug_option in
// PVE/QemuServer.pm).
var fastKeys = map[string]bool{
	"description": true, "hookscript": true, "lock": true, "migrate_downtime": true, "migrate_speed": true, "name": true,
	"onboot": true, "protection": true, "shares": true, "startup": true, "tags": true, "vmstatestorage": true,
}

func isFast(key string) bool { return fastKeys[key] || isCloudKey(key) }

// hotplug applies those pending changes of a running VM that it can (vmconfig_hotplug_pending in
// PVE/QemuServer.pm). It only tries keys of this change, and others that cannot fail. A failure after all that has
// no key.
func hotplug(c *core.Call, g *core.Guest, modified map[string]bool, problems map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(g.Pend)) {
		if key != "delete" && isFast(key) {
			commit(g, key, g.Pend[key])
		}
	}
	can := hotplugFeatures(g.Conf["hotplug"])
	going := g.Deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if !modified[key] || !unplugs(g, key, can) {
			continue
		}
		if value, ok := g.Conf[key]; ok && perl.IsDrive(key) {
			if err := dropDrive(c, g, key, value, going[key]); err != nil {
				problems[key] = "hotplug problem - " + err.Error() + "\n"
				continue
			}
			delete(g.Run.Disks, key)
		}
		recordCloud(g, key, g.Conf[key], "", true, false)
		delete(g.Conf, key)
		delete(going, key)
	}
	g.SetDeletions(going)
	cloudDrive := func(key string) bool {
		return perl.IsDrive(key) && perl.ParseDrive(key, g.Pend[key]).Cloudinit()
	}
	for _, key := range slices.SortedFunc(maps.Keys(g.Pend), func(a, b string) int { // The drive of cloud-init comes last.
		return cmp.Or(perl.BoolInt(cloudDrive(a))-perl.BoolInt(cloudDrive(b)), strings.Compare(a, b))
	}) {
		if key == "delete" || !modified[key] {
			continue
		}
		if cloudDrive(key) {
			conf := maps.Clone(g.Conf)
			conf[key] = g.Pend[key]
			if err := writeCloudDrive(c.W, g, conf, func(string, ...any) {}); err != nil {
				problems[key] = "hotplug problem - " + err.Error() + "\n"
				continue
			}
		}
		done, err := plugs(c, g, key, g.Pend[key], can)
		if err != nil {
			problems[key] = "hotplug problem - " + err.Error() + "\n"
			continue
		}
		if done {
			commit(g, key, g.Pend[key])
		}
	}
	c.W.Write(g)
	if can["cloudinit"] && len(g.Cloud) > 0 {
		return updateCloudDrive(c.W, g, func(string, ...any) {})
	}
	return nil
}

// commit turns a waiting value into the one in force.
func commit(g *core.Guest, key, value string) {
	old, set := g.Conf[key]
	recordCloud(g, key, old, value, set, true)
	g.Conf[key] = value
	delete(g.Pend, key)
}

// recordCloud notes what the cloud-init drive still says otherwise: the old
// value, or that there was none ("added").
func recordCloud(g *core.Guest, key, old, value string, had, has bool) {
	family := perl.FamilyOf(key)
	if !isCloudKey(key) && key != "name" && family != "net" {
		return
	}
	added := map[string]bool{}
	for _, k := range perl.SplitList(g.Cloud["added"]) {
		added[k] = true
	}
	delete(g.Cloud, "added")
	recorded, known := g.Cloud[key]
	switch {
	case has && known && value == recorded:
		delete(g.Cloud, key)
		delete(added, key)
	case known, has && added[key], !has && !had:
	case has && had, !has && !added[key]:
		g.Cloud[key] = old
	case has:
		added[key] = true
	default:
		delete(added, key)
	}
	if len(added) > 0 {
		g.Cloud["added"] = strings.Join(slices.Sorted(maps.Keys(added)), ",")
	}
}

// hotplugFeatures reads the hotplug key; its default, also written 1, is
// network, disk and usb.
func hotplugFeatures(value string) map[string]bool {
	if value == "" || value == "1" {
		value = "network,disk,usb"
	}
	features := map[string]bool{}
	for _, f := range perl.SplitList(value) {
		features[f] = true
	}
	return features
}

// unplugs says whether a key can be removed while the VM runs.
func unplugs(g *core.Guest, key string, can map[string]bool) bool {
	family := perl.FamilyOf(key)
	switch {
	case isFast(key), key == "cpuunits", key == "cpulimit":
		return true
	case key == "hotplug":
		return !strings.Contains(g.Conf[key], "cpu") && !strings.Contains(g.Conf[key], "memory")
	case key == "tablet":
		return can["usb"]
	case family == "usb" && key != family:
		return can["usb"] && hotUSB(g.Conf["ostype"])
	case key == "vcpus":
		return can["cpu"]
	case key == "balloon":
		return g.Conf[key] != "0"
	case family == "net":
		return can["network"]
	case perl.IsDrive(key):
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
func plugs(c *core.Call, g *core.Guest, key, value string, can map[string]bool) (bool, error) {
	family := perl.FamilyOf(key)
	switch {
	case key == "cpuunits", key == "cpulimit":
		return true, nil
	case key == "hotplug":
		for _, feature := range []string{"cpu", "memory"} {
			if strings.Contains(value, feature) || strings.Contains(g.Conf[key], feature) {
				return false, nil
			}
		}
		return true, nil
	case key == "tablet":
		return can["usb"], nil
	case family == "usb" && key != family:
		return can["usb"] && hotUSB(g.Conf["ostype"]), nil
	case key == "vcpus":
		return can["cpu"], nil
	case key == "balloon":
		old, set := g.Conf[key]
		return (!set || old != "0") == (value != "0"), nil
	case family == "net":
		return plugsNet(c.W, g, key, value, can["network"])
	case perl.IsDrive(key):
		return plugsDrive(c, g, key, value, can["disk"])
	case key == "memory":
		return can["memory"] && g.Conf["numa"] == "1", nil
	case key == "agent":
		return plugsAgent(g.Conf[key], value), nil
	default:
		return false, nil
	}
}

// plugsNet: a bridge or VLAN can be changed under the guest, another device
// only by unplugging (vmconfig_update_net).
func plugsNet(w *core.World, g *core.Guest, key, value string, hot bool) (bool, error) {
	after := perl.ParseProperty(key, value)
	there := after["bridge"] == "" || slices.Contains(w.Bridges, after["bridge"])
	if old := g.Conf[key]; old != "" {
		before := perl.ParseProperty(key, old)
		same := before["bridge"] != "" && after["bridge"] != ""
		for _, option := range []string{"model", "macaddr", "queues", "mtu"} {
			same = same && before[option] == after[option]
		}
		switch {
		case same && !there:
			return false, perl.Fail("bridge '%s' does not exist", after["bridge"])
		case same && guests.TrunkTrouble(w, g.Node, after) != "":
			return false, perl.Fail("%s", guests.TrunkTrouble(w, g.Node, after))
		case same:
			return true, nil
		}
	}
	if err := mtuTrouble(w, g.Node, key, after); hot && there && err != nil {
		return false, err
	}
	if hot && (!there || guests.TrunkTrouble(w, g.Node, after) != "") {
		return false, perl.Fail("VM %d qmp command 'netdev_add' failed - network script /usr/libexec/qemu-server/pve-bridge-hotplug failed with status 512", g.Vmid)
	}
	return hot, nil
}

// plugsAgent: of the agent only fstrim_cloned_disks may change.
func plugsAgent(old, value string) bool {
	if old == "" {
		return false
	}
	before, after := perl.ParseProperty("agent", old), perl.ParseProperty("agent", value)
	delete(before, "fstrim_cloned_disks")
	delete(after, "fstrim_cloned_disks")
	return maps.Equal(before, after)
}

// plugsDrive follows vmconfig_update_disk.
func plugsDrive(c *core.Call, g *core.Guest, key, value string, hot bool) (bool, error) {
	family := perl.FamilyOf(key)
	if family == "efidisk" || family == "tpmstate" {
		return false, nil
	}
	d := perl.ParseDrive(key, value)
	old, attached := g.Conf[key]
	if !attached {
		if !hot || family == "ide" || family == "sata" {
			return false, nil
		}
		if d.File == "none" || d.File == "cdrom" { // activate_volumes in PVE/Storage.pm takes a volume only
			return false, perl.Fail("unable to parse volume ID '%s'", d.File)
		}
		g.Run.Disks[key] = true
		return true, nil
	}
	before := perl.ParseDrive(key, old)
	switch {
	case before.Cdrom() != d.Cdrom():
		return false, perl.Fail("unable to change media type")
	case before.Cdrom():
		if before.Cloudinit() && d.File == "none" {
			unuse(c.W, g, before)
		}
		return true, nil
	case before.File != d.File:
		if !hot || family == "ide" || family == "sata" {
			return false, nil
		}
		unuse(c.W, g, before)
		return true, nil
	}
	for _, option := range []string{"aio", "cache", "discard", "iothread", "product", "queues", "ro", "ssd", "vendor"} {
		if before.Opts[option] != d.Opts[option] {
			return false, nil
		}
	}
	return true, nil
}
