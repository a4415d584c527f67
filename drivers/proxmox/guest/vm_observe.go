package guest

import (
	"cmp"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// vmFromConfig is FromConfig for a VM. Pending changes count as made, since PVE has them already. The notes are in the
// Unicode form that the loader gives every string of the files.
func vmFromConfig(g api.ListedGuest, cfg api.GuestConfig, notes string, m owner.Tag) *model.Resource {
	cfg = ignoreBootUpkeep(cfg)
	c := cfg.Next
	v := VMState{
		&VM{Description: norm.NFC.String(notes), Power: g.Power(), Recreate: m.Recreate, Options: map[string]string{}, Terms: m.Terms()},
		&Observation{Tag: m, Config: cfg, runs: g.Running, uptime: g.Uptime},
	}
	VMAttributes().Observe(v.VM, c)
	v.Seed = lifecycle.AttachedSeed(m, c)
	if name, ok := strings.CutPrefix(m.From, "image."); ok {
		v.Image = name
	} else if name, ok := strings.CutPrefix(m.From, "template."); ok {
		v.Template = name
	}
	if m.UUID == "" { // a provisional clone: its ownership tag does not have the template's slots
		v.Tag.Slots = map[string]string{"disk.root": BootDisk(c)}
	}
	v.Disks, v.NICs = v.readDisks(), v.readNICs()
	for k, val := range c {
		if v.isOption(k, val) && !VMKeys().Invented[k] {
			v.Options[k] = val
		}
	}
	return resource(g, cfg, m, v.VM, v.Observation)
}

// readDisks reads the disks that the ownership tag names. Others were attached by hand and are
// unmanaged.
func (o *Observation) readDisks() []Disk {
	var out []Disk
	for slot, drive := range o.Config.Next {
		if !api.IsDrive(slot) {
			continue
		}
		if name, ok := strings.CutPrefix(o.deviceAt(slot), "disk."); ok {
			out = append(out, Disk{
				Name: name, Size: api.ParseGiB(api.PropertyValue(drive, "size")), Storage: api.StorageOf(drive),
				Bus: api.BusOf(slot), Remove: slices.Contains(o.Tag.Removes, name),
			})
		}
	}
	byName(out)
	return out
}

// readNICs reads all network cards. One that the ownership tag does not name was added by hand, and
// has the name of its slot.
func (o *Observation) readNICs() []NIC {
	var out []NIC
	for slot, val := range o.Config.Next {
		if !api.IsNet(slot) {
			continue
		}
		n := readNIC(strings.TrimPrefix(cmp.Or(o.deviceAt(slot), slot), "nic."), val)
		if ip := api.ParseProperty(o.Config.Next[IPConfigKey(slot)]).Values; len(ip) > 0 {
			n.IP, n.Gateway, n.IP6, n.Gateway6 = ip["ip"], ip["gw"], shortIP6(ip["ip6"]), shortIP6(ip["gw6"])
		}
		out = append(out, n)
	}
	byName(out)
	return out
}
