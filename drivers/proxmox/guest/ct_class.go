package guest

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// hotCT are the options that take effect in a running container at once (pve-container,
// PVE/LXC/Config.pm, vmconfig_hotplug_pending).
var hotCT = map[string]bool{"cpulimit": true, "cpuunits": true}

// fastCT are the options that concern only the host (pve-container, PVE/LXC/Config.pm, the fast-plug
// list).
var fastCT = map[string]bool{"hookscript": true}

// class implements Target. It refines the declared cost of an attribute by whether the container
// runs, and by what PVE can change while it does.
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
	case head == "disk" && (attr == "remove" || !wanted && api.UnusedKey(h.Config.Next, h.Tag.Detached[name]) != ""):
		return model.ClassNone // only the ownership tag records it; or it is not mounted
	case path == "power", !have.Guest.Running, head == "options" && fastCT[name]:
		return model.ClassNone
	case head == "disk" && wanted && (!there || attr == "size"), head == "options" && hotCT[name]:
		return model.ClassHot // the container sees a new or grown mount point at once, and no other change
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

// plugNIC is the class of a change of a card of a running container. PVE sets the MTU only at the
// start. It sets trunks when it connects the card again, which it does if one of some other
// settings changes, too (PVE/LXC.pm, update_net and hotplug_net).
func (c CTState) plugNIC(w CTTarget, name, attr string) model.Class {
	n, wanted := Find(w.NICs, name)
	old, there := Find(c.NICs, name)
	slot := cmp.Or(c.Tag.Slots["nic."+name], name)
	switch {
	case !wanted && len(slot) > len("net0"): // PVE removes only net0 to net9 (PVE/LXC/Config.pm, vmconfig_hotplug_pending)
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

// recabled reports whether PVE disconnects a card and connects it again.
func (n CTNIC) recabled(old CTNIC) bool {
	return n.MAC != "" && n.MAC != old.MAC || n.Bridge != old.Bridge || n.VLAN != old.VLAN || n.Firewall != old.Firewall || n.LinkDown != old.LinkDown
}

// recreates implements State.
func (c CTState) recreates(want Target) bool {
	w := want.(CTTarget)
	return w.Template != c.Template || w.Unprivileged != c.Unprivileged || asksToRecreate(w, c)
}

// refuse implements State.
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
		if h.Protection && (!there || !wd.SameMount(hd)) {
			out = append(out, model.Problem{
				Path: path, Summary: fmt.Sprintf("it is protected, and so is its disk %s", wd.Name),
				Detail: "set protection = false in the files, apply it, then change the disk",
			})
		}
	}
	return out
}

// note implements State. It says which data are removed, and what PVE stores although the running
// container does not get it.
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
