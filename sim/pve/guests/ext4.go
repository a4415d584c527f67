package guests

import (
	"fmt"
	"slices"
	"strings"
)

// Ext4 is the layout of a file system as mkfs.ext4 makes it with the values of mke2fs.conf: below 512 MiB blocks of
// 1 KiB and an inode for each 4 KiB, else blocks of 4 KiB and an inode for each 16 KiB. Block size, inodes per
// group, journal and room for descriptors depend on the first size, and stay when it grows.
type Ext4 struct {
	block     int64 // bytes of a block
	first     int64 // number of the first block of group 0
	blocks    int64 // when it was made
	perGroup  int64 // inodes per group
	firstDesc int64 // blocks of group descriptors when it was made
}

const inodeSize = 256

// NewExt4 is the file system that was made on a volume of so many bytes.
func NewExt4(size int64) Ext4 {
	f := Ext4{block: 4096}
	ratio := int64(16384)
	if size < 512<<20 {
		f.block, f.first, ratio = 1024, 1, 4096
	}
	f.blocks = size / f.block
	groups := max(f.groups(f.blocks), 1)
	perGroup := max(ceil(ceil(size/ratio, groups)*inodeSize, f.block)*f.block/inodeSize, 8)
	f.perGroup = perGroup / 8 * 8
	f.firstDesc = f.descriptors(groups)
	return f
}

// groups are the block groups of a file system of so many blocks.
func (f Ext4) groups(blocks int64) int64 { return ceil(blocks-f.first, 8*f.block) }

func (f Ext4) inodes() int64 { return f.perGroup * f.groups(f.blocks) }

// descriptors are the blocks that the descriptors of the groups take, of 64 bytes each.
func (f Ext4) descriptors(groups int64) int64 { return ceil(groups*64, f.block) }

// backups are the groups that carry a copy of the superblock: the first two, and the
// powers of 3, 5 and 7.
func (f Ext4) backups(blocks int64) []int64 {
	groups := f.groups(blocks)
	list := []int64{0}
	if groups > 1 {
		list = append(list, 1)
	}
	for _, base := range []int64{3, 5, 7} {
		for n := base; n < groups; n *= base {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// journalSizes are the journals of e2fsprogs, in blocks, by the size of the file system.
var journalSizes = []struct{ below, blocks int64 }{
	{32768, 1024},
	{256 << 10, 4096},
	{512 << 10, 8192},
	{4 << 20, 16384},
	{8 << 20, 32768},
	{16 << 20, 65536},
	{32 << 20, 131072},
}

func (f Ext4) journal() int64 {
	for _, step := range journalSizes {
		if f.blocks < step.below {
			return step.blocks
		}
	}
	return 262144
}

// usable returns df's size of the file system once it has grown to so many bytes: without
// inode tables, bitmaps, journal, and the superblocks with what is kept for growth.
func (f Ext4) usable(size int64) int64 {
	blocks := size / f.block
	groups, firstGroups := f.groups(blocks), f.groups(f.blocks)
	descriptors := f.descriptors(groups)
	// Room for 1024 times as many groups, and not more than a block of pointers names.
	reserved := min(max(ceil(firstGroups*1024*64, f.block)-f.firstDesc, 0), f.block/4) - (descriptors - f.firstDesc)
	tables := ceil(f.perGroup*inodeSize, f.block)
	overhead := f.first + groups*(tables+2) + int64(len(f.backups(blocks)))*(1+descriptors+reserved) + f.journal()
	return max(blocks-overhead, 0) * f.block
}

// LogMade writes the lines of mkfs.ext4 to the log of a task (mkfs in PVE/LXC.pm).
func (f Ext4) LogMade(uuid string, log func(string, ...any)) {
	log("Creating filesystem with %d %dk blocks and %d inodes", f.blocks, f.block>>10, f.inodes())
	log("Filesystem UUID: %s", uuid)
	var copies []string
	for _, group := range f.backups(f.blocks)[1:] {
		copies = append(copies, fmt.Sprint(group*8*f.block+f.first))
	}
	if len(copies) > 0 {
		log("Superblock backups stored on blocks: ")
	}
	if len(copies) > 1 { // Of a single number the filter of PVE keeps nothing.
		log("\t%s", strings.Join(copies, ", "))
	}
}

// LogGrown writes the lines of e2fsck and resize2fs to the log of a task (resize_vm in
// PVE/API2/LXC.pm).
func (f Ext4) LogGrown(path string, size int64, running bool, log func(string, ...any)) {
	blocks := size / f.block
	if running {
		log("resize2fs 1.47.0 (5-Feb-2023)")
		log("Filesystem at %s is mounted on /tmp; on-line resizing required", path)
		log("old_desc_blocks = %d, new_desc_blocks = %d", f.firstDesc, f.descriptors(f.groups(blocks)))
		log("The filesystem on %s is now %d (%dk) blocks long.\n", path, blocks, f.block>>10)
		return
	}
	log("e2fsck 1.47.0 (5-Feb-2023)")
	for _, pass := range []string{
		"1: Checking inodes, blocks, and sizes", "2: Checking directory structure", "3: Checking directory connectivity",
		"4: Checking reference counts", "5: Checking group summary information",
	} {
		log("Pass %s", pass)
	}
	log("%s: 11/%d files (0.0%% non-contiguous), %d/%d blocks", path, f.inodes(), f.blocks-f.usable(f.blocks*f.block)/f.block, f.blocks)
	log("resize2fs 1.47.0 (5-Feb-2023)")
	log("Resizing the filesystem on %s to %d (%dk) blocks.", path, blocks, f.block>>10)
	log("The filesystem on %s is now %d (%dk) blocks long.\n", path, blocks, f.block>>10)
}
