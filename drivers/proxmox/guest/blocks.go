package guest

import (
	"slices"
	"sort"

	"github.com/homestak/homestak-gitops/engine/model"
)

// labelled is a block of the files with a name: a disk or a network card.
type labelled interface{ label() string }

// Find is the block with a name.
func Find[B labelled](blocks []B, name string) (block B, ok bool) {
	for _, b := range blocks {
		if b.label() == name {
			return b, true
		}
	}
	return block, false
}

// RootFirst moves the root disk to the front. If the files do not declare it, root is added.
func RootFirst[B labelled](disks []B, root B) []B {
	if i := slices.IndexFunc(disks, func(d B) bool { return d.label() == root.label() }); i >= 0 {
		root = disks[i]
		disks = slices.Delete(disks, i, i+1)
	}
	return slices.Insert(disks, 0, root)
}

// byName sorts blocks as those of the files are sorted.
func byName[B labelled](blocks []B) {
	sort.Slice(blocks, func(i, j int) bool { return model.CompareNames(blocks[i].label(), blocks[j].label()) < 0 })
}

func (d Disk) label() string   { return d.Name }
func (d CTDisk) label() string { return d.Name }
func (n NIC) label() string    { return n.Name }
func (n CTNIC) label() string  { return n.Name }
func (v Volume) label() string { return v.Name }
func (p Port) label() string   { return p.Name }
