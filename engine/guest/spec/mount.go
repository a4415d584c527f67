package spec

import (
	"maps"
	"slices"
	"strings"
)

// Mount is a disk of the node with a file system on it.
type Mount struct {
	Path    string   `json:"path" hcl:"path,label"`
	Disk    string   `json:"disk" hcl:"disk" cost:"hot" doc:"Name of the disk, which is the label of its file system."`
	FSType  string   `json:"fstype" hcl:"fstype" doc:"File system: ext4 or xfs."`
	Options []string `json:"options,omitempty" hcl:"options,optional" doc:"Options of mount, beside nofail."`
	Size    string   `json:"-" plan:"size" doc:"How much of the disk its file system has."`
}

// WholeDisk is the size of a file system that fills its disk.
const WholeDisk = "whole disk"

// Line is the line of /etc/fstab (fstab(5)), field by field. With nofail the machine starts
// without the disk, too.
func (m *Mount) Line() []string {
	pass := "2"
	if m.FSType == "xfs" { // which is repaired when it is mounted (fsck.xfs(8))
		pass = "0"
	}
	return []string{"LABEL=" + m.Disk, m.Path, m.FSType, strings.Join(append([]string{"nofail"}, m.Options...), ","), "0", pass}
}

// Remount lists the options for remounting. The kernel keeps unmentioned flags, so unwanted ones are reverted by
// their opposite in flags.
func (m *Mount) Remount(flags map[string]string) []string {
	out := []string{"remount"}
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		if !slices.Contains(m.Options, flag) {
			out = append(out, flags[flag])
		}
	}
	return append(out, m.Options...)
}

// Differs reports whether the machine has the mount otherwise.
func (m *Mount) Differs(o *Mount) bool {
	return m.Disk != o.Disk || m.FSType != o.FSType || m.Size != o.Size || !slices.Equal(m.Options, o.Options)
}
