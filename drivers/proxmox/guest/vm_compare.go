package guest

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
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

// SameValue compares what would be written with what is in force.
func (*VM) SameValue(key, want, have string) bool {
	if key == "boot" { // its order is its meaning
		return slices.Equal(options.BootDevices(want), options.BootDevices(have))
	}
	return options.VM().Same(key, want, have) || drives.HoldsState(key) && sameState(key, want, have) || IsCD(key, have) && sameCD(key, want, have)
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
