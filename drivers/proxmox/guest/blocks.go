package guest

import (
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Find gives the block of a name.
func Find[B interface{ label() string }](blocks []B, name string) (block B, ok bool) {
	for _, b := range blocks {
		if b.label() == name {
			return b, true
		}
	}
	return block, false
}

// RootFirst puts the root disk in front; where no file declares it, it is added.
func RootFirst[B interface{ label() string }](disks []B, root B) []B {
	if i := slices.IndexFunc(disks, func(d B) bool { return d.label() == root.label() }); i >= 0 {
		root = disks[i]
		disks = slices.Delete(disks, i, i+1)
	}
	return slices.Insert(disks, 0, root)
}

// byName sorts blocks as the files' are.
func byName[B interface{ label() string }](blocks []B) {
	slices.SortFunc(blocks, func(a, b B) int { return model.CompareNames(a.label(), b.label()) })
}

func (d Disk) label() string { return d.Name }

func (d CTDisk) label() string { return d.Name }

func (n NIC) label() string { return n.Name }

func (n CTNIC) label() string { return n.Name }

func (v Volume) label() string { return v.Name }

func (p Port) label() string { return p.Name }
