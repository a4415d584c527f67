package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// atOnce are keys without effect on a running guest, so that PVE changes them at
// once (qemu-server, PVE/QemuServer.pm, $fast_plug_option).
var atOnce = map[string]bool{
	"description": true, "migrate_downtime": true, "migrate_speed": true, "name": true, "onboot": true, "protection": true,
	"shares": true, "startup": true, "tags": true, "vmstatestorage": true,
}

// classVM refines what a change costs by whether the guest runs, and by what PVE
// can do while it does.
func classVM(want, have *model.Resource, path string, cost model.Class) model.Class {
	w, h := want.Spec.(*VM), have.Spec.(*VM)
	option, _ := strings.CutPrefix(path, "options.")
	head, _, _ := strings.Cut(path, ".")
	switch {
	case cost.Worse(model.ClassMigrate), cost == model.ClassMigrate && w.hasDisk(path) && h.hasDisk(path):
		return cost
	case head == "options" && stateDrive(option) && w.Options[option] != "" && h.Options[option] != "":
		return model.ClassMigrate
	case path == "power" && w.Power == "stopped":
		return model.ClassRestart
	case path == "power", !have.Guest.Running:
		return model.ClassNone
	case path == "pending":
		return w.restarts()
	case seeds(want, have, path):
		return w.restarts() // the host has it at once, the guest reads it when it boots
	case head == "options":
		cost = h.plug(option, w.Options[option])
	case path == "cores", path == "memory", path == "agent":
		cost = h.plug(path, "x")
	case head == "nic":
		cost = h.plugNIC(w, path)
	case head == "disk":
		cost = h.plugDisk(w, path)
	}
	if cost == model.ClassRestart {
		return w.restarts()
	}
	return cost
}

// restarts is the class of what a running guest only gets by a restart.
func (v *VM) restarts() model.Class {
	if v.Restart == "allowed" {
		return model.ClassRestart
	}
	return model.ClassPending
}

// plug is what PVE does with a key of a running guest, whose present value is known;
// "" as its new one takes it away (vmconfig_hotplug_pending).
func (v *VM) plug(key, value string) model.Class {
	old := v.observe.now[key]
	hot := false
	switch family(key) {
	case "cpuunits", "cpulimit":
		hot = true
	case "hotplug": // QEMU must be started with what these two need
		touches := func(s string) bool { return strings.Contains(s, "cpu") || strings.Contains(s, "memory") }
		hot = !touches(old) && !touches(value)
	case "tablet":
		hot = v.hotplugs("usb")
	case "usb[n]":
		hot = v.hotplugs("usb") && slices.Contains([]string{"l26", "win8", "win10", "win11"}, v.observe.now["ostype"])
	case "vcpus":
		hot = v.hotplugs("cpu")
	case "balloon": // 0 is no balloon device at all
		hot = (old == "0") == (value == "0")
	case "memory":
		hot = v.hotplugs("memory") && v.observe.now["numa"] == "1"
	default:
		if atOnce[key] {
			return model.ClassNone
		}
	}
	if hot {
		return model.ClassHot
	}
	return model.ClassRestart
}

// plugNIC: another cable in the same card always goes, another card by its feature only.
func (v *VM) plugNIC(w *VM, path string) model.Class {
	cable := strings.HasSuffix(path, ".bridge") || strings.HasSuffix(path, ".vlan")
	if v.hasNIC(path) && w.hasNIC(path) && cable || v.hotplugs("network") {
		return model.ClassHot
	}
	return model.ClassRestart
}

// plugDisk: SCSI and virtio disks come and go by their feature; a disk grows always.
func (v *VM) plugDisk(w *VM, path string) model.Class {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "disk."), ".")
	here, there := v.hasDisk(path), w.hasDisk(path)
	slot := v.mark.Slots["disk."+name]
	switch {
	case strings.HasSuffix(path, ".remove") && here == there:
		return model.ClassNone
	case here && there, !here && !there:
		return model.ClassHot
	case there:
		i := slices.IndexFunc(w.Disks, func(d Disk) bool { return d.Name == name })
		slot = or(w.Disks[i].Bus, "scsi")
	}
	if v.hotplugs("disk") && busOf(slot) != "sata" {
		return model.ClassHot
	}
	return model.ClassRestart
}

// hasDisk reports whether a machine has the disk that a path is about.
func (v *VM) hasDisk(path string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "disk."), ".")
	return slices.ContainsFunc(v.Disks, func(d Disk) bool { return d.Name == name })
}

// hasNIC does the same for a network card.
func (v *VM) hasNIC(path string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "nic."), ".")
	return strings.HasPrefix(path, "nic.") && slices.ContainsFunc(v.NICs, func(n NIC) bool { return n.Name == name })
}

// hotplugs reads the guest's hotplug features; 1 and absence mean the default.
func (v *VM) hotplugs(feature string) bool {
	set := v.observe.now["hotplug"]
	if set == "" || set == "1" {
		set = "network,disk,usb"
	}
	return slices.Contains(strings.Split(set, ","), feature)
}

// refuseVM says what must not be done to a guest even if the files ask for it.
func refuseVM(want, have *model.Resource) []model.Problem {
	h := have.Spec.(*VM)
	var out []model.Problem
	replaced := want == nil
	if want != nil {
		w := want.Spec.(*VM)
		replaced = w.Image != h.Image || w.Template != h.Template || want.Guest.VMID != have.Guest.VMID
		for _, wd := range w.Disks {
			i := slices.IndexFunc(h.Disks, func(d Disk) bool { return d.Name == wd.Name })
			switch {
			case i < 0 && wd.Name != "root" && !replaced && h.mark.Slots["disk."+wd.Name] != "" && h.unused() != "":
				out = append(out, model.Problem{
					Path: "disk." + wd.Name, Summary: "disk " + wd.Name + " was detached by hand",
					Detail: fmt.Sprintf("its data may be on %s of VM %d, so no empty disk is put in its place: attach that one as %s again, or remove it", h.unused(), have.Guest.VMID, h.mark.Slots["disk."+wd.Name]),
				})
			case i < 0 && wd.Name == "root" && !replaced:
				out = append(out, model.Problem{
					Path: "disk.root", Summary: "its root disk is gone",
					Detail: fmt.Sprintf("slot %s of VM %d is empty: attach the disk again, or remove the guest so that it is made anew", h.mark.Slots["disk.root"], have.Guest.VMID),
				})
			case i >= 0 && wd.Bus != "" && wd.Bus != h.Disks[i].Bus && !replaced:
				out = append(out, model.Problem{
					Path: "disk." + wd.Name + ".bus", Summary: fmt.Sprintf("disk %s cannot go from bus %s to %s", wd.Name, h.Disks[i].Bus, wd.Bus),
					Detail: "the guest may know it by its place only: take the disk out of the files, let that be applied, and declare it again with the other bus; its data come back",
				})
			case i >= 0 && wd.Size != 0 && wd.Size < h.Disks[i].Size && !replaced:
				out = append(out, model.Problem{
					Path: "disk." + wd.Name + ".size", Summary: fmt.Sprintf("disk %s cannot shrink from %d to %d GiB", wd.Name, h.Disks[i].Size, wd.Size),
					Detail: fmt.Sprintf("PVE only grows disks: set it to at least %d, or replace the guest", h.Disks[i].Size),
				})
			}
		}
	}
	if want != nil && !replaced {
		out = append(out, refuseStates(want.Spec.(*VM), h)...)
	}
	if replaced {
		out = append(out, h.mark.refuse(have.Guest, h.observe.next)...)
	}
	for _, hd := range h.Disks {
		if h.Protection && !replaced && !want.Spec.(*VM).hasDisk("disk."+hd.Name) {
			out = append(out, model.Problem{
				Path: "disk", Summary: fmt.Sprintf("it is protected, and so is its disk %s", hd.Name),
				Detail: "set protection = false in the files, let that be applied, then remove the disk",
			})
		}
	}
	if replaced && h.Protection {
		out = append(out, model.Problem{Path: "protection", Summary: "it is protected", Detail: "set protection = false in the files, let that be applied, then remove it"})
	}
	return out
}

// unused names the volumes that belong to the guest and are attached nowhere; "" for none.
func (v *VM) unused() string {
	var out []string
	known := slices.Collect(maps.Values(v.mark.Detached)) // of other disks: they explain nothing
	for key, val := range v.observe.next {
		if strings.HasPrefix(key, "unused") && !slices.Contains(known, volumeOf(val)) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
