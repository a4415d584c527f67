package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A disk goes to another bus while its machine is stopped, in two requests: the first
// detaches it, and notes in the ownership tag which volume it was; the second attaches that
// volume in its new place. Whatever happens between the two, the ownership tag leads a later
// pass to the volume, as it does for a disk that comes back into the files.

// changedBuses are the disks whose bus changes.
func changedBuses(changes []plan.Change) []string {
	var out []string
	for _, c := range changes {
		if rest, ok := strings.CutPrefix(c.Path, "disk."); ok && c.Before != nil && c.After != nil {
			if name, ok := strings.CutSuffix(rest, ".bus"); ok {
				out = append(out, name)
			}
		}
	}
	return out
}

// moveToBus works out the change of a disk's bus.
func (c *change) moveToBus(name string) {
	w, wanted := guest.Find(c.to.List, name)
	_, there := guest.Find(c.from.List, name)
	from, slot := c.from.Tag.Slots["disk."+name], c.tag.Slots["disk."+name]
	if !wanted || !there || from == slot {
		return
	}
	c.oldSlot[name], c.reattach[slot] = from, w
	c.set[slot] = onBus(c.from.Config.Next[from], slot)
}

// onBus is the value of a drive in a slot of another bus: with the settings that it has
// as far as that bus knows them, and those that all disks of ours have.
func onBus(value, slot string) string {
	known := map[string]bool{}
	if param, ok := options.VM().Change.Param(slot); ok {
		for name := range param.Members() {
			known[name] = true
		}
	}
	p, ours := property.Parse(value), property.Parse(guest.Drive(property.VolumeOf(value), slot))
	parts := []string{property.VolumeOf(value)}
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		if known[name] && name != "file" && name != "size" && name != "volume" {
			parts = append(parts, name+"="+p.Values[name])
			delete(ours.Values, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ours.Values)) {
		if name != "file" && name != "volume" {
			parts = append(parts, name+"="+ours.Values[name])
		}
	}
	return strings.Join(parts, ",")
}

// writeInTwo sends the two requests. The first carries all else that changes, and the digest
// that this was planned on.
func (d updater) writeInTwo(ctx context.Context, s plan.Step, ch *change) error {
	first := patch{api.Params{}, maps.Clone(ch.del), ch.revert}
	second := patch{set: api.Params{"description": owner.Describe(ch.notes, ch.tag)}}
	on := ch.tag
	on.Detached = maps.Clone(ch.tag.Detached)
	for name, from := range ch.oldSlot {
		first.del[from] = true
		on.Detached[name] = property.VolumeOf(ch.from.Config.Next[from])
	}
	for key, val := range ch.set {
		if w, back := ch.reattach[key]; key == "boot" || back && ch.oldSlot[w.Name] != "" {
			second.set[key] = val
		} else {
			first.set[key] = val
		}
	}
	first.set["description"] = owner.Describe(ch.notes, on)
	// No digest tells that somebody started it since it was looked at, and PVE would pull
	// the disk out of the running machine.
	if now, err := power.Of(d.Host, ch.lastSeen.at).State(ctx); err != nil {
		return fmt.Errorf("looking whether it is stopped: %w", err)
	} else if now.Running {
		return errors.New("it runs, and a disk goes to another bus only while it is stopped: plan again")
	}
	if err := d.withVolumes(ctx, &ch.lastSeen, first, s.Have, ch.from.Config); err != nil {
		return err
	}
	return d.withDigest(ctx, &ch.lastSeen, "", func(digest string) error {
		for name, id := range on.Detached {
			if ch.oldSlot[name] != "" && drives.UnusedKey(ch.lastSeen.cfg.Next, id) == "" {
				return fmt.Errorf("%s, which is disk %s, was detached and is not there to be attached again: plan again", id, name)
			}
		}
		_, err := d.API.Put(ctx, ch.lastSeen.at.Path("config"), second.body(digest))
		return err
	})
}

// allAttached reports whether the disks that go to another bus are all attached, in their old
// place or in their new one. A machine of which one is attached nowhere is not started.
func (d updater) allAttached(ctx context.Context, ch *change) bool {
	cfg, err := view.ReadConfig(ctx, d.API, ch.lastSeen.at)
	if err != nil {
		return false
	}
	for _, from := range ch.oldSlot {
		if drives.AttachedAt(cfg.Next, property.VolumeOf(ch.from.Config.Next[from])) == "" {
			return false
		}
	}
	return true
}
