package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// vmFromConfig reads a proven guest back into the form in which the files speak:
// with what is pending counted in, since that is what was asked of PVE already.
func vmFromConfig(g view.Listed, cfg view.Config, notes string, m owner.Tag) *model.Resource {
	cfg = ignoreBootUpkeep(cfg)
	c := cfg.Next
	v := VMState{
		&VM{Description: notes, Power: g.Power(), Options: map[string]string{}, Terms: m.Terms()},
		&Observation{Tag: m, Config: cfg, uptime: g.Uptime},
	}
	VMAttributes().Observe(v.VM, c)
	v.Seed = seed.Attached(m, c)
	if name, ok := strings.CutPrefix(m.From, "image."); ok {
		v.Image = name
	} else if name, ok := strings.CutPrefix(m.From, "template."); ok {
		v.Template = name
	}
	if m.UUID == "" { // a bare clone: its ownership tag does not know the template's slots
		v.Tag.Slots = map[string]string{"disk.root": BootDisk(c)}
	}
	v.Disks, v.NICs = v.readDisks(), v.readNICs()
	v.PendingRestart = g.Running && (len(cfg.WaitingKeys()) > 0 || v.cloudInitPending())
	for k, val := range c {
		if v.isOption(k, val) && !options.VM().Invented[k] {
			v.Options[k] = val
		}
	}
	return resource(g, cfg, m, v.VM, v.Observation)
}

// readDisks reads the disks that the ownership tag names. Others were attached by hand and
// are unmanaged.
func (o *Observation) readDisks() []Disk {
	var out []Disk
	for slot, drive := range o.Config.Next {
		if name, ok := strings.CutPrefix(o.deviceAt(slot), "disk."); ok {
			out = append(out, Disk{
				Name: name, Size: property.GiB(property.Value(drive, "size")), Storage: property.StorageOf(drive),
				Bus: drives.Bus(slot), Remove: slices.Contains(o.Tag.Removes, name),
			})
		}
	}
	byName(out)
	return out
}

// readNICs reads all network cards; one that the ownership tag does not name was added by
// hand and goes by the name of its slot.
func (o *Observation) readNICs() []NIC {
	var out []NIC
	for slot, val := range o.Config.Next {
		if !property.IsNet(slot) {
			continue
		}
		n := readNIC(strings.TrimPrefix(cmp.Or(o.deviceAt(slot), slot), "nic."), val)
		if ip := property.Parse(o.Config.Next[IPConfigKey(slot)]).Values; len(ip) > 0 {
			n.IP, n.Gateway, n.IP6, n.Gateway6 = ip["ip"], ip["gw"], shortIP6(ip["ip6"]), shortIP6(ip["gw6"])
		}
		out = append(out, n)
	}
	byName(out)
	return out
}

// IPConfigKey is the key of a card's address.
func IPConfigKey(slot string) string { return "ipconfig" + strings.TrimPrefix(slot, "net") }

func parseStartup(s string) *Startup {
	if s == "" {
		return nil
	}
	p := property.Parse(s)
	number := func(text string) *int {
		if n, err := strconv.Atoi(text); err == nil {
			return &n
		}
		return nil
	}
	return &Startup{Order: number(p.First("order")), Up: number(p.Values["up"]), Down: number(p.Values["down"])}
}

// sameAs gives s where the other says the same, else the other.
func (s *Startup) sameAs(other *Startup) *Startup {
	if s != nil && other != nil && s.text() == other.text() {
		return s
	}
	return other
}

func (s *Startup) text() string {
	if s == nil {
		return ""
	}
	var parts []string
	for _, f := range []struct {
		key string
		val *int
	}{{"order", s.Order}, {"up", s.Up}, {"down", s.Down}} {
		if f.val != nil {
			parts = append(parts, fmt.Sprintf("%s=%d", f.key, *f.val))
		}
	}
	return strings.Join(parts, ",")
}

// align implements Target.
func (v VMTarget) align(other State) {
	have := other.(VMState)
	have.Startup = v.Startup.sameAs(have.Startup)
	for i := range have.NICs {
		if w, wanted := Find(v.NICs, have.NICs[i].Name); wanted && w.MAC == "" {
			have.NICs[i].MAC = ""
		}
	}
	for i := range have.Disks {
		h := &have.Disks[i]
		w, wanted := Find(v.Disks, h.Name)
		if !wanted {
			continue
		}
		if w.Size == 0 {
			h.Size = 0
		}
		if w.Storage == "" { // of a linked clone: where its template lies
			h.Storage = ""
		}
		if w.Bus == "" {
			h.Bus = ""
		}
		if _, attached := have.Config.Now[have.Tag.Slots["disk."+w.Name]]; !attached {
			h.Size, h.Storage = w.Size, w.Storage // PVE neither grows nor moves what still waits for a restart
		}
	}
	for _, name := range have.Volumes().stillThere() {
		if _, wanted := Find(v.Disks, name); !wanted {
			have.Disks = append(have.Disks, Disk{Name: name, Remove: true})
		}
	}
	alignSeed(v, have)
	if have.Tag.From == "" {
		have.Image, have.Template = v.Image, v.Template
	}
}

// SameOption tells of values that mean the same on this guest.
func SameOption(c view.Config, key, want, have string) bool {
	switch {
	case key == "boot":
		return behind(want, have, func(slot string) bool { return emptyOrCD(c, slot) })
	case key == "machine":
		return strings.HasPrefix(c.Next["ostype"], "w") && samePinned(want, have)
	case drives.HoldsState(key):
		return sameState(key, want, have)
	default:
		return IsCD(key, have) && sameCD(key, want, have)
	}
}

func (v VMState) sameOption(key, want, have string) bool {
	return SameOption(v.Config, key, want, have)
}

// Pending lists what PVE holds back until the next full restart.
func (v VMState) Pending(addr model.Address) []model.Pending {
	out := []model.Pending{}
	if v.Power == "running" && v.cloudInitPending() {
		out = append(out, model.Pending{Address: addr, Path: "cloud-init", Why: "written; " + cloudInitAgain, Before: "as at the last boot", After: "as declared"})
	}
	return append(out, pendingKeys(v.Config, addr, func(key string) string { return AttributePath(v, key) }, func(key string) string { return revertHint(v, "qm", key) }, "sshkeys", "cipassword")...)
}

func plainValue(m map[string]string, key string) any {
	v, ok := m[key]
	if !ok {
		return nil
	}
	if n, err := strconv.Atoi(v); err == nil {
		return n
	}
	return v
}

// isOption: a drive is one for a CD, or for the state of firmware or TPM.
func (*VM) isOption(key, val string) bool {
	return IsCD(key, val) || !isReserved(key) && (!drives.IsDrive(key) || drives.HoldsState(key))
}
