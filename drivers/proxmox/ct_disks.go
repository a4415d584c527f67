package proxmox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// A mount point that leaves the files is treated as a VM's disk is: PVE keeps its
// volume as an unused one, the mark remembers which, and under the same name it comes
// back. A running container holds on to it until its next restart.

// removes are the names of the disks whose data go with them.
func (c *CT) removes() []string {
	var out []string
	for _, d := range c.Disks {
		if d.Remove {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

// left are the disks that were taken out of the files with their data, where the data
// are still there. A protected container keeps them; PVE would refuse.
func (c *CT) left() []string {
	var out []string
	for _, name := range c.mark.Removes {
		volume := c.mark.Detached[name]
		if _, there := c.disk(name); volume != "" && !there && !c.Protection && unusedKey(c.observe.next, volume) != "" {
			out = append(out, name)
		}
	}
	return out
}

// remembered is the old slots of a container, with those of disks that come back
// before the restart that would detach them.
func (c *CT) remembered(want *CT) map[string]string {
	old := maps.Clone(c.mark.Slots)
	for _, d := range want.Disks {
		key, volume := "disk."+d.Name, c.mark.Detached[d.Name]
		if slot := attachedAt(c.observe.now, volume); old[key] == "" && volume != "" && slot != "" {
			old[key] = slot
		}
	}
	return old
}

// noteCT says which data a change takes along.
func noteCT(want, have *model.Resource, _ []string) string {
	w, h := want.Spec.(*CT), have.Spec.(*CT)
	names := h.left()
	for _, d := range h.Disks {
		if d.Remove && !slices.Contains(names, d.Name) {
			names = append(names, d.Name)
		}
	}
	var out []string
	for _, name := range names {
		if _, wanted := w.disk(name); !wanted {
			out = append(out, "the data of disk "+name+" are removed")
		}
	}
	return strings.Join(out, "; ")
}

// attach is the value of a disk that is to be there: the volume that it had before,
// if the container still has that one, else the order for a new one.
func (c *ctChange) attach(d CTDisk, slot string) string {
	volume, o := c.have.mark.Detached[d.Name], c.have.observe
	switch {
	case volume == "":
	case parseProperty(o.now[slot]).first("volume") == volume: // it would leave with the next restart
		c.back = append(c.back, d.Name)
		return d.on(o.now[slot])
	case unusedKey(o.next, volume) != "":
		c.back = append(c.back, d.Name)
		return d.text(volume)
	}
	return d.order()
}

// keepDetached carries over what the mark knows of detached disks; with prune, without
// those that the container has no more.
func (c *ctChange) keepDetached(prune bool) {
	c.m.keepDetached(c.have.mark, c.want.removes(), func(name, volume string) bool {
		gone := prune && unusedKey(c.have.observe.next, volume) == "" && attachedAt(c.have.observe.now, volume) == ""
		_, wanted := c.want.disk(name)
		return !gone && !wanted
	})
}

// reread looks at a container between two writes to it: it must still be ours.
func (d *Driver) reread(ctx context.Context, at place, addr model.Address) (config, error) {
	cfg, err := d.readConfig(ctx, at)
	if err != nil {
		return cfg, fmt.Errorf("looking at it again: %w", err)
	}
	if is := d.proof(cfg, at); !is.of(addr) {
		return cfg, fmt.Errorf("it is not provably %s any more (%s): left alone; plan again", addr, is.why())
	}
	return cfg, nil
}

// settleReturned grows the disks that came back, now that their size is known. One on
// another storage than the files say is moved by a plan of its own where the container
// runs, since that stops it.
func (d *Driver) settleReturned(ctx context.Context, at place, ch *ctChange, running bool) error {
	for _, name := range ch.back {
		cfg, err := d.reread(ctx, at, ch.want.mark.addr())
		if err != nil {
			return err
		}
		ch.sight.cfg = cfg // its slot was empty before
		w, _ := ch.want.disk(name)
		slot := ch.m.Slots["disk."+name]
		have := readCTDisk(name, cfg.next[slot])
		if have.Storage != w.Storage && !running {
			ch.move = append(ch.move[:0], name)
		} else {
			ch.move = nil
		}
		ch.grow = nil
		if have.Size != 0 && w.Size > have.Size {
			ch.grow = []string{name}
		}
		if err := d.moveVolumes(ctx, at, ch); err != nil {
			return err
		}
	}
	return nil
}

// dropVolume frees a detached volume, and takes it out of the mark with the same
// request. One that is still mounted, until the next restart, is left for later.
func (d *Driver) dropVolume(ctx context.Context, at place, ch *ctChange, name string) error {
	cfg, err := d.reread(ctx, at, ch.want.mark.addr())
	if err != nil {
		return err
	}
	key := unusedKey(cfg.next, ch.drop[name])
	if key == "" || attachedAt(cfg.now, ch.drop[name]) != "" {
		return nil
	}
	delete(ch.m.Detached, name)
	ch.m.Removes = slices.DeleteFunc(ch.m.Removes, func(n string) bool { return n == name })
	_, err = d.c.put(ctx, at.path("config"), params{"delete": key, "description": describe(ch.want.Description, ch.m), "digest": cfg.digest})
	return err
}
