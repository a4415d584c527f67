package pvesim

import (
	"path"
	"strings"
)

// taken is what is said of a volume that is to be made by a name which one has already: in
// the words of the program that makes it (alloc_image in PVE/Storage/LVMPlugin.pm,
// ZFSPoolPlugin.pm and RBDPlugin.pm), of a file in PVE's own (Plugin.pm there).
func (s *store) taken(name string) error {
	base := path.Base(name)
	switch group := strings.TrimPrefix(path.Dir(s.path(name)), "/dev/"); s.Type {
	case "lvm", "lvmthin":
		return fail("lvcreate '%s/%s' error:   Logical Volume \"%s\" already exists in volume group \"%s\"", group, base, base, group)
	case "zfspool":
		return fail("zfs error: cannot create '%s/%s': dataset already exists", strings.TrimPrefix(group, "zvol/"), base)
	case "rbd":
		return fail("rbd create '%s' error: rbd: create error: (17) File exists", base)
	default:
		return fail("disk image '%s' already exists", s.path(name))
	}
}
