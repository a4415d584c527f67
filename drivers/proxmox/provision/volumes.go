package provision

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
)

// A disk that somebody detaches by hand is one of perhaps several unused volumes of its
// guest, and only the ownership tag can tell which: PVE keeps nothing of where one was attached.
// So the ownership tag holds the volumes of a guest that has more than its root disk.

// knownVolumes are the volumes of the disks as they will be, as far as they are known before
// the change is made.
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
				out[w.Name] = property.VolumeOf(val)
			}
		case there && c.from.Config.Next[slot] != "":
			out[w.Name] = property.VolumeOf(c.from.Config.Next[slot])
		}
	}
	return out
}

// recordVolumes writes into the ownership tag of a guest which volumes its disks have, where PVE named
// them only as it made them. Without it a disk that is detached by hand is not put
// back, and nothing else is amiss: so it fails no step. The keys of lacks are written by
// the same request, and must be.
func (d writer) recordVolumes(ctx context.Context, l *lastSeen, want *guest.Volumes, notes string, m *owner.Tag, lacks api.Params) error {
	if len(want.List) < 2 && len(lacks) == 0 {
		return nil
	}
	checked := func(err error) error {
		if err != nil && len(lacks) > 0 {
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
	if len(want.List) > 1 {
		known := map[string]string{}
		for _, w := range want.List {
			if val := l.cfg.Next[m.Slots["disk."+w.Name]]; val != "" {
				known[w.Name] = property.VolumeOf(val)
			}
		}
		m.Volumes = known
		if text := owner.Describe(notes, *m); text != strings.TrimRight(l.cfg.Description(), " \t\r\n") {
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

// onlyPassEnding lets only those errors through after which there is no going on.
func onlyPassEnding(ctx context.Context, err error) error {
	if api.EndsPass(ctx, err) {
		return err
	}
	return nil
}
