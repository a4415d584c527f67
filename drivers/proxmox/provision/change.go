package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/attribute"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// change collects what the changes of a step mean for PVE, as far as it is the same
// for VMs and for containers.
type change struct {
	to, from *guest.Volumes
	tag      owner.Tag // as it will be
	notes    string
	patch
	changesPower bool // it is to be started or stopped

	move     map[string]string       // slot → storage
	grow     map[string]int          // slot → GiB
	reattach map[string]guest.Volume // slot → a disk whose old volume is attached again
	free     map[string]string       // name of a disk → volume to be freed
	lastSeen lastSeen

	oldSlot    map[string]string // name of a disk that goes to another bus → the slot that it leaves
	newVolumes bool              // volumes are made, whose names are known afterwards only
}

func newChange(at view.GuestRef, to, from *guest.Volumes, m owner.Tag) *change {
	return &change{
		to: to, from: from, tag: m, patch: patch{api.Params{}, map[string]bool{}, map[string]bool{}},
		move: map[string]string{}, grow: map[string]int{}, reattach: map[string]guest.Volume{}, free: map[string]string{}, oldSlot: map[string]string{},
		lastSeen: lastSeen{at: at, addr: to.Addr, cfg: from.Config, changedByUs: map[string]bool{}},
	}
}

// setOrDelete sets a key, or deletes it where the value is none and the guest has it.
func (c *change) setOrDelete(key, val string) {
	if _, there := c.from.Config.Next[key]; val != "" || there {
		c.patch.setOrDelete(key, val)
	}
}

// setAttribute sets the key of an attribute, or deletes it.
func (c *change) setAttribute(name string, as attribute.Table, spec any) {
	if name == "power" {
		c.changesPower = true
		return
	}
	a := as.ByName(name)
	if a == nil || a.Created { // of the ownership tag, or only observed
		return
	}
	if val := a.Value(spec, c.from.Config.Current(a.Key)); val == "" {
		c.setOrDelete(a.Key, "")
	} else {
		c.set[a.Key] = val
	}
}

// changeDisk works out what the change of a disk means.
func (c *change) changeDisk(name, attr string) {
	w, wanted := guest.Find(c.to.List, name)
	h, there := guest.Find(c.from.List, name)
	slot, old := c.tag.Slots["disk."+name], c.from.Tag.Slots["disk."+name]
	switch {
	case c.oldSlot[name] != "": // it comes back, and then is made what else is wanted of it
	case !wanted && !there: // detached before; its data are to go
		c.free[name] = c.from.Tag.Detached[name]
	case !wanted: // detached: PVE keeps the volume as an unused one
		c.del[old] = true
		c.tag.Detached[name] = property.VolumeOf(c.from.Config.Next[old])
		if h.Remove {
			c.free[name] = c.tag.Detached[name]
		}
	case !there:
		c.set[slot] = c.attachedValue(w, slot)
		_, back := c.reattach[slot]
		c.newVolumes = c.newVolumes || !back
	case attr == "remove": // only the ownership tag says it
	case attr == "size":
		c.grow[slot] = w.Size
	case attr == "storage":
		c.move[slot] = w.Storage
	default:
		c.set[slot] = w.Keep(c.from.Config.Current(slot))
	}
}

// attachedValue is the value of a disk that is to be there: the volume that it had before,
// if the guest still has that one, else the order for a new one.
func (c *change) attachedValue(w guest.Volume, slot string) string {
	id, o := cmp.Or(c.from.Tag.Detached[w.Name], c.from.VolumeToReattach(w.Name)), c.from.Config
	if id == "" && c.from.Tag.Slots["disk."+w.Name] == slot { // detached by hand, but in use until the next restart
		id = property.VolumeOf(o.Now[slot])
	}
	switch {
	case id == "":
	case property.VolumeOf(o.Now[slot]) == id: // it would leave with the next restart
		c.reattach[slot] = w
		return w.Keep(o.Now[slot])
	case drives.UnusedKey(o.Next, id) != "":
		c.reattach[slot] = w
		return w.Attach(id, slot)
	}
	return w.Order(slot)
}

// describe writes notes and tag where either differs: the ownership tag also holds slots,
// options and detached disks, which the other changes may have moved.
func (c *change) describe(notes string, options map[string]string) {
	c.notes, c.tag.Options = notes, slices.Sorted(maps.Keys(options))
	c.tag.Volumes = c.from.Tag.Volumes // for their sake alone nothing is written
	c.carryDetached(false)
	if owner.Describe(notes, c.tag) == strings.TrimRight(c.from.Config.Description(), " \t\r\n") {
		return
	}
	c.carryDetached(true)
	c.tag.Volumes = c.knownVolumes()
	c.set["description"] = owner.Describe(notes, c.tag)
}

// carryDetached carries over what the ownership tag knows of detached disks, and which disks go
// with their data. With prune, what is not on the guest any more is left out; without
// it the ownership tag stays as it is, so that nothing has to be written for its sake.
func (c *change) carryDetached(prune bool) {
	m, old := &c.tag, c.from.Tag
	for name, id := range old.Detached {
		gone := prune && drives.UnusedKey(c.from.Config.Next, id) == "" && drives.AttachedAt(c.from.Config.Now, id) == ""
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

// applyChange writes exactly the keys that the plan shows, in one request that carries
// the digest of what was observed, then does what is no key of the disks. halted tells
// that the guest had to be stopped for it, and is.
func (d updater) applyChange(ctx context.Context, s plan.Step, ch *change) (halted bool, err error) {
	at := ch.lastSeen.at
	// PVE moves no volume of a running container, and what waits for a start would name the old one.
	// And what boots from one bus must not see its disk leave for another.
	halt := (at.LXC && len(ch.move) > 0 || len(ch.oldSlot) > 0) && s.Have.Guest.Running
	if ch.empty() || halt { // no request with a digest says that it still is what was observed
		if err := d.verifyOwner(ctx, at, s.Address); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
	}
	if halt {
		if err := d.checkMovable(ctx, ch); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
		if err := d.revertBeforeStop(ctx, &s, ch); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
		if err := power.Of(d.Host, at).Stop(ctx, ch.from.Tag.ShutdownSeconds()); err != nil {
			return false, err
		}
	}
	ch.lastSeen.fresh = ch.empty() && !halt // both renew the digest
	write := func() error { return d.withVolumes(ctx, &ch.lastSeen, ch.patch, s.Have, ch.from.Config) }
	if len(ch.oldSlot) > 0 {
		write = func() error { return d.writeInTwo(ctx, s, ch) }
	}
	if err := write(); err != nil {
		return halt, fmt.Errorf("changing %s: %w", at, err)
	}
	return halt, d.applyDisks(ctx, ch, at.LXC && s.Have.Guest.Running && !halt)
}

// restartAfterFailure starts a guest again that was stopped for a change, which failed: why.
func (d updater) restartAfterFailure(ctx context.Context, ch *change, why error) error {
	if ctx.Err() != nil || d.verifyOwner(ctx, ch.lastSeen.at, ch.lastSeen.addr) != nil {
		return why
	}
	if err := power.Of(d.Host, ch.lastSeen.at).Start(ctx); err != nil {
		return fmt.Errorf("%w; and it was stopped for that: %w", why, err)
	}
	return why
}

// applyPower brings a guest that was changed to the power that is wanted, or restarts it
// for what waits.
func (d updater) applyPower(ctx context.Context, s plan.Step, ch *change, halted bool, want string) error {
	restarts := func(c plan.Change) bool { return c.Class == model.ClassRestart }
	switch at, m := ch.lastSeen.at, ch.from.Tag; {
	case halted && want == "stopped":
		return nil
	case ch.changesPower && want == "stopped":
		return power.Of(d.Host, at).Stop(ctx, m.ShutdownSeconds())
	case halted:
		return power.Of(d.Host, at).Start(ctx)
	case ch.changesPower && s.Have.Guest.Running: // it is paused, and takes no order to shut down so
		if err := power.Of(d.Host, at).Unpause(ctx); err != nil || !slices.ContainsFunc(s.Changes, restarts) {
			return err
		}
		return power.Of(d.Host, at).Restart(ctx, m.ShutdownSeconds())
	case ch.changesPower:
		if power.Of(d.Host, at).AwaitReboot(ctx) {
			return nil
		}
		return power.Of(d.Host, at).Start(ctx)
	case s.Have.Guest.Running && slices.ContainsFunc(s.Changes, restarts):
		return power.Of(d.Host, at).Restart(ctx, m.ShutdownSeconds())
	default:
		return nil
	}
}

// lastSeen is what a guest was last seen as, between several writes to it.
type lastSeen struct {
	at          view.GuestRef
	addr        model.Address
	cfg         view.Config
	fresh       bool            // nothing was written since
	wrote       bool            // the first request of a change succeeded
	changedByUs map[string]bool // slots whose volume we changed ourselves
}

// withDigest sends a write that concerns one slot ("" for none) with the digest of
// the configuration as it was last seen. After a write of our own, and where PVE
// says that the configuration moved, it looks again: the guest must still be ours,
// and the slot hold the volume that it held.
func (d writer) withDigest(ctx context.Context, l *lastSeen, slot string, send func(digest string) error) error {
	for again := false; ; again = true {
		if err := d.reread(ctx, l, slot); err != nil {
			return err
		}
		err := send(l.cfg.Digest)
		l.fresh = false
		if again || api.ClassOf(err) != api.Changed {
			return err
		}
	}
}

// reread reads a guest unless nothing was written to it since it was seen.
func (d writer) reread(ctx context.Context, l *lastSeen, slot string) error {
	if l.fresh {
		return nil
	}
	cfg, err := view.ReadConfig(ctx, d.API, l.at)
	if err != nil {
		return fmt.Errorf("looking at it again: %w", err)
	}
	if is := d.ID.Check(cfg, l.at); !is.IsOwnedAs(l.addr) {
		return fmt.Errorf("it is not provably %s any more (%s): not changed; plan again", l.addr, is.Why())
	}
	if slot != "" && !l.changedByUs[slot] && property.VolumeOf(cfg.Next[slot]) != property.VolumeOf(l.cfg.Next[slot]) {
		return fmt.Errorf("another volume is at %s since the plan was made: plan again", slot)
	}
	l.cfg, l.fresh = cfg, true
	return nil
}

// applyDisks does what is no key of the configuration: moves volumes, grows them,
// and frees those that are to go. Those that came back to a guest which is pinned stay
// where they are: to move them it would have to be stopped, and that is a plan of its own.
func (d writer) applyDisks(ctx context.Context, ch *change, pinned bool) error {
	l := &ch.lastSeen
	if len(ch.reattach) > 0 { // only now the size of what came back is known
		if err := d.reread(ctx, l, ""); err != nil {
			return err
		}
		for slot, w := range ch.reattach {
			value := l.cfg.Next[slot]
			if property.VolumeOf(l.cfg.Now[slot]) != property.VolumeOf(value) {
				continue // it waits for a restart, and PVE neither grows nor moves it before
			}
			if property.StorageOf(value) != w.Storage && !pinned {
				ch.move[slot] = w.Storage
			}
			if size := property.GiB(property.Parse(value).Values["size"]); size != 0 && w.Size > size {
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

// resize grows a disk to a size in GiB; a disk that has it already stays. Of a container
// PVE grows the volume before it writes the configuration and grows the file system
// (PVE/API2/LXC.pm, resize_vm): where that died in between it takes the order no second
// time, and what is missing an administrator has to do.
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
		return fmt.Errorf("growing %s of %s to %d GiB: its volume has that size, but its configuration says %d: an earlier growth died in between. On node %s, `pct rescan --vmid %d` corrects the configuration; whether the file system has grown, too, df shows inside, and resize2fs on the volume grows it",
			slot, l.at, size, says, l.at.Node, l.at.VMID)
	}
	return fmt.Errorf("growing %s of %s to %d GiB: %w", slot, l.at, size, err)
}

// freeVolume frees a detached volume, and takes it out of the ownership tag with the same
// request. One that is still attached, until the next restart, is left for later.
func (d writer) freeVolume(ctx context.Context, ch *change, name string) error {
	l := &ch.lastSeen
	return d.withDigest(ctx, l, "", func(digest string) error {
		key := drives.UnusedKey(l.cfg.Next, ch.free[name])
		if key == "" || drives.AttachedAt(l.cfg.Now, ch.free[name]) != "" {
			return nil
		}
		delete(ch.tag.Detached, name)
		ch.tag.Removes = slices.DeleteFunc(ch.tag.Removes, func(n string) bool { return n == name })
		_, err := d.API.Put(ctx, l.at.Path("config"), api.Params{"delete": key, "description": owner.Describe(ch.notes, ch.tag), "digest": digest})
		return err
	})
}

// complete brings a new guest from what was ordered to what is wanted: disks grown to
// their size, tags, and power. It gives the ownership tag that the guest has.
func (d maker) complete(ctx context.Context, at view.GuestRef, want *guest.Volumes, tags []string, aim string) (owner.Tag, error) {
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if err != nil {
		return owner.Tag{}, fmt.Errorf("reading %s back: %w", at, err)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(want.Addr) || is.Tag.Provisional() || at.LXC && cfg.Now["rootfs"] == "" {
		return is.Tag, fmt.Errorf("%s is not what was ordered (%s): its creation died half-way; if no task works on it any more, %s clears it", at, is.Why(), at.Rescue())
	}
	l := lastSeen{at: at, addr: want.Addr, cfg: cfg, fresh: true}
	for _, w := range want.List {
		slot := is.Tag.Slots["disk."+w.Name]
		if value, there := cfg.Next[slot]; there && w.Size > property.GiB(property.Parse(value).Values["size"]) {
			if err := d.resize(ctx, &l, slot, w.Size); err != nil {
				return is.Tag, err
			}
		}
	}
	lacks := api.Params{}
	if !slices.Equal(property.Tags(cfg.Next["tags"]), tags) {
		lacks["tags"] = strings.Join(tags, ";")
	}
	if err := d.recordVolumes(ctx, &l, want, is.Notes, &is.Tag, lacks); err != nil || aim != "running" {
		return is.Tag, err
	}
	return is.Tag, power.Of(d.Host, at).Start(ctx)
}

// checkMovable refuses before a container is stopped for a volume to be moved, and PVE
// would not move it.
func (d updater) checkMovable(ctx context.Context, ch *change) error {
	inUse, err := view.InSnapshots(ctx, d.API, ch.lastSeen.at)
	if err != nil {
		return err
	}
	for slot := range ch.move {
		if s := inUse[property.VolumeOf(ch.from.Config.Next[slot])]; s != "" {
			return fmt.Errorf("%s cannot be moved to %s: snapshot %s holds it; it was not stopped for that", slot, ch.move[slot], s)
		}
	}
	return nil
}
