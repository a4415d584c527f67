package core

import (
	"path"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// Taken is what is said of a volume that is to be made by a name which one has already: in
// the words of the program that makes it (alloc_image in PVE/Storage/LVMPlugin.pm,
// ZFSPoolPlugin.pm and RBDPlugin.pm), of a file in PVE's own (Plugin.pm there).
func (s *Store) Taken(name string) error {
	base := path.Base(name)
	switch group := strings.TrimPrefix(path.Dir(s.FilePath(name)), "/dev/"); s.Type {
	case "lvm", "lvmthin":
		return perl.Fail("lvcreate '%s/%s' error:   Logical Volume \"%s\" already exists in volume group \"%s\"", group, base, base, group)
	case "zfspool":
		return perl.Fail("zfs error: cannot create '%s/%s': dataset already exists", strings.TrimPrefix(group, "zvol/"), base)
	case "rbd":
		return perl.Fail("rbd create '%s' error: rbd: create error: (17) File exists", base)
	default:
		return perl.Fail("disk image '%s' already exists", s.FilePath(name))
	}
}
