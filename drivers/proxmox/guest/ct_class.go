package guest

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/engine/model"
)

// hotCT take effect on a running container at once; fastCT concern the host only
// (pve-container, PVE/LXC/Config.pm: vmconfig_hotplug_pending and its fast-plug list).
var (
	hotCT  = map[string]bool{"cpulimit": true, "cpuunits": true}
	fastCT = map[string]bool{"hookscript": true}
)

// class refines what a change costs by whether the container runs.
func (c CTTarget) class(have *model.Resource, path string, cost model.Class) model.Class {
	w, h := c, StateOf(have).(CTState)
	head, name, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(name, ".")
	_, wanted := Find(w.Disks, name)
	_, there := Find(h.Disks, name)
	switch {
	case IsRevert(w, h, path):
		return model.ClassNone
	case cost == model.ClassMigrate && wanted && there, cost.Worse(model.ClassMigrate):
		return cost
	case path == "power" && w.Power == "stopped":
		return model.ClassRestart
	case head == "disk" && (attr == "remove" || !wanted && drives.UnusedKey(h.Config.Next, h.Tag.Detached[name]) != ""):
		return model.ClassNone // only the ownership tag says it; or it is mounted nowhere
	case path == "power", !have.Guest.Running, head == "options" && fastCT[name]:
		return model.ClassNone
	case head == "disk" && wanted && (!there || attr == "size"), head == "options" && hotCT[name]:
		return model.ClassHot // a new mount point and a grown one are seen at once, all else of them is not
	case head == "disk":
		cost = model.ClassRestart
	case head == "nic":
		cost = h.plugNIC(w, name, attr)
	}
	if cost == model.ClassRestart {
		return byRestart(w.Restart)
	}
	return cost
}

// plugNIC is what PVE does with a card of a running container. The MTU is that of its
// start; a trunk goes with the cable, which is plugged in anew where one of some other
// settings changes, too (PVE/LXC.pm, update_net and hotplug_net).
func (c CTState) plugNIC(w CTTarget, name, attr string) model.Class {
	n, wanted := Find(w.NICs, name)
	old, there := Find(c.NICs, name)
	slot := cmp.Or(c.Tag.Slots["nic."+name], name)
	switch {
	case !wanted && len(slot) > len("net0"): // PVE unplugs net0 to net9 only (PVE/LXC/Config.pm, vmconfig_hotplug_pending)
		return model.ClassRestart
	case !wanted:
		return model.ClassHot
	case attr == "mtu" && n.MTU != old.MTU:
		return model.ClassRestart
	case attr == "trunks" && there && !n.recabled(old):
		return model.ClassRestart
	default:
		return model.ClassHot
	}
}

// recabled reports whether PVE plugs the cable of a card in anew.
func (n CTNIC) recabled(old CTNIC) bool {
	return n.MAC != "" && n.MAC != old.MAC || n.Bridge != old.Bridge || n.VLAN != old.VLAN || n.Firewall != old.Firewall || n.LinkDown != old.LinkDown
}

func (c CTState) recreates(want Target) bool {
	w := want.(CTTarget)
	return w.Template != c.Template || w.Unprivileged != c.Unprivileged
}

func (c CTState) refuse(want Target, have *model.Resource) []model.Problem {
	var out []model.Problem
	w, h := want.(CTTarget), c
	for _, wd := range w.Disks {
		path := "disk." + wd.Name
		hd, there := Find(h.Disks, wd.Name)
		if there && wd.Storage != hd.Storage && have.Guest.Running && w.Power == "running" && w.Restart != "allowed" {
			out = append(out, model.Problem{
				Path: path + ".storage", Summary: "disk " + wd.Name + " can only be moved while it is stopped",
				Detail: "PVE moves no volume of a running container: set restart = \"allowed\", or power = \"stopped\" for as long as it takes",
			})
		}
		if h.Protection && (!there || !SameMount(wd, hd)) {
			out = append(out, model.Problem{
				Path: path, Summary: fmt.Sprintf("it is protected, and so is its disk %s", wd.Name),
				Detail: "set protection = false in the files, let that be applied, then change the disk",
			})
		}
	}
	return out
}

// note says which data a change takes along, and what PVE stores without the running
// container having it.
func (c CTState) note(want Target, have *model.Resource, paths []string) []string {
	w, h := want.(CTTarget), c
	out := h.Volumes().note(w.Volumes())
	for _, path := range paths {
		head, rest, _ := strings.Cut(path, ".")
		name, attr, _ := strings.Cut(rest, ".")
		if _, stays := Find(w.NICs, name); head == "nic" && stays && have.Guest.Running && h.plugNIC(w, name, attr) == model.ClassRestart {
			out = append(out, "the running container gets "+attr+" of nic "+name+" when it starts again, which PVE does not list as pending")
		}
	}
	return out
}
