package proxmox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// buses are where a disk may be attached, with how many slots each has
// (qemu-server, PVE/QemuServer/Drive.pm, MAX_*_DISKS).
var buses = map[string]int{"scsi": 31, "virtio": 16, "sata": 6}

// busOf is the bus of a slot.
func busOf(slot string) string { return strings.TrimRight(slot, "0123456789") }

// drive joins a volume, or the order for one, with the settings that all disks of
// ours have, as far as the bus of their slot knows them.
func drive(volume, slot string) string {
	switch busOf(slot) {
	case "virtio":
		return volume + ",discard=on,iothread=1"
	case "sata":
		return volume + ",discard=on,ssd=1"
	default:
		return volume + ",discard=on,iothread=1,ssd=1"
	}
}

// order asks for a new volume of the disk's size.
func (d Disk) order(slot string) string {
	return drive(fmt.Sprintf("%s:%d", d.Storage, max(d.Size, 1)), slot)
}

// removes are the names of the disks whose data go with them.
func (v *VM) removes() []string {
	var out []string
	for _, d := range v.Disks {
		if d.Remove {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

// unusedKey is the key of a volume that belongs to the guest and is attached nowhere.
func unusedKey(c map[string]string, volume string) string {
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if strings.HasPrefix(key, "unused") && volumeOf(c[key]) == volume {
			return key
		}
	}
	return ""
}

// attachedAt is the slot where a volume is in use, be it until the next restart only.
func attachedAt(c map[string]string, volume string) string {
	for _, key := range slices.Sorted(maps.Keys(c)) {
		drive := isDrive(key) && !strings.HasPrefix(key, "unused") && volumeOf(c[key]) == volume
		if drive || isMount(key) && parseProperty(c[key]).first("volume") == volume {
			return key
		}
	}
	return ""
}

// left are the disks that were taken out of the files with their data, where the
// data are still there: the detaching waited for a restart, or its answer was lost.
// A protected guest keeps them; PVE would refuse.
func (v *VM) left() []string {
	var out []string
	for _, name := range v.mark.Removes {
		volume := v.mark.Detached[name]
		if volume != "" && !v.Protection && unusedKey(v.observe.next, volume) != "" && !v.hasDisk("disk."+name) {
			out = append(out, name)
		}
	}
	return out
}

// remembered is the old slots of a guest, with those of disks that come back before
// the restart that would detach them.
func (v *VM) remembered(want *VM) map[string]string {
	old := maps.Clone(v.mark.Slots)
	for _, d := range want.Disks {
		key, volume := "disk."+d.Name, v.mark.Detached[d.Name]
		if old[key] != "" || volume == "" {
			continue
		}
		if slot := attachedAt(v.observe.now, volume); slot != "" {
			old[key] = slot
		}
	}
	return old
}

// disk works out what the change of a disk means.
func (c *change) disk(name, attr string) {
	isName := func(d Disk) bool { return d.Name == name }
	i, j := slices.IndexFunc(c.want.Disks, isName), slices.IndexFunc(c.have.Disks, isName)
	slot := c.m.Slots["disk."+name]
	switch {
	case i < 0 && j < 0: // detached before; its data are to go
		c.drop[name] = c.have.mark.Detached[name]
	case i < 0: // detached: PVE keeps the volume as an unused one
		old := c.have.mark.Slots["disk."+name]
		c.gone[old] = true
		c.m.Detached[name] = volumeOf(c.have.observe.next[old])
		if c.have.Disks[j].Remove {
			c.drop[name] = c.m.Detached[name]
		}
	case j < 0:
		c.set[slot] = c.attach(c.want.Disks[i], slot)
	case attr == "size":
		c.grow[slot] = c.want.Disks[i].Size
	case attr == "storage":
		c.move[slot] = c.want.Disks[i].Storage
	}
}

// attach is the value of a disk that is to be there: the volume that it had before,
// if the guest still has that one, else the order for a new one.
func (c *change) attach(d Disk, slot string) string {
	volume, o := c.have.mark.Detached[d.Name], c.have.observe
	switch {
	case volume == "":
	case volumeOf(o.now[slot]) == volume: // it would leave with the next restart
		c.back[slot] = d
		return o.now[slot]
	case unusedKey(o.next, volume) != "":
		c.back[slot] = d
		return drive(volume, slot)
	}
	return d.order(slot)
}

// keepDetached carries over what the mark knows of detached disks. With prune, what
// is not on the guest any more is left out; without it the mark stays as it is, so
// that nothing has to be written for its sake.
func (c *change) keepDetached(prune bool) {
	c.m.keepDetached(c.have.mark, c.want.removes(), func(name, volume string) bool {
		gone := prune && unusedKey(c.have.observe.next, volume) == "" && attachedAt(c.have.observe.now, volume) == ""
		return !gone && !c.want.hasDisk("disk."+name)
	})
}

// keepDetached carries over what an older mark knows of detached disks, as far as they
// are to be kept in mind, and which disks go with their data.
func (m *mark) keepDetached(old mark, removes []string, keep func(name, volume string) bool) {
	for name, volume := range old.Detached {
		if keep(name, volume) {
			m.Detached[name] = or(m.Detached[name], volume)
		} else if m.Detached[name] == volume {
			delete(m.Detached, name)
		}
	}
	m.Removes = removes
	for _, name := range old.Removes {
		if m.Detached[name] != "" {
			m.Removes = append(m.Removes, name)
		}
	}
	slices.Sort(m.Removes)
	m.Removes = slices.Compact(m.Removes)
}

// sight is what a guest was last seen as, between several writes to it.
type sight struct {
	cfg    config
	fresh  bool            // nothing was written since
	unsure map[string]bool // slots whose volume we changed ourselves
}

// withDigest sends a write that concerns one slot ("" for none) with the digest of
// the configuration as it was last seen. After a write of our own, and where PVE
// says that the configuration moved, it looks again: the guest must still be ours,
// and the slot hold the volume that it held.
func (d *Driver) withDigest(ctx context.Context, at place, addr model.Address, l *sight, slot string, send func(digest string) error) error {
	for again := false; ; again = true {
		if !l.fresh {
			cfg, err := d.readConfig(ctx, at)
			if err != nil {
				return fmt.Errorf("looking at it again: %w", err)
			}
			if is := d.proof(cfg, at); !is.of(addr) {
				return fmt.Errorf("it is not provably %s any more (%s): left alone; plan again", addr, is.why())
			}
			if slot != "" && !l.unsure[slot] && volumeOf(cfg.next[slot]) != volumeOf(l.cfg.next[slot]) {
				return fmt.Errorf("another volume is at %s since the plan was made: plan again", slot)
			}
			l.cfg, l.fresh = cfg, true
		}
		err := send(l.cfg.digest)
		l.fresh = false
		if again || classOf(err) != classMoved {
			return err
		}
	}
}

// settleDisks does what is no key of the configuration: moves volumes, grows them,
// and frees those that are to go.
func (d *Driver) settleDisks(ctx context.Context, at place, ch *change) error {
	if len(ch.back) > 0 { // of a disk that came back only now its size is known
		for slot := range ch.back {
			ch.sight.unsure[slot] = true
		}
		if err := d.withDigest(ctx, at, ch.want.mark.addr(), &ch.sight, "", func(string) error { return nil }); err != nil {
			return err
		}
		ch.sight.fresh = true // nothing was sent
		for slot, disk := range ch.back {
			value := ch.sight.cfg.next[slot]
			if storageOf(value) != disk.Storage {
				ch.move[slot] = disk.Storage
			}
			if disk.Size > gib(parseProperty(value).values["size"]) {
				ch.grow[slot] = disk.Size
			}
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(ch.move)) {
		err := d.withDigest(ctx, at, ch.want.mark.addr(), &ch.sight, slot, func(digest string) error {
			upid, err := d.c.post(ctx, at.path("move_disk"), params{"disk": slot, "storage": ch.move[slot], "delete": true, "digest": digest})
			return d.settled(ctx, upid, err)
		})
		if err != nil {
			return fmt.Errorf("moving %s of %s to %s: %w", slot, at, ch.move[slot], err)
		}
		ch.sight.unsure[slot] = true
	}
	for _, slot := range slices.Sorted(maps.Keys(ch.grow)) {
		if err := d.resize(ctx, at, ch, slot, ch.grow[slot]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ch.drop)) {
		if err := d.dropData(ctx, at, ch, name); err != nil {
			return fmt.Errorf("removing the data of disk %s of %s (%s): %w", name, at, ch.drop[name], err)
		}
	}
	return nil
}

// resize grows a disk to a size in GiB; a disk that has it already stays.
func (d *Driver) resize(ctx context.Context, at place, ch *change, slot string, size int) error {
	err := d.withDigest(ctx, at, ch.want.mark.addr(), &ch.sight, slot, func(digest string) error {
		upid, err := d.c.put(ctx, at.path("resize"), params{"disk": slot, "size": fmt.Sprintf("%dG", size), "digest": digest})
		return d.settled(ctx, upid, err)
	})
	if err != nil {
		return fmt.Errorf("growing %s of %s to %d GiB: %w", slot, at, size, err)
	}
	return nil
}

// dropData frees a detached volume, and takes it out of the mark with the same
// request. One that is still attached, until the next restart, is left for later.
func (d *Driver) dropData(ctx context.Context, at place, ch *change, name string) error {
	return d.withDigest(ctx, at, ch.want.mark.addr(), &ch.sight, "", func(digest string) error {
		key := unusedKey(ch.sight.cfg.next, ch.drop[name])
		if key == "" || attachedAt(ch.sight.cfg.now, ch.drop[name]) != "" {
			return nil
		}
		delete(ch.m.Detached, name)
		ch.m.Removes = slices.DeleteFunc(ch.m.Removes, func(n string) bool { return n == name })
		_, err := d.c.put(ctx, at.path("config"), params{"delete": key, "description": describe(ch.want.Description, ch.m), "digest": digest})
		return err
	})
}
