package proxmox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// hotCT take effect on a running container at once; fastCT concern the host only
// (pve-container, PVE/LXC/Config.pm: vmconfig_hotplug_pending and its fast-plug list).
var (
	hotCT  = map[string]bool{"cpulimit": true, "cpuunits": true}
	fastCT = map[string]bool{"hookscript": true}
)

// classCT refines what a change costs by whether the container runs.
func classCT(want, have *model.Resource, path string, cost model.Class) model.Class {
	w, h := want.Spec.(*CT), have.Spec.(*CT)
	head, name, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(name, ".")
	_, wanted := w.disk(name)
	_, there := h.disk(name)
	switch {
	case cost == model.ClassMigrate && wanted && there, cost.Worse(model.ClassMigrate):
		return cost
	case path == "power" && w.Power == "stopped":
		return model.ClassRestart
	case head == "disk" && (attr == "remove" || !wanted && unusedKey(h.observe.next, h.mark.Detached[name]) != ""):
		return model.ClassNone // only the mark says it; or it is mounted nowhere
	case path == "power", !have.Guest.Running, head == "options" && fastCT[name]:
		return model.ClassNone
	case head == "disk" && wanted && (!there || attr == "size"), head == "options" && hotCT[name]:
		return model.ClassHot // a new mount point and a grown one are seen at once, all else of them is not
	case head == "disk":
		cost = model.ClassRestart
	}
	switch {
	case cost != model.ClassRestart:
		return cost
	case w.Restart == "allowed":
		return model.ClassRestart
	default:
		return model.ClassPending
	}
}

// refuseCT says what must not be done to a container even if the files ask for it.
func refuseCT(want, have *model.Resource) []model.Problem {
	h := have.Spec.(*CT)
	var out []model.Problem
	replaced := want == nil
	if want != nil {
		w := want.Spec.(*CT)
		replaced = w.Template != h.Template || w.Unprivileged != h.Unprivileged || want.Guest.VMID != have.Guest.VMID
		if !replaced {
			out = refuseDisks(w, h, have)
		}
	}
	if replaced {
		out = append(out, h.mark.refuse(have.Guest, h.observe.next)...)
	}
	if replaced && h.Protection {
		out = append(out, model.Problem{Path: "protection", Summary: "it is protected", Detail: "set protection = false in the files, let that be applied, then remove it"})
	}
	return out
}

// refuseDisks says what cannot be done to the disks of a container that stays.
func refuseDisks(w, h *CT, have *model.Resource) []model.Problem {
	var out []model.Problem
	refuse := func(path, summary, detail string, args ...any) {
		out = append(out, model.Problem{Path: path, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
	}
	for _, wd := range w.Disks {
		path := "disk." + wd.Name
		hd, there := h.disk(wd.Name)
		slot := h.mark.Slots[path]
		switch {
		case !there && wd.Name == "root":
			refuse(path, "its root disk is gone", "CT %d has no rootfs: attach the volume again, or remove the container so that it is made anew", have.Guest.VMID)
		case !there && slot != "" && h.unused() != "":
			refuse(path, "disk "+wd.Name+" was detached by hand",
				"its data may be on %s of CT %d, so no empty disk is put in its place: attach that one as %s again, or remove it", h.unused(), have.Guest.VMID, slot)
		case there && wd.Size != 0 && wd.Size < hd.Size:
			refuse(path+".size", fmt.Sprintf("disk %s cannot shrink from %d to %d GiB", wd.Name, hd.Size, wd.Size), "PVE only grows disks: set it to at least %d, or replace the container", hd.Size)
		case there && wd.Storage != hd.Storage && have.Guest.Running && w.Power == "running" && w.Restart != "allowed":
			refuse(path+".storage", "disk "+wd.Name+" can only be moved while it is stopped", "PVE moves no volume of a running container: set restart = \"allowed\", or power = \"stopped\" for as long as it takes")
		case h.Protection && (!there || !sameMount(wd, hd)):
			refuse(path, fmt.Sprintf("it is protected, and so is its disk %s", wd.Name), "set protection = false in the files, let that be applied, then change the disk")
		}
	}
	for _, hd := range h.Disks {
		if _, wanted := w.disk(hd.Name); h.Protection && !wanted {
			refuse("disk", fmt.Sprintf("it is protected, and so is its disk %s", hd.Name), "set protection = false in the files, let that be applied, then remove the disk")
		}
	}
	return out
}

// sameMount reports whether two disks of one name are mounted alike, wherever they lie.
func sameMount(a, b CTDisk) bool {
	return a.Path == b.Path && a.Backup == b.Backup && slices.Equal(memberTexts(a.Options), memberTexts(b.Options))
}
