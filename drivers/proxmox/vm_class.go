package proxmox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// hotOptions take effect on a running guest at once; atOnce concern the host only
// (qemu-server, QemuServer.pm: vmconfig_hotplug_pending and its fast-plug list).
var (
	hotOptions = map[string]bool{"balloon": true, "cpulimit": true, "cpuunits": true, "shares": true}
	atOnce     = map[string]bool{"hookscript": true, "migrate_downtime": true, "migrate_speed": true, "vmstatestorage": true, "ciupgrade": true, "cicustom": true, "citype": true, "cipassword": true}
)

// classVM refines what a change costs by whether the guest runs.
func classVM(want, have *model.Resource, path string, cost model.Class) model.Class {
	w, h := want.Spec.(*VM), have.Spec.(*VM)
	option, _ := strings.CutPrefix(path, "options.")
	switch {
	case cost.Worse(model.ClassMigrate), cost == model.ClassMigrate && w.hasDisk(path) && h.hasDisk(path):
		return cost
	case path == "power" && w.Power == "stopped":
		return model.ClassRestart
	case strings.HasPrefix(path, "disk.") && (!w.hasDisk(path) || !h.hasDisk(path)) && h.hotplugs("disk"):
		return model.ClassHot // added or detached, wherever it lies
	case path == "power", !have.Guest.Running, atOnce[option]:
		return model.ClassNone
	case hotOptions[option], path == "memory" && h.hotplugs("memory") && h.observe.now["numa"] == "1":
		return model.ClassHot
	case h.hasNIC(path) && w.hasNIC(path) && (strings.HasSuffix(path, ".bridge") || strings.HasSuffix(path, ".vlan")):
		return model.ClassHot // the cable is moved, the card stays
	case strings.HasPrefix(path, "nic.") && cost == model.ClassHot && !h.hotplugs("network"),
		strings.HasPrefix(path, "disk.") && cost == model.ClassHot && !h.hotplugs("disk"):
		cost = model.ClassRestart
	}
	if cost != model.ClassRestart {
		return cost
	}
	if w.Restart == "allowed" {
		return model.ClassRestart
	}
	return model.ClassPending
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
		replaced = w.Image != h.Image || w.Template != h.Template
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
			case i >= 0 && wd.Size != 0 && wd.Size < h.Disks[i].Size && !replaced:
				out = append(out, model.Problem{
					Path: "disk." + wd.Name + ".size", Summary: fmt.Sprintf("disk %s cannot shrink from %d to %d GiB", wd.Name, h.Disks[i].Size, wd.Size),
					Detail: fmt.Sprintf("PVE only grows disks: set it to at least %d, or replace the guest", h.Disks[i].Size),
				})
			}
		}
	}
	if d := h.mark.Destroy; replaced && d != nil && strings.HasPrefix(d.Policy, "requires_") && !strings.HasPrefix(h.mark.Owner, "cli:") {
		out = append(out, model.Problem{
			Path: "decommission.policy", Summary: "its decommission policy is " + d.Policy,
			Detail: "that is not made for you yet: do it by hand, then set policy = \"allow_immediate_destroy\", let that be applied, and remove it",
		})
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
	for key := range v.observe.next {
		if strings.HasPrefix(key, "unused") {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
