package guest

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// ctFromConfig is FromConfig for a container. Pending changes count as made, since PVE has them
// already.
func ctFromConfig(g api.ListedGuest, cfg api.GuestConfig, notes string, m owner.Tag) *model.Resource {
	c := cfg.Next
	t := CTState{
		&CT{Description: norm.NFC.String(notes), Power: g.Power(), Recreate: m.Recreate, Options: map[string]string{}, Terms: m.Terms()},
		&Observation{Tag: m, Config: cfg, runs: g.Running, uptime: g.Uptime},
	}
	CTAttributes().Observe(t.CT, c)
	t.Template, _ = strings.CutPrefix(m.From, "template.")
	if m.Provisional() {
		t.Tag.Slots = rootSlot() // a provisional clone: its ownership tag does not have the template's slots
	}
	t.readDevices()
	for k, val := range c {
		if t.isOption(k, val) {
			t.Options[k] = val
		}
	}
	return resource(g, cfg, m, t.CT, t.Observation)
}

// readDevices reads the disks that the ownership tag names, since others were attached by hand and
// are unmanaged, and all network cards. A card that the tag does not name was added by hand, and
// has the name of its slot. If PVE could not create a volume, the order for it stays pending and is
// not a disk (pve-container, PVE/LXC/Config.pm, vmconfig_apply_pending, apply_pending_mountpoint).
func (c CTState) readDevices() {
	for key, val := range c.Config.Next {
		name := c.deviceAt(key)
		switch {
		case api.IsMount(key) && newVolume.MatchString(api.VolumeOf(val)):
		case api.IsMount(key) && name != "":
			d := ReadCTDisk(strings.TrimPrefix(name, "disk."), val)
			d.Remove = slices.Contains(c.Tag.Removes, d.Name)
			d.Size = cmp.Or(c.sizeNow(key), d.Size)
			c.Disks = append(c.Disks, d)
		case api.IsNet(key):
			c.NICs = append(c.NICs, ReadCTNIC(strings.TrimPrefix(cmp.Or(name, key), "nic."), val))
		}
	}
	byName(c.Disks)
	byName(c.NICs)
}

// newVolume is the order for a new volume, in place of a volume.
var newVolume = regexp.MustCompile(`^[^/:\s,]+:\d+(\.\d+)?$`)

// sizeNow is the size of a mount point's volume in GiB, if a pending change keeps that volume; else
// 0. PVE grows the volume in force (PVE/API2/LXC.pm, resize_vm), and the pending change keeps
// showing an earlier size, or none, until the restart.
func (o *Observation) sizeNow(key string) int {
	now := o.Config.Now[key]
	if api.ParseProperty(now).First("volume") != api.ParseProperty(o.Config.Next[key]).First("volume") {
		return 0
	}
	return ReadCTDisk("", now).Size
}
