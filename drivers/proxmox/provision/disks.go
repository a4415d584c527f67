package provision

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
)

// A disk that is detached by hand becomes one of perhaps several unused volumes of its guest. PVE does not record
// its former slot, so only the ownership tag can tell which volume it is. The tag therefore lists the volumes of a
// guest with more than its root disk.

// knownVolumes are the volumes of the disks after the change, as far as they are known before it.
func (c *change) knownVolumes() map[string]string {
	out := map[string]string{}
	if len(c.to.List) < 2 {
		return out
	}
	for _, w := range c.to.List {
		slot := c.tag.Slots["disk."+w.Name]
		_, moves := c.move[slot]
		_, back := c.reattach[slot]
		_, there := guest.Find(c.from.List, w.Name)
		switch {
		case moves:
		case back:
			if val, ok := c.set[slot].(string); ok {
				out[w.Name] = api.VolumeOf(val)
			}
		case there && c.from.Config.Next[slot] != "":
			out[w.Name] = api.VolumeOf(c.from.Config.Next[slot])
		}
	}
	return out
}

// recordVolumes writes the volumes of the disks into the ownership tag of a guest, if PVE chose
// their names while it created them. Without that, only a disk that is detached by hand is not
// attached again, so an error fails the step only if it ends the pass. The keys of lacks are
// written by the same request, and for them every error counts, as for a tag that is to be signed again, since it
// does not show that the guest came from this creation.
func (d writer) recordVolumes(ctx context.Context, l *lastSeen, want *guest.Volumes, notes string, m *owner.Tag, lacks api.Params) error {
	unsigned := m.Resign
	if len(want.List) < 2 && len(lacks) == 0 && !unsigned {
		return nil
	}
	checked := func(err error) error {
		if err != nil && (len(lacks) > 0 || unsigned) {
			return fmt.Errorf("completing %s: %w", l.at, err)
		}
		return onlyPassEnding(ctx, err)
	}
	if err := d.reread(ctx, l, ""); err != nil {
		return checked(err)
	}
	p := maps.Clone(lacks)
	if p == nil {
		p = api.Params{}
	}
	m.Begun = 0
	if len(want.List) > 1 {
		known := map[string]string{}
		for _, w := range want.List {
			if val := l.cfg.Next[m.Slots["disk."+w.Name]]; val != "" {
				known[w.Name] = api.VolumeOf(val)
			}
		}
		m.Volumes = known
	}
	if len(want.List) > 1 || unsigned {
		if text := d.ID.Describe(notes, *m, l.at, l.cfg); text != strings.TrimRight(l.cfg.Description(), " \t\r\n") {
			p["description"] = text
		}
	}
	if len(p) == 0 {
		return nil
	}
	return checked(d.withDigest(ctx, l, "", func(digest string) error {
		p["digest"] = digest
		_, err := d.API.Put(ctx, l.at.Path("config"), p)
		return err
	}))
}

// onlyPassEnding is err if it ends the pass, else nil.
func onlyPassEnding(ctx context.Context, err error) error {
	if api.EndsPass(ctx, err) {
		return err
	}
	return nil
}

// checkMovable refuses a move of volumes that PVE would refuse, before the container is stopped for
// it.
func (d updater) checkMovable(ctx context.Context, ch *change) error {
	inUse, err := d.API.InSnapshots(ctx, ch.lastSeen.at)
	if err != nil {
		return err
	}
	for slot := range ch.move {
		if s := inUse[api.VolumeOf(ch.from.Config.Next[slot])]; s != "" {
			return fmt.Errorf("%s cannot be moved to %s: snapshot %s uses it; it was not stopped for that", slot, ch.move[slot], s)
		}
	}
	return nil
}

// applyDisks makes the changes that are not keys of the configuration: it moves volumes, grows
// them, and frees those to be removed. A volume that was attached again to a pinned guest is not
// moved: the guest would have to be stopped, and that needs a plan of its own.
func (d writer) applyDisks(ctx context.Context, ch *change, pinned bool) error {
	l := &ch.lastSeen
	if len(ch.reattach) > 0 { // only now their sizes are known
		if err := d.reread(ctx, l, ""); err != nil {
			return err
		}
		for slot, w := range ch.reattach {
			value := l.cfg.Next[slot]
			if api.VolumeOf(l.cfg.Now[slot]) != api.VolumeOf(value) {
				continue // its attachment is pending, and PVE neither grows nor moves it before
			}
			if api.StorageOf(value) != w.Storage && !pinned {
				ch.move[slot] = w.Storage
			}
			if size := api.ParseGiB(api.ParseProperty(value).Values["size"]); size != 0 && w.Size > size {
				ch.grow[slot] = w.Size
			}
		}
	}
	what := "disk"
	if l.at.LXC {
		what = "volume"
	}
	for _, slot := range slices.Sorted(maps.Keys(ch.move)) {
		p := api.Params{what: slot, "storage": ch.move[slot], "delete": true}
		err := d.withDigest(ctx, l, slot, func(digest string) error {
			p["digest"] = digest
			return d.API.Do(ctx, l.at.Path("move_"+what), p)
		})
		if err != nil {
			return fmt.Errorf("moving %s of %s to %s: %w", slot, l.at, ch.move[slot], err)
		}
		l.changedByUs[slot] = true
	}
	for _, slot := range slices.Sorted(maps.Keys(ch.grow)) {
		if err := d.resize(ctx, l, slot, ch.grow[slot]); err != nil {
			return err
		}
	}
	if ch.newVolumes || len(ch.move) > 0 {
		if err := d.recordVolumes(ctx, l, ch.to, ch.notes, &ch.tag, nil); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ch.free)) {
		if err := d.freeVolume(ctx, ch, name); err != nil {
			return fmt.Errorf("removing the data of disk %s of %s (%s): %w", name, l.at, ch.free[name], err)
		}
	}
	return nil
}

// resize grows a disk to a size in GiB; a disk that has it already stays. For a container, PVE
// grows the volume, then writes the configuration and grows the file system (PVE/API2/LXC.pm,
// resize_vm). If it dies in between, it does not accept the order again, and an administrator has
// to complete it.
func (d writer) resize(ctx context.Context, l *lastSeen, slot string, size int) error {
	err := d.withDigest(ctx, l, slot, func(digest string) error {
		upid, err := d.API.Put(ctx, l.at.Path("resize"), api.Params{"disk": slot, "size": fmt.Sprintf("%dG", size), "digest": digest})
		return d.API.AwaitWrite(ctx, upid, err)
	})
	if err == nil || l.at.LXC && strings.Contains(err.Error(), "already at specified size") && d.reread(ctx, l, "") == nil {
		says := guest.ReadCTDisk("", l.cfg.Now[slot]).Size
		if err == nil || says >= size {
			return nil
		}
		return fmt.Errorf("growing %s of %s to %d GiB: its volume has that size, but its configuration says %d: an earlier resize was interrupted. On node %s, `pct rescan --vmid %d` corrects the configuration; whether the file system has grown, too, df shows inside, and resize2fs on the volume grows it",
			slot, l.at, size, says, l.at.Node, l.at.VMID)
	}
	return fmt.Errorf("growing %s of %s to %d GiB: %w", slot, l.at, size, err)
}

// freeVolume frees a detached volume, and removes it from the ownership tag by the same request. A
// volume that is in use until the next restart is left for later.
func (d writer) freeVolume(ctx context.Context, ch *change, name string) error {
	l := &ch.lastSeen
	return d.withDigest(ctx, l, "", func(digest string) error {
		key := api.UnusedKey(l.cfg.Next, ch.free[name])
		if key == "" || api.AttachedAt(l.cfg.Now, ch.free[name]) != "" {
			return nil
		}
		delete(ch.tag.Detached, name)
		ch.tag.Removes = slices.DeleteFunc(ch.tag.Removes, func(n string) bool { return n == name })
		_, err := d.API.Put(ctx, l.at.Path("config"), api.Params{"delete": key, "description": d.ID.Describe(ch.notes, ch.tag, l.at, l.cfg), "digest": digest})
		return err
	})
}
