package pvesim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The values of a container's configuration: its mount points and its network
// devices (PVE/LXC/Config.pm).

var mountKey = regexp.MustCompile(`^(?:rootfs|mp\d+)$`)

func isMount(key string) bool { return mountKey.MatchString(key) }

// mountNames are the mount points of a configuration: the root, then the others
// by number.
func mountNames(c config) []string {
	var names []string
	if _, ok := c["rootfs"]; ok {
		names = append(names, "rootfs")
	}
	return append(names, indexedKeys(c, "mp")...)
}

// ctProperty reads a property string by the table's description of a container's
// key. What does not parse is empty, as in parseProperty.
func ctProperty(key, value string) map[string]string {
	v, ok := configParams["lxc"]().Param(key)
	if !ok {
		return map[string]string{}
	}
	parsed, err := v.ParseProperty(value)
	if err != nil {
		return map[string]string{}
	}
	return parsed
}

// mount is a mount point: a volume (or a path of the host) and options.
type mount struct {
	key    string
	volume string
	opts   map[string]string
}

func parseMount(key, value string) mount {
	m := mount{key: key, opts: ctProperty(key, value)}
	if m.volume = m.opts["volume"]; m.volume == "" {
		m.volume, _, _ = strings.Cut(value, ",")
	}
	delete(m.opts, "volume")
	return m
}

// String prints a mount point: the volume, where it is mounted, then the options
// in the order of the alphabet.
func (m mount) String() string {
	parts := []string{m.volume}
	if m.opts["mp"] != "" {
		parts = append(parts, "mp="+m.opts["mp"])
	}
	for _, key := range slices.Sorted(maps.Keys(m.opts)) {
		if key != "mp" {
			parts = append(parts, key+"="+m.opts[key])
		}
	}
	return strings.Join(parts, ",")
}

// kind is volume, or bind or device for what belongs to the host
// (classify_mountpoint).
func (m mount) kind() string {
	switch {
	case strings.HasPrefix(m.volume, "/dev/"):
		return "device"
	case strings.HasPrefix(m.volume, "/"):
		return "bind"
	default:
		return "volume"
	}
}

// order says whether the volume is one to be made: STORAGE:GIB.
func (m mount) order() (storage, gib string, ok bool) {
	if found := newDisk.FindStringSubmatch(m.volume); found != nil && found[1] != "" {
		return found[1], found[2], true
	}
	return "", "", false
}

// ctNet brings a network device of a container into the form in which it is
// stored: with a hardware address, its name first.
func (w *world) ctNet(value string) string {
	n := ctProperty("net0", value)
	if n["hwaddr"] == "" {
		n["hwaddr"] = w.mac()
	}
	n["type"] = "veth"
	return printCTNet(n)
}

func printCTNet(n map[string]string) string {
	parts := []string{"name=" + n["name"]}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "name" {
			parts = append(parts, key+"="+n[key])
		}
	}
	return strings.Join(parts, ",")
}

// ctCanonical is a value as it is stored.
func (w *world) ctCanonical(key, value string) string {
	switch family := familyOf(key); {
	case family == "net" && key != family:
		return w.ctNet(value)
	case key == "tags":
		return w.uniqueTags(value)
	case key == "nameserver", key == "searchdomain":
		return strings.Join(splitList(value), " ")
	default:
		return canonical("lxc", key, value)
	}
}

// makeMount turns a mount point as ordered into one as configured: it allocates,
// or looks up the size of what is there. The volume that it made is returned
// beside it (create_disks in PVE/LXC.pm).
func (w *world) makeMount(g *guest, m mount, log func(string, ...any)) (value, made string, err error) {
	if m.kind() != "volume" {
		return m.String(), "", nil
	}
	storage, gib, order := m.order()
	if !order {
		v := w.volume(g.node, m.volume)
		if v == nil {
			return "", "", fail("volume '%s' does not exist", m.volume)
		}
		m.opts["size"] = formatSize(v.size)
		return m.String(), "", nil
	}
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	if !st.holds("rootdir") {
		return "", "", fail("storage '%s' does not support content type 'rootdir'", storage)
	}
	size, _ := parseSize(gib + "G")
	v, err := w.allocateMount(g.node, st, g.vmid, size>>10<<10, log)
	if err != nil {
		return "", "", err
	}
	m.volume = storage + ":" + v.name
	m.opts["size"] = formatSize(v.size)
	return m.String(), m.volume, nil
}

// allocateMount makes a file system for a container: a disk image with ext4 on
// it, or a subvolume where the storage has such (alloc_disk in PVE/LXC.pm).
func (w *world) allocateMount(node string, st *store, vmid int, size int64, log func(string, ...any)) (*volume, error) {
	format := "raw"
	if st.Type == "zfspool" || st.files() && size == 0 {
		format = "subvol"
	}
	v, err := w.allocate(node, st, vmid, format, size, log)
	if err != nil {
		return nil, err
	}
	v.system, v.made = true, size
	if format == "raw" {
		blocks := size / 4096
		v.used = min(size, 36405248)
		log("Creating filesystem with %d 4k blocks and %d inodes", blocks, blocks/4)
		log("Filesystem UUID: %s", w.uuid())
		log("Superblock backups stored on blocks: ")
		log("\t%s", strings.Join(superblocks(blocks), ", "))
	}
	return v, nil
}

// backupGroups are the block groups of an ext4 file system that carry a copy of
// its superblock: the first two, and the powers of 3, 5 and 7.
func backupGroups(blocks int64) []int64 {
	groups := (blocks + 32767) / 32768
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

func superblocks(blocks int64) []string {
	var list []string
	for _, group := range backupGroups(blocks)[1:] {
		list = append(list, fmt.Sprint(group*32768))
	}
	return list
}

// ext4Usable is what df tells of an ext4 file system of so many bytes: without
// inode tables, bitmaps, journal and the superblocks with what is kept for growth.
// Journal and what is kept are those of the size it was made with: resize2fs leaves
// them as they are.
func ext4Usable(size, made int64) int64 {
	blocks, first := size/4096, made/4096
	groups, firstGroups := (blocks+32767)/32768, (first+32767)/32768
	journal := int64(262144)
	for _, step := range []struct{ below, blocks int64 }{
		{32768, 1024},
		{256 << 10, 4096},
		{512 << 10, 8192},
		{4 << 20, 16384},
		{8 << 20, 32768},
		{16 << 20, 65536},
		{32 << 20, 131072},
	} {
		if first < step.below {
			journal = step.blocks
			break
		}
	}
	descriptors := (groups*64 + 4095) / 4096
	reserved := min(max(firstGroups*16-(firstGroups*64+4095)/4096, 0), 1024) - (descriptors - (firstGroups*64+4095)/4096)
	overhead := groups*(512+2) + int64(len(backupGroups(blocks)))*(1+descriptors+reserved) + journal
	return max(blocks-overhead, 0) * 4096
}

// ctSystems are the distributions that a template's name may begin with.
var ctSystems = []string{"debian", "devuan", "ubuntu", "centos", "fedora", "opensuse", "archlinux", "alpine", "gentoo", "nixos"}

// ctSystem finds out what is in a template: PVE looks into it, here its name
// must tell.
func ctSystem(volid string) (ostype, arch string) {
	ostype, arch = "debian", "amd64"
	for _, system := range ctSystems {
		if strings.Contains(volid, system) {
			ostype = system
		}
	}
	for _, other := range []string{"arm64", "armhf", "i386", "riscv64"} {
		if strings.Contains(volid, "_"+other) {
			arch = other
		}
	}
	return ostype, arch
}
