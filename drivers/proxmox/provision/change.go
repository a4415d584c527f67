package provision

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
)

// change collects what the changes of a step mean for PVE, as far as VMs and containers share it.
type change struct {
	to, from *guest.Volumes // wanted and observed
	tag      owner.Tag      // the ownership tag after the change
	notes    string         // the description after the change, without the tag
	lastSeen lastSeen
	id       owner.Identity // signs the tag

	patch             // the keys to write
	changesPower bool // the guest is to be started, resumed or stopped

	move       map[string]string       // slot → storage
	grow       map[string]int          // slot → GiB
	reattach   map[string]guest.Volume // slot → disk whose former volume is attached again
	free       map[string]string       // name of a disk → volume to free
	oldSlot    map[string]string       // name of a disk that goes to another bus → its slot so far
	newVolumes bool                    // volumes are created, whose names are known only afterwards
}

func newChange(id owner.Identity, at api.GuestRef, to, from *guest.Volumes, m owner.Tag) *change {
	return &change{
		id: id, to: to, from: from, tag: m, patch: patch{api.Params{}, map[string]bool{}, map[string]bool{}},
		move: map[string]string{}, grow: map[string]int{}, reattach: map[string]guest.Volume{}, free: map[string]string{}, oldSlot: map[string]string{},
		lastSeen: lastSeen{at: at, addr: to.Addr, cfg: from.Config, changedByUs: map[string]bool{}},
	}
}

// setOrDelete sets a key, or deletes it if the value is empty and the guest has it.
func (c *change) setOrDelete(key, val string) {
	if _, there := c.from.Config.Next[key]; val != "" || there {
		c.patch.setOrDelete(key, val)
	}
}

// setAttribute sets the key of an attribute, or deletes it.
func (c *change) setAttribute(name string, as guest.AttributeTable, spec any) {
	if name == "power" {
		c.changesPower = true
		return
	}
	a := as.ByName(name)
	if a == nil || a.Created { // in the ownership tag, or only observed
		return
	}
	if val := a.Value(spec, c.from.Config.Current(a.Key)); val == "" {
		c.setOrDelete(a.Key, "")
	} else {
		c.set[a.Key] = val
	}
}

// changeDisk adds the change of an attribute of a disk.
func (c *change) changeDisk(name, attr string) {
	w, wanted := guest.Find(c.to.List, name)
	h, there := guest.Find(c.from.List, name)
	slot, old := c.tag.Slots["disk."+name], c.from.Tag.Slots["disk."+name]
	switch {
	case c.oldSlot[name] != "": // moveToBus has added it
	case !wanted && !there: // detached before; its data are to be removed
		c.free[name] = c.from.Tag.Detached[name]
	case !wanted: // detached: PVE keeps the volume as an unused one
		c.del[old] = true
		c.tag.Detached[name] = api.VolumeOf(c.from.Config.Next[old])
		if h.Remove {
			c.free[name] = c.tag.Detached[name]
		}
	case !there:
		c.set[slot] = c.attachedValue(w, slot)
		_, back := c.reattach[slot]
		c.newVolumes = c.newVolumes || !back
	case attr == "remove": // only the ownership tag records it
	case attr == "size":
		c.grow[slot] = w.Size
	case attr == "storage":
		c.move[slot] = w.Storage
	default:
		c.set[slot] = w.KeepValue(c.from.Config.Current(slot))
	}
}

// attachedValue is the value for a disk that is to be attached: its former volume if the guest
// still has that, else the order for a new one.
func (c *change) attachedValue(w guest.Volume, slot string) string {
	id, o := cmp.Or(c.from.Tag.Detached[w.Name], c.from.VolumeToReattach(w.Name)), c.from.Config
	if id == "" && c.from.Tag.Slots["disk."+w.Name] == slot { // detached by hand, and in use until the next restart
		id = api.VolumeOf(o.Now[slot])
	}
	switch {
	case id == "":
	case api.VolumeOf(o.Now[slot]) == id: // its detachment is pending
		c.reattach[slot] = w
		return w.KeepValue(o.Now[slot])
	case api.UnusedKey(o.Next, id) != "":
		c.reattach[slot] = w
		return w.AttachValue(id, slot)
	}
	return w.NewValue(slot)
}

// describe writes notes and ownership tag if either differs. The tag also has slots, options and
// detached disks, which the other changes may have moved.
func (c *change) describe(notes string, options map[string]string) {
	c.notes, c.tag.Options = notes, slices.Sorted(maps.Keys(options))
	c.tag.Volumes = c.from.Tag.Volumes // a difference in them alone is not written
	c.carryDetached(false)
	text := func() string { return c.id.Describe(notes, c.tag, c.lastSeen.at, c.from.Config) }
	if text() == strings.TrimRight(c.from.Config.Description(), " \t\r\n") {
		return
	}
	c.carryDetached(true)
	c.tag.Volumes = c.knownVolumes()
	c.set["description"] = text()
}

// carryDetached carries over what the ownership tag records of detached disks, and of disks whose
// data are removed. With prune, it drops those that the guest does not have any more; without, the
// tag stays as it is, so that this alone does not cause a write.
func (c *change) carryDetached(prune bool) {
	m, old := &c.tag, c.from.Tag
	for name, id := range old.Detached {
		gone := prune && api.UnusedKey(c.from.Config.Next, id) == "" && api.AttachedAt(c.from.Config.Now, id) == ""
		if !gone && !c.to.Has(name) {
			m.Detached[name] = cmp.Or(m.Detached[name], id)
		} else if m.Detached[name] == id {
			delete(m.Detached, name)
		}
	}
	m.Removes = c.to.Removes()
	for _, name := range old.Removes {
		if m.Detached[name] != "" {
			m.Removes = append(m.Removes, name)
		}
	}
	slices.Sort(m.Removes)
	m.Removes = slices.Compact(m.Removes)
}
