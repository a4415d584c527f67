package guest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// class implements Target. It refines the declared cost of an attribute by whether the VM runs, and
// by what PVE can change while it does.
func (v VMTarget) class(have *model.Resource, path string, cost model.Class) model.Class {
	w, h := v, StateOf(have).(VMState)
	head, option, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(option, ".")
	keyed := VMAttributes().ByName(path)
	switch {
	case IsRevert(w, h, path):
		return model.ClassNone
	case cost.Worse(model.ClassMigrate), cost == model.ClassMigrate && w.Volumes().Has(name) && h.Volumes().Has(name):
		return cost
	case head == "options" && api.HoldsState(option) && w.Options[option] != "" && h.Options[option] != "":
		return model.ClassMigrate
	case path == "power" && w.Power == "stopped":
		return model.ClassRestart
	case path == "power", !have.Guest.Running:
		return model.ClassNone
	case path == "pending":
		return byRestart(w.Restart)
	case w.ChangesCloudInit(h, path):
		return byRestart(w.Restart) // PVE stores it at once, the guest reads it when it boots
	case head == "options":
		cost = h.plug(option, w.Options[option])
	case keyed != nil && keyed.Cost == model.ClassRestart:
		cost = h.plug(keyed.Key, ParameterText(keyed.Value(w.VM, "")))
	case head == "nic":
		cost = h.plugNIC(w, name)
	case head == "disk":
		cost = h.plugDisk(w, name, attr)
	}
	if cost == model.ClassRestart {
		return byRestart(w.Restart)
	}
	return cost
}

// byRestart is the class of a change that a running guest gets only by a restart.
func byRestart(allowed string) model.Class {
	return pick(allowed == "allowed", model.ClassRestart, model.ClassPending)
}

// plug is the class of a change of a key of a running VM (PVE/QemuServer.pm,
// vmconfig_hotplug_pending). value is the new value; "" if the key is deleted.
func (v VMState) plug(key, value string) model.Class {
	old := v.Config.Now[key]
	if IsCD(key, cmp.Or(value, v.Config.Next[key])) {
		return v.plugCD(key, value)
	}
	hot := false
	switch VMKeys().Family(key) {
	case "cpuunits", "cpulimit":
		hot = true
	case "hotplug": // QEMU must be started with what cpu and memory need
		touches := func(s string) bool { return strings.Contains(s, "cpu") || strings.Contains(s, "memory") }
		hot = !touches(old) && !touches(value)
	case "tablet":
		hot = v.hotplugs("usb")
	case "usb[n]":
		hot = v.hotplugs("usb") && slices.Contains([]string{"l26", "win8", "win10", "win11"}, v.Config.Now["ostype"])
	case "vcpus":
		hot = v.hotplugs("cpu")
	case "balloon": // 0 means without a balloon device
		hot = (old == "0") == (value == "0")
	case "memory":
		hot = v.hotplugs("memory") && v.Config.Now["numa"] == "1"
	default:
		if AppliesAtOnce(key) {
			return model.ClassNone
		}
	}
	if hot {
		return model.ClassHot
	}
	return model.ClassRestart
}

// plugNIC is the class of a change of a network card. PVE always changes the settings of a card in
// place; it replaces the card only with the hotplug feature network.
func (v VMState) plugNIC(w VMTarget, name string) model.Class {
	n, wanted := Find(w.NICs, name)
	slot := v.Tag.Slots["nic."+name]
	now, then := v.Config.Now[slot], v.Config.Next[slot]
	if v.hotplugs("network") || wanted && now != "" && then != "" && !replugged(now, n.Text(then)) {
		return model.ClassHot
	}
	return model.ClassRestart
}

// plugDisk is the class of a change of a disk. PVE adds and removes SCSI and virtio disks only with
// the hotplug feature disk; it always grows a disk.
func (v VMState) plugDisk(w VMTarget, name, attr string) model.Class {
	_, here := Find(v.Disks, name)
	wd, there := Find(w.Disks, name)
	slot := v.Tag.Slots["disk."+name]
	switch {
	case attr == "remove" && here == there:
		return model.ClassNone
	case attr == "bus" && here && there:
		return model.ClassRestart
	case here && there, !here && !there:
		return model.ClassHot
	case there:
		slot = cmp.Or(wd.Bus, "scsi")
	}
	if v.hotplugs("disk") && api.BusOf(slot) != "sata" {
		return model.ClassHot
	}
	return model.ClassRestart
}

// hotplugs reports whether the VM has a hotplug feature. 1 and no value mean the default.
func (v VMState) hotplugs(feature string) bool {
	set := v.Config.Now["hotplug"]
	if set == "" || set == "1" {
		set = "network,disk,usb"
	}
	return slices.Contains(strings.Split(set, ","), feature)
}

// recreates implements State.
func (v VMState) recreates(want Target) bool {
	w := want.(VMTarget)
	return w.Image != v.Image || w.Template != v.Template || asksToRecreate(w, v)
}

// refuse implements State.
func (v VMState) refuse(want Target, have *model.Resource) []model.Problem {
	w := want.(VMTarget)
	return slices.Concat(refuseBus(v, w, have), refuseCDs(w, v), refuseStates(w, v))
}
