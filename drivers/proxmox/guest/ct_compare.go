package guest

import (
	"maps"
	"slices"
)

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
			CTKeys().AlignMembers("net0", w.Options, h.Options)
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
			CTKeys().AlignMembers(MountKey(h.Name), w.Options, h.Options)
		}
	}
	for _, name := range have.Volumes().stillThere() {
		if _, wanted := Find(c.Disks, name); !wanted {
			have.Disks = append(have.Disks, CTDisk{Name: name, Remove: true})
		}
	}
	if have.Template == "" { // it was adopted, and nothing shows what it was made from
		have.Template = c.Template
	}
	if !asksToRecreate(c, have) {
		have.Recreate = c.Recreate
	}
}

// SameValue implements Guest.
func (*CT) SameValue(key, want, have string) bool { return CTKeys().Same(key, want, have) }

// sameOption implements State.
func (CTState) sameOption(string, string, string) bool { return false }

// SameMount reports whether two disks are mounted alike, whatever their volumes.
func (d CTDisk) SameMount(b CTDisk) bool {
	return d.Path == b.Path && d.Backup == b.Backup && slices.Equal(memberTexts(d.Options), memberTexts(b.Options))
}
