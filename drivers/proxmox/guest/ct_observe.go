package guest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// HashKeys says in the ownership tag which keys a container was made with, since PVE keeps
// nothing of them. They are public, and their hash is no secret.
func HashKeys(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return seed.Sum(strings.Join(keys, "\n"))
}

// ctFromConfig reads a proven container back into the form in which the files speak:
// with what is pending counted in, since that is what was asked of PVE already.
func ctFromConfig(g view.Listed, cfg view.Config, notes string, m owner.Tag) *model.Resource {
	c := cfg.Next
	t := CTState{
		&CT{Description: notes, Power: g.Power(), Options: map[string]string{}, Terms: m.Terms()},
		&Observation{Tag: m, Config: cfg, uptime: g.Uptime},
	}
	CTAttributes().Observe(t.CT, c)
	t.Template, _ = strings.CutPrefix(m.From, "template.")
	if m.Provisional() {
		t.Tag.Slots = rootSlot() // a bare clone: its ownership tag does not know the template's slots
	}
	t.readDevices()
	t.PendingRestart = g.Running && len(cfg.WaitingKeys()) > 0
	for k, val := range c {
		if t.isOption(k, val) {
			t.Options[k] = val
		}
	}
	return resource(g, cfg, m, t.CT, t.Observation)
}

// readDevices reads the disks that the ownership tag names, since others were attached by
// hand and are unmanaged, and all network cards: one that the ownership tag does not
// name was added by hand and goes by the name of its slot. A volume that could not be made
// waits as the order that it was (pve-container, PVE/LXC/Config.pm, vmconfig_apply_pending,
// apply_pending_mountpoint): there is no disk yet.
func (c CTState) readDevices() {
	for key, val := range c.Config.Next {
		name := c.deviceAt(key)
		switch {
		case drives.IsMount(key) && newVolume.MatchString(property.VolumeOf(val)):
		case drives.IsMount(key) && name != "":
			d := ReadCTDisk(strings.TrimPrefix(name, "disk."), val)
			d.Remove = slices.Contains(c.Tag.Removes, d.Name)
			d.Size = cmp.Or(c.sizeNow(key), d.Size)
			c.Disks = append(c.Disks, d)
		case property.IsNet(key):
			c.NICs = append(c.NICs, ReadCTNIC(strings.TrimPrefix(cmp.Or(name, key), "nic."), val))
		}
	}
	byName(c.Disks)
	byName(c.NICs)
}

// newVolume is the order for a new volume, which stands in place of one.
var newVolume = regexp.MustCompile(`^[^/:\s,]+:\d+(\.\d+)?$`)

// sizeNow is the size of a mount point's volume, where a change that waits keeps that
// volume: PVE grows what runs (PVE/API2/LXC.pm, resize_vm), and the change goes on
// telling the size of when it was ordered, or none, until the restart that applies it.
func (o *Observation) sizeNow(key string) int {
	now := o.Config.Now[key]
	if property.Parse(now).First("volume") != property.Parse(o.Config.Next[key]).First("volume") {
		return 0
	}
	return ReadCTDisk("", now).Size
}

// align implements Target.
func (c CTTarget) align(other State) {
	have := other.(CTState)
	have.Startup = c.Startup.sameAs(have.Startup)
	for i := range have.NICs {
		h := &have.NICs[i]
		if w, wanted := Find(c.NICs, h.Name); wanted {
			if w.MAC == "" {
				h.MAC = ""
			}
			options.CT().AlignMembers("net0", w.Options, h.Options)
			maps.DeleteFunc(h.Options, func(member, _ string) bool {
				_, declared := w.Options[member]
				return !declared && !slices.Contains(have.Tag.Options, memberOption(h.Name, member))
			})
		}
	}
	for i := range have.Disks {
		h := &have.Disks[i]
		if w, wanted := Find(c.Disks, h.Name); wanted {
			if w.Size == 0 {
				h.Size = 0
			}
			options.CT().AlignMembers(MountKey(h.Name), w.Options, h.Options)
		}
	}
	for _, name := range have.Volumes().stillThere() {
		if _, wanted := Find(c.Disks, name); !wanted {
			have.Disks = append(have.Disks, CTDisk{Name: name, Remove: true})
		}
	}
	if have.Tag.From == "" {
		have.Template = c.Template
	}
}

// IneffectiveChanges says what of the files cannot reach a container that exists.
func (c CTTarget) IneffectiveChanges(want *model.Resource, other State) diag.List {
	addr, have := want.Addr, other.(CTState)
	now := HashKeys(c.RootKeys)
	if now == "" || have.Tag.Keys == "" || now == have.Tag.Keys || have.Tag.Provisional() {
		return nil
	}
	return diag.List{Finding(diag.Warning, addr, fmt.Sprintf("the ssh keys for %s changed since it was made", addr),
		"PVE puts keys into a container only when it makes it, and takes none out: bring its /root/.ssh/authorized_keys up to date yourself, or remove it so that it is recreated")}
}

// Pending lists what PVE holds back until the next full restart.
func (c CTState) Pending(addr model.Address) []model.Pending {
	return pendingKeys(c.Config, addr, func(key string) string { return AttributePath(c, key) }, func(key string) string { return revertHint(c, "pct", key) })
}

func (*CT) isOption(key, _ string) bool { return !IsReservedCT(key) }

func (CTState) sameOption(string, string, string) bool { return false }
