package spec

import (
	"maps"
	"slices"
	"strings"
)

// Mount is a disk of the node with a file system on it, or a folder of another machine.
type Mount struct {
	Path    string   `json:"path" hcl:"path,label"`
	Disk    string   `json:"disk" hcl:"disk" cost:"hot" doc:"Name of the disk, which is the label of its file system; or the folder of another machine."`
	FSType  string   `json:"fstype" hcl:"fstype" doc:"File system: ext4, xfs, nfs or cifs."`
	Options []string `json:"options,omitempty" hcl:"options,optional" doc:"Options of mount, beside nofail."`
	Size    string   `json:"-" plan:"size" doc:"How much of the disk its file system has."`

	Credentials string `json:"credentials,omitempty"`
}

// IsNetwork reports whether it is a folder of another machine.
func (m *Mount) IsNetwork() bool { return m.FSType == "nfs" || m.FSType == "cifs" }

// LoginFile is the file with the credentials of a mount at a path.
func LoginFile(path string) string {
	return "/etc/homestak-mount" + strings.ReplaceAll(path, "/", "-") + ".credentials"
}

// LoginText is the content of that file; "" if there is none.
func (m *Mount) LoginText() string {
	if m.Credentials == "" {
		return ""
	}
	return strings.TrimRight(m.Credentials, "\n") + "\n"
}

// WholeDisk is the size of a file system that fills its disk.
const WholeDisk = "whole disk"

// isImplied reports whether an option is in the line of a mount without being declared.
func isImplied(o string) bool {
	return o == "nofail" || o == "defaults" || o == "_netdev" || strings.HasPrefix(o, "credentials=")
}

// Declared returns the options of a line of /etc/fstab that may have been declared.
func Declared(options []string) []string { return slices.DeleteFunc(slices.Clone(options), isImplied) }

// Line is the line of /etc/fstab (fstab(5)), field by field. With nofail the machine starts
// without the disk, too.
func (m *Mount) Line() []string {
	if m.IsNetwork() {
		always := []string{"nofail", "_netdev"}
		if m.Credentials != "" {
			always = append(always, "credentials="+LoginFile(m.Path))
		}
		return []string{m.Disk, m.Path, m.FSType, strings.Join(append(always, m.Options...), ","), "0", "0"}
	}
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
