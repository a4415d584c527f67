package guest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

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
		if w.Storage == "" { // of a linked clone, on the storage of its template
			h.Storage = ""
		}
		if w.Bus == "" {
			h.Bus = ""
		}
		if _, attached := have.Config.Now[have.Tag.Slots["disk."+w.Name]]; !attached {
			h.Size, h.Storage = w.Size, w.Storage // its attachment is pending, and PVE neither grows nor moves it before
		}
	}
	for _, name := range have.Volumes().stillThere() {
		if _, wanted := Find(v.Disks, name); !wanted {
			have.Disks = append(have.Disks, Disk{Name: name, Remove: true})
		}
	}
	alignSeed(v, have)
	if v.Resolution != nil && v.Adopted { // what cloud-init set is left as it is
		have.User, have.Keys, have.DNS, have.Domain = v.User, slices.Clone(v.Keys), slices.Clone(v.DNS), v.Domain
		have.Name = cmp.Or(have.Name, v.Name)
	}
	if have.Tag.From == "" {
		have.Image, have.Template = v.Image, v.Template
	}
	if !asksToRecreate(v, have) {
		have.Recreate = v.Recreate
	}
}

// SameValue implements Guest.
func (*VM) SameValue(key, want, have string) bool {
	if key == "boot" { // the devices and their order are its meaning
		return slices.Equal(BootDevices(want), BootDevices(have))
	}
	return VMKeys().Same(key, want, have) || api.HoldsState(key) && sameState(key, want, have) || IsCD(key, have) && sameCD(key, want, have)
}

// SameOption reports whether two values of an option mean the same on a VM with a configuration,
// although PVE takes them for different ones.
func SameOption(c api.GuestConfig, key, want, have string) bool {
	switch {
	case key == "boot":
		return behind(want, have, func(slot string) bool { return c.Next[slot] == "" || api.HoldsCD(c.Next[slot]) })
	case key == "machine":
		return strings.HasPrefix(c.Next["ostype"], "w") && samePinned(want, have)
	case api.HoldsState(key):
		return sameState(key, want, have)
	default:
		return IsCD(key, have) && sameCD(key, want, have)
	}
}

func (v VMState) sameOption(key, want, have string) bool {
	return SameOption(v.Config, key, want, have)
}
