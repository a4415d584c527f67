package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A disk goes to another bus while its VM is stopped, by two requests: the first detaches it and
// records its volume in the ownership tag; the second attaches that volume at the new slot. If
// something happens in between, a later pass finds the volume by the tag, as it does for a disk
// that comes back into the files.

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

// moveToBus adds the change of a disk's bus.
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

// onBus is the value of a drive at a slot of another bus: with its present settings as far as that
// bus supports them, and the settings of every managed disk.
func onBus(value, slot string) string {
	known := map[string]bool{}
	if param, ok := guest.VMKeys().Change.Param(slot); ok {
		for name := range param.Members() {
			known[name] = true
		}
	}
	p, ours := api.ParseProperty(value), api.ParseProperty(guest.Drive(api.VolumeOf(value), slot))
	parts := []string{api.VolumeOf(value)}
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

// writeInTwo sends the two requests. The first has all other changes, too, and the digest that the
// plan is based on.
func (d updater) writeInTwo(ctx context.Context, s plan.Step, ch *change) error {
	first := patch{api.Params{}, maps.Clone(ch.del), ch.revert}
	second := patch{set: api.Params{"description": d.ID.Describe(ch.notes, ch.tag, ch.lastSeen.at, ch.lastSeen.cfg)}}
	on := ch.tag
	on.Detached = maps.Clone(ch.tag.Detached)
	for name, from := range ch.oldSlot {
		first.del[from] = true
		on.Detached[name] = api.VolumeOf(ch.from.Config.Next[from])
	}
	for key, val := range ch.set {
		if w, back := ch.reattach[key]; key == "boot" || back && ch.oldSlot[w.Name] != "" {
			second.set[key] = val
		} else {
			first.set[key] = val
		}
	}
	first.set["description"] = d.ID.Describe(ch.notes, on, ch.lastSeen.at, ch.lastSeen.cfg)
	// The digest does not show that the VM was started since it was read, and PVE would remove the disk from the
	// running VM.
	if now, err := lifecycle.GuestAt(d.Host, ch.lastSeen.at).State(ctx); err != nil {
		return fmt.Errorf("checking whether it is stopped: %w", err)
	} else if now.Running {
		return errors.New("it runs, and a disk goes to another bus only while it is stopped: plan again")
	}
	if err := d.withVolumes(ctx, &ch.lastSeen, first, s.Have, ch.from.Config); err != nil {
		return err
	}
	return d.withDigest(ctx, &ch.lastSeen, "", func(digest string) error {
		for name, id := range on.Detached {
			if ch.oldSlot[name] != "" && api.UnusedKey(ch.lastSeen.cfg.Next, id) == "" {
				return fmt.Errorf("%s, which is disk %s, was detached and no longer exists: plan again", id, name)
			}
		}
		_, err := d.API.Put(ctx, ch.lastSeen.at.Path("config"), second.body(digest))
		return err
	})
}

// allAttached reports whether the disks that go to another bus are all attached, at their old slot
// or at the new one. A VM with a detached disk is not started.
func (d updater) allAttached(ctx context.Context, ch *change) bool {
	cfg, err := d.API.ReadConfig(ctx, ch.lastSeen.at)
	if err != nil {
		return false
	}
	for _, from := range ch.oldSlot {
		if api.AttachedAt(cfg.Next, api.VolumeOf(ch.from.Config.Next[from])) == "" {
			return false
		}
	}
	return true
}
