package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/removal"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Disks of VMs and mount points of containers have the same life: their slot is
// remembered in the ownership tag; one that leaves the files stays with its guest as an unused
// volume, the ownership tag remembers which, and under the same name it comes back. A running
// guest may hold on to it until its next restart.

// unused names the volumes that belong to the guest and are attached nowhere, as far
// as its ownership tag does not say what they are; "" for none.
func (o *observation) unused() string {
	known := slices.Collect(maps.Values(o.tag.Detached)) // of other disks: they explain nothing
	for name, id := range o.tag.Volumes {
		if slot := o.tag.Slots["disk."+name]; o.observe.Next[slot] == "" {
			known = append(known, id)
		}
	}
	var out []string
	for key, val := range o.observe.Next {
		if strings.HasPrefix(key, "unused") && !slices.Contains(known, property.VolumeOf(val)) {
			out = append(out, fmt.Sprintf("%s (%s)", key, property.VolumeOf(val)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// returns gives the volume of a disk that is not attached, where the ownership tag proves which
// it was; "" where it does not. What the ownership tag noted when it was written last may be
// older than what people did since (a volume moved by hand leaves its old one behind):
// so beside volumes that the ownership tag does not know it proves nothing.
func (o *observation) returns(name string) string {
	id, slot := o.tag.Detached[name], o.tag.Slots["disk."+name]
	if id == "" && o.unused() == "" && o.observe.Next[slot] == "" && o.observe.Now[slot] == "" {
		id = o.tag.Volumes[name]
	}
	if id == "" || drives.UnusedKey(o.observe.Next, id) == "" {
		return ""
	}
	return id
}

// device is the name that a key of PVE has in the files by the ownership tag; "" for none.
func (o *observation) device(key string) string {
	for name, slot := range o.tag.Slots {
		if slot == key {
			return name
		}
	}
	return ""
}

// volume is a disk of a VM or of a container.
type volume struct {
	name, storage string
	size          int // GiB; 0 if nothing is said of it
	remove        bool
	attachable
}

// attachable is what PVE is sent for a disk.
type attachable interface {
	Order(slot string) string          // for a new volume
	attach(volume, slot string) string // for one that is there and attached nowhere
	keep(value string) string          // for the one of a value
}

// find gives the block of a name.
func find[B interface{ label() string }](blocks []B, name string) (block B, ok bool) {
	for _, b := range blocks {
		if b.label() == name {
			return b, true
		}
	}
	return block, false
}

// rootFirst puts the root disk in front; where no file declares it, it is added.
func rootFirst[B interface{ label() string }](disks []B, root B) []B {
	if i := slices.IndexFunc(disks, func(d B) bool { return d.label() == root.label() }); i >= 0 {
		root = disks[i]
		disks = slices.Delete(disks, i, i+1)
	}
	return slices.Insert(disks, 0, root)
}

// byName sorts blocks as the files' are.
func byName[B interface{ label() string }](blocks []B) {
	slices.SortFunc(blocks, func(a, b B) int { return model.CompareNames(a.label(), b.label()) })
}

func (d Disk) label() string   { return d.Name }
func (d CTDisk) label() string { return d.Name }
func (n NIC) label() string    { return n.Name }
func (n CTNIC) label() string  { return n.Name }
func (v volume) label() string { return v.name }

func (d Disk) volume() volume { return volume{d.Name, d.Storage, d.Size, d.Remove, d} }

func (d CTDisk) volume() volume { return volume{d.Name, d.Storage, d.Size, d.Remove, d} }

// volumes are the disks of a guest, as they are wanted or as they were observed.
type volumes struct {
	observation
	addr      model.Address // of the guest that is wanted
	list      []volume
	protected bool // so that PVE lets none go
}

func (v vmTarget) volumes() *volumes { return volumesOf(v.resolution, nil, v.Disks, v.Protection) }
func (v vmState) volumes() *volumes  { return volumesOf(nil, v.observation, v.Disks, v.Protection) }
func (c ctTarget) volumes() *volumes { return volumesOf(c.resolution, nil, c.Disks, c.Protection) }
func (c ctState) volumes() *volumes  { return volumesOf(nil, c.observation, c.Disks, c.Protection) }

func volumesOf[D interface{ volume() volume }](wanted *resolution, seen *observation, disks []D, protected bool) *volumes {
	out := &volumes{protected: protected}
	if wanted != nil {
		out.addr = wanted.ownerTag.Addr()
	}
	if seen != nil {
		out.observation = *seen
	}
	for _, d := range disks {
		out.list = append(out.list, d.volume())
	}
	return out
}

func (v *volumes) has(name string) bool {
	_, ok := find(v.list, name)
	return ok
}

// removes are the names of the disks whose data go with them.
func (v *volumes) removes() []string {
	var out []string
	for _, d := range v.list {
		if d.remove {
			out = append(out, d.name)
		}
	}
	slices.Sort(out)
	return out
}

// left are the disks that were taken out of the files with their data, where the
// data are still there: the detaching waited for a restart, or its answer was lost.
// A protected guest keeps them; PVE would refuse.
func (v *volumes) left() []string {
	var out []string
	for _, name := range v.tag.Removes {
		if id := v.tag.Detached[name]; id != "" && !v.protected && drives.UnusedKey(v.observe.Next, id) != "" && !v.has(name) {
			out = append(out, name)
		}
	}
	return out
}

// remembered is the old slots of a guest, with those of disks that come back before
// the restart that would detach them.
func (v *volumes) remembered(want *volumes) map[string]string {
	old := map[string]string{}
	maps.Copy(old, v.tag.Slots)
	for _, d := range want.list {
		key, id := "disk."+d.name, v.tag.Detached[d.name]
		if slot := drives.AttachedAt(v.observe.Now, id); old[key] == "" && id != "" && slot != "" {
			old[key] = slot
		}
	}
	return old
}

// note says which data go where a guest becomes what is wanted.
func (v *volumes) note(want *volumes) []string {
	var out []string
	for _, name := range append(v.removes(), v.left()...) {
		if !want.has(name) {
			out = append(out, "the data of disk "+name+" are removed")
		}
	}
	for _, w := range want.list {
		id := v.returns(w.name)
		slot := v.tag.Slots["disk."+w.name]
		switch {
		case slot != "" && !v.has(w.name) && v.observe.Now[slot] != "" && v.observe.Next[slot] == "": // the note on what is reverted says it
		case id == "" || v.has(w.name):
		case v.tag.Slots["disk."+w.name] != "" && v.tag.Detached[w.name] == "":
			out = append(out, fmt.Sprintf("disk %s was detached by hand, and is attached again with its data (%s)", w.name, id))
		default:
			out = append(out, fmt.Sprintf("disk %s comes back with its data (%s)", w.name, id))
		}
	}
	return out
}

// refuse says what cannot be done to the disks of a guest that stays.
func (v *volumes) refuse(want *volumes, at view.GuestRef) []model.Problem {
	var out []model.Problem
	refuse := func(path, summary, detail string, args ...any) {
		out = append(out, model.Problem{Path: path, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
	}
	for _, w := range want.list {
		h, there := find(v.list, w.name)
		path := "disk." + w.name
		slot := v.tag.Slots[path]
		switch {
		case !there && v.returns(w.name) != "":
		case !there && property.VolumeOf(v.observe.Now[slot]) != "" && slot != "": // its detaching waits for a restart, and is reverted
		case !there && w.name == "root":
			refuse(path, "its root disk is gone", "slot %s of %s is empty: attach the disk again, or remove the guest so that it is recreated", slot, at)
		case !there && slot != "" && v.unused() != "" && property.VolumeOf(v.observe.Now[slot]) == "": // else it is still in use, and kept
			refuse(path, "disk "+w.name+" was detached by hand",
				"its data may be on what is attached nowhere: %s of %s. Its ownership tag does not say which one it is, so none is attached and no empty disk is put in its place: `%s set %d --%s VOLUME%s` on node %s brings it back; or remove them",
				v.unused(), at, at.Tool(), at.VMID, slot, pick(at.LXC, ",mp=PATH", ""), at.Node)
		case there && w.size != 0 && w.size < h.size:
			refuse(path+".size", fmt.Sprintf("disk %s cannot shrink from %d to %d GiB", w.name, h.size, w.size), "PVE only grows disks: set it to at least %d, or replace the guest", h.size)
		}
	}
	for _, h := range v.list {
		if v.protected && !want.has(h.name) {
			refuse("disk", fmt.Sprintf("it is protected, and so is its disk %s", h.name), "set protection = false in the files, let that be applied, then remove the disk")
		}
	}
	return append(out, v.snapped(want, at)...)
}

// refuseEnd says what speaks against removing a guest, or making it anew.
func (v *volumes) refuseEnd(g *model.Guest) []model.Problem {
	out := removal.Refuse(v.tag, g, v.observe.Next)
	if v.protected {
		out = append(out, model.Problem{Path: "protection", Summary: "it is protected", Detail: "set protection = false in the files, let that be applied, then remove it"})
	}
	return out
}

// device is one that has a slot: its name in the ownership tag, and how its slots are called.
type device struct{ name, family string }

// slots assigns a slot to every device: those that have one keep it, the others take
// the lowest free one. cfg is the guest that they are for, if there is one already.
func slots(devices []device, cfg view.Config, old map[string]string) map[string]string {
	out, used := map[string]string{}, map[string]bool{}
	for _, c := range []map[string]string{cfg.Next, cfg.Now} {
		for key := range c {
			used[key] = true
		}
	}
	for _, d := range devices { // a slot that is empty since somebody took its device out is still spoken for
		used[old[d.name]] = true
	}
	for _, d := range devices {
		slot, known := old[d.name]
		for i := 0; !known; i++ {
			slot = fmt.Sprintf("%s%d", d.family, i)
			known = !used[slot]
		}
		out[d.name], used[slot] = slot, true
	}
	return out
}

// copied are the slots that a copy has from its template: its root disk and, in their
// order, its cards, be they there or not.
func copied(devices []device, root string) map[string]string {
	out := map[string]string{"disk.root": root}
	for _, d := range devices {
		if d.family == "net" {
			out[d.name] = fmt.Sprintf("net%d", len(out)-1)
		}
	}
	return out
}
