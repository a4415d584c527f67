package guest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Disks of VMs and mount points of containers have the same life cycle. The ownership tag records
// the slot of each. One that leaves the files stays with its guest as an unused volume, the
// ownership tag records which one, and under the same name it is attached again. A running guest
// may keep using it until its next restart.

// unexplainedVolumes lists, for a message, the unused volumes of the guest whose disk the ownership
// tag does not name; "" for none.
func (o *Observation) unexplainedVolumes() string {
	known := slices.Collect(maps.Values(o.Tag.Detached)) // they belong to other disks
	for name, id := range o.Tag.Volumes {
		if slot := o.Tag.Slots["disk."+name]; o.Config.Next[slot] == "" {
			known = append(known, id)
		}
	}
	var out []string
	for key, val := range o.Config.Next {
		if strings.HasPrefix(key, "unused") && !slices.Contains(known, api.VolumeOf(val)) {
			out = append(out, fmt.Sprintf("%s (%s)", key, api.VolumeOf(val)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// VolumeToReattach is the volume of a disk that is not attached, if the ownership tag says which
// one it is; else "". The volumes that the tag lists are as old as its last write: people may have
// moved a volume since, which leaves the old one behind. So they do not count beside unused volumes
// that the tag does not know.
func (o *Observation) VolumeToReattach(name string) string {
	id, slot := o.Tag.Detached[name], o.Tag.Slots["disk."+name]
	if id == "" && o.unexplainedVolumes() == "" && o.Config.Next[slot] == "" && o.Config.Now[slot] == "" {
		id = o.Tag.Volumes[name]
	}
	if id == "" || api.UnusedKey(o.Config.Next, id) == "" {
		return ""
	}
	return id
}

// Volume is a disk of a VM or a mount point of a container.
type Volume struct {
	Name, Storage string
	Size          int  // GiB; 0 if the files leave it open
	Remove        bool // its data are removed with it
	diskValue
}

// diskValue has the values that the key of a disk may get.
type diskValue interface {
	// NewValue orders a new volume for a slot.
	NewValue(slot string) string
	// AttachValue attaches an unused volume at a slot.
	AttachValue(volume, slot string) string
	// KeepValue keeps the volume of the present value.
	KeepValue(present string) string
}

func (d Disk) volume() Volume { return Volume{d.Name, d.Storage, d.Size, d.Remove, d} }

func (d CTDisk) volume() Volume { return Volume{d.Name, d.Storage, d.Size, d.Remove, d} }

// Volumes are the disks of a guest, as they are wanted or as they were observed. The Observation is
// shared with the guest; that of wanted ones is empty.
type Volumes struct {
	*Observation
	Addr      model.Address // of a wanted guest
	List      []Volume
	protected bool // PVE refuses to remove the guest and its disks
}

// Volumes implements Guest.
func (v VMTarget) Volumes() *Volumes { return volumesOf(v.Resolution, nil, v.Disks, v.Protection) }

// Volumes implements Guest.
func (v VMState) Volumes() *Volumes { return volumesOf(nil, v.Observation, v.Disks, v.Protection) }

// Volumes implements Guest.
func (c CTTarget) Volumes() *Volumes { return volumesOf(c.Resolution, nil, c.Disks, c.Protection) }

// Volumes implements Guest.
func (c CTState) Volumes() *Volumes { return volumesOf(nil, c.Observation, c.Disks, c.Protection) }

// notObserved is the observation of a resource that is only wanted. It is read-only.
var notObserved Observation

// volumesOf joins the disks of a guest with its resolution or its observation; the other one is
// nil.
func volumesOf[D interface{ volume() Volume }](wanted *Resolution, seen *Observation, disks []D, protected bool) *Volumes {
	out := &Volumes{Observation: seen, List: make([]Volume, len(disks)), protected: protected}
	if wanted != nil {
		out.Addr = wanted.OwnerTag.Addr()
	}
	if seen == nil {
		out.Observation = &notObserved
	}
	for i, d := range disks {
		out.List[i] = d.volume()
	}
	return out
}

// Has reports whether there is a disk with a name.
func (v *Volumes) Has(name string) bool {
	_, ok := Find(v.List, name)
	return ok
}

// Removes are the names of the disks whose data are removed with them, sorted.
func (v *Volumes) Removes() []string {
	var out []string
	for _, d := range v.List {
		if d.Remove {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

// stillThere are the disks that left the files, whose data are to be removed and still exist:
// detaching them had to wait for a restart, or its answer was lost. A protected guest has none,
// since PVE would refuse.
func (v *Volumes) stillThere() []string {
	var out []string
	for _, name := range v.Tag.Removes {
		if id := v.Tag.Detached[name]; id != "" && !v.protected && api.UnusedKey(v.Config.Next, id) != "" && !v.Has(name) {
			out = append(out, name)
		}
	}
	return out
}

// note says what happens to the data of disks if the guest becomes what is wanted.
func (v *Volumes) note(want *Volumes) []string {
	var out []string
	for _, name := range append(v.Removes(), v.stillThere()...) {
		if !want.Has(name) {
			out = append(out, "the data of disk "+name+" are removed")
		}
	}
	for _, w := range want.List {
		id := v.VolumeToReattach(w.Name)
		slot := v.Tag.Slots["disk."+w.Name]
		switch {
		case slot != "" && !v.Has(w.Name) && v.Config.Now[slot] != "" && v.Config.Next[slot] == "": // noteReverts says it
		case id == "" || v.Has(w.Name):
		case v.Tag.Slots["disk."+w.Name] != "" && v.Tag.Detached[w.Name] == "":
			out = append(out, fmt.Sprintf("disk %s was detached by hand, and is attached again with its data (%s)", w.Name, id))
		default:
			out = append(out, fmt.Sprintf("disk %s comes back with its data (%s)", w.Name, id))
		}
	}
	return out
}

// refuse lists the changes of disks that are not possible on a guest that stays.
func (v *Volumes) refuse(want *Volumes, at api.GuestRef) []model.Problem {
	var out []model.Problem
	refuse := func(path, summary, detail string, args ...any) {
		out = append(out, model.Problem{Path: path, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
	}
	for _, w := range want.List {
		h, there := Find(v.List, w.Name)
		path := "disk." + w.Name
		slot := v.Tag.Slots[path]
		switch {
		case !there && v.VolumeToReattach(w.Name) != "":
		case !there && api.VolumeOf(v.Config.Now[slot]) != "" && slot != "": // its detachment is pending, and is reverted
		case !there && w.Name == "root":
			refuse(path, "its root disk is gone", "slot %s of %s is empty: attach the disk again, or remove the guest so that it is recreated", slot, at)
		case !there && slot != "" && v.unexplainedVolumes() != "" && api.VolumeOf(v.Config.Now[slot]) == "": // else it is still in use, and stays
			refuse(path, "disk "+w.Name+" was detached by hand",
				"its data may be on what is attached nowhere: %s of %s. Its ownership tag does not say which one it is, so none is attached and no empty disk is put in its place: `%s set %d --%s VOLUME%s` on node %s brings it back; or remove them",
				v.unexplainedVolumes(), at, at.Tool(), at.VMID, slot, pick(at.LXC, ",mp=PATH", ""), at.Node)
		case !there && slot == "" && (api.IsDrive(w.Name) || api.IsMount(w.Name)) && v.Config.Next[w.Name] != "":
			refuse(path, "slot "+w.Name+" is taken", "%s has %s there: choose another name for the disk, or detach that one first", at, api.VolumeOf(v.Config.Next[w.Name]))
		case there && w.Size != 0 && w.Size < h.Size:
			refuse(path+".size", fmt.Sprintf("disk %s cannot shrink from %d to %d GiB", w.Name, h.Size, w.Size), "PVE only grows disks: set it to at least %d, or replace the guest", h.Size)
		}
	}
	for _, h := range v.List {
		if v.protected && !want.Has(h.Name) {
			refuse("disk", fmt.Sprintf("it is protected, and so is its disk %s", h.Name), "set protection = false in the files, apply it, then remove the disk")
		}
	}
	return append(out, v.refuseSnapshots(want, at)...)
}

// refuseUnproven lists the disks whose data are to be removed although nothing proves that their guest is ours.
func (v *Volumes) refuseUnproven(want *Volumes, is model.Unproven) []model.Problem {
	var out []model.Problem
	for _, name := range append(v.Removes(), v.stillThere()...) {
		if is.Why != "" && !want.Has(name) {
			out = append(out, model.Problem{Path: "disk." + name, Summary: fmt.Sprintf("the data of disk %s would be removed, and %s", name, is.Why), Detail: is.Fix})
		}
	}
	return out
}

// refuseRemoval lists the reasons why a guest cannot be removed or recreated.
func (v *Volumes) refuseRemoval(g *model.Guest) []model.Problem {
	out := lifecycle.RefuseRemoval(v.Tag, g, v.Config.Next)
	if v.protected {
		out = append(out, model.Problem{Path: "protection", Summary: "it is protected", Detail: "set protection = false in the files, apply it, then remove it"})
	}
	return out
}

// DiskStorages are the storages of the disks of all wanted guests, sorted.
func DiskStorages(w *model.Want) []string {
	var out []string
	for _, r := range w.State {
		g := TargetOf(r)
		if g == nil {
			continue
		}
		for _, disk := range g.Volumes().List {
			if disk.Storage != "" && !slices.Contains(out, disk.Storage) {
				out = append(out, disk.Storage)
			}
		}
	}
	slices.Sort(out)
	return out
}
