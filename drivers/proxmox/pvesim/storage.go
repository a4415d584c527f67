package pvesim

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// store is one storage with what lies on it.
type store struct {
	Storage
	volumes map[volumeKey]*volume
	assumed bool   // No entry of storage.cfg names it.
	extra   config // Options that change nothing here, as they were written.
	filled  int64  // Bytes that something else takes, see Edit.Fill.
}

// volumeKey is where a volume lies; the node is empty on a shared storage.
type volumeKey struct{ node, name string }

// volume is one file or block device.
type volume struct {
	name      string // Without the storage: 100/vm-100-disk-0.qcow2.
	node      string
	content   string
	format    string
	size      int64 // As a guest sees it.
	length    int64 // Of the file, for uploads and downloads.
	used      int64
	made      int64 // What size was when a container's file system was made on it.
	vmid      int
	parent    string // The volume it is a linked clone of, by name.
	system    bool   // Holds something that boots.
	ctime     int64
	notes     string
	protected bool
	url       string            // Where it was downloaded from.
	sums      map[string]string // Of its file, where they are known.
	backup    *backup           // What an archive holds of a guest.
	root      *rootSystem       // What a template of containers has, where its content is known.
	broken    bool              // A template that tar cannot unpack.
}

func newStore(s Storage) *store {
	return &store{Storage: s, volumes: map[volumeKey]*volume{}}
}

// files says whether volumes are files in directories.
func (s *store) files() bool { return storageTypes[s.Type].files }

// holds says whether the storage may have a kind of content.
func (s *store) holds(content string) bool { return slices.Contains(s.Content, content) }

// key is where a volume lies, seen from a node.
func (s *store) key(node, name string) volumeKey {
	if s.Shared {
		node = ""
	}
	return volumeKey{node, name}
}

func (s *store) find(node, name string) *volume { return s.volumes[s.key(node, name)] }

func (s *store) put(node string, v *volume) {
	key := s.key(node, v.name)
	v.node = key.node
	s.volumes[key] = v
}

// list are the volumes that a node sees, by name.
func (s *store) list(node string) []*volume {
	node = s.key(node, "").node
	var found []*volume
	for key, v := range s.volumes {
		if key.node == node {
			found = append(found, v)
		}
	}
	slices.SortFunc(found, func(a, b *volume) int { return strings.Compare(a.name, b.name) })
	return found
}

// used is how much is taken, seen from a node.
func (s *store) used(node string) int64 {
	node = s.key(node, "").node
	total := s.filled
	for key, v := range s.volumes {
		if key.node == node {
			total += v.used
		}
	}
	return min(total, s.Size)
}

// formatFor picks the format of a copy: what was asked for, else that of the
// source if the storage can have it.
func (s *store) formatFor(asked, source string) string {
	switch {
	case !s.files():
		return "raw"
	case asked != "":
		return asked
	case source == "qcow2" || source == "vmdk" || source == "raw":
		return source
	default:
		return "raw"
	}
}

// path is where a volume lies in the file system of its node.
func (s *store) path(name string) string {
	if !s.files() {
		switch s.Type {
		case "zfspool":
			return "/dev/zvol/" + s.Name + "/" + path.Base(name)
		case "rbd":
			return "rbd:" + s.Name + "/" + path.Base(name)
		default:
			return "/dev/pve/" + path.Base(name)
		}
	}
	first, rest, _ := strings.Cut(name, "/")
	switch first {
	case "iso":
		return s.Path + "/template/iso/" + rest
	case "vztmpl":
		return s.Path + "/template/cache/" + rest
	case "backup":
		return s.Path + "/dump/" + rest
	case "import", "snippets":
		return s.Path + "/" + name
	}
	parts := strings.Split(name, "/") // A linked clone names its base first.
	return s.Path + "/images/" + strings.Join(parts[max(len(parts)-2, 0):], "/")
}

// freeDisk is the name of a new disk of a guest: with the lowest number that
// neither a disk nor a base of it has there.
func (s *store) freeDisk(node string, vmid int, format string) string {
	node = s.key(node, "").node
	taken := map[int]bool{}
	for key := range s.volumes {
		if key.node != node {
			continue
		}
		if m := diskPart.FindStringSubmatch(path.Base(key.name)); m != nil && atoi(m[1]) == vmid && s.dirOf(key.name, vmid) {
			taken[atoi(m[2])] = true
		}
	}
	n := 0
	for taken[n] {
		n++
	}
	return diskName(s, vmid, n, format)
}

// dirOf says whether a volume lies where those of a guest do: of files it is the folder
// that counts, whatever guest a name tells (list_images in PVE/Storage/Plugin.pm).
func (s *store) dirOf(name string, vmid int) bool {
	return !s.files() || path.Base(path.Dir(name)) == itoa(vmid)
}

// contentOf is the kind of content of a volume: a disk belongs to a VM or, as a
// rootdir, to a container.
func (w *world) contentOf(v *volume) string {
	if g := w.guests[v.vmid]; v.content == "images" && g != nil && g.kind == "lxc" {
		return "rootdir"
	}
	return v.content
}

// volumeID splits STORAGE:NAME; ok is false for anything else.
func volumeID(volid string) (storage, name string, ok bool) {
	storage, name, ok = strings.Cut(volid, ":")
	return storage, name, ok && storage != "" && name != "" && !strings.Contains(storage, "/")
}

// store finds a storage (storage_config in PVE/Storage.pm).
func (w *world) store(name string) (*store, error) {
	s := w.stores[name]
	switch {
	case s == nil:
		return nil, fail("storage '%s' does not exist", name)
	case s.disabled():
		return nil, fail("storage '%s' is disabled", name)
	case !s.serves(w.cfg.Node):
		return nil, fail("storage '%s' is not available on node '%s'", name, w.cfg.Node)
	}
	return s, nil
}

// volume finds a volume by its id, seen from a node; nil if there is none.
func (w *world) volume(node, volid string) *volume {
	storage, name, ok := volumeID(volid)
	if !ok || w.stores[storage] == nil {
		return nil
	}
	return w.stores[storage].find(node, name)
}

// storeNames lists the storages, sorted.
func (w *world) storeNames() []string { return slices.Sorted(maps.Keys(w.stores)) }

// largestFile is what a file system takes: that of ext4 with its usual blocks.
const largestFile = 16 << 40

// allocate makes a new empty disk. The log gets what the tool would print.
func (w *world) allocate(node string, s *store, vmid int, format string, size int64, log func(string, ...any)) (*volume, error) {
	name := s.freeDisk(node, vmid, format)
	return w.allocateAs(node, s, name, vmid, format, size, log)
}

// allocateAs is allocate under a given name.
func (w *world) allocateAs(node string, s *store, name string, vmid int, format string, size int64, log func(string, ...any)) (*volume, error) {
	v := &volume{name: name, content: "images", format: format, size: size, vmid: vmid, ctime: w.now.Unix(), used: 4096}
	if format == "qcow2" {
		v.used = 200704
	}
	if err := s.room(node, v.used); err != nil {
		return nil, err
	}
	if s.files() && size > largestFile {
		log("Formatting '%s', fmt=%s size=%d preallocation=off", s.path(name), format, size)
		return nil, fail("unable to create image: qemu-img: %s: The image size is too large for file format '%s'", s.path(name), format)
	}
	switch {
	case s.files() && format == "qcow2":
		log("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16", s.path(name), size)
	case s.files():
		log("Formatting '%s', fmt=%s size=%d preallocation=off", s.path(name), format, size)
	case s.Type == "lvmthin" || s.Type == "lvm":
		log("  Logical volume \"%s\" created.", name)
	}
	s.put(node, v)
	return v, nil
}

// room fails when a storage cannot take so many bytes more.
func (s *store) room(node string, bytes int64) error {
	if s.used(node)+bytes <= s.Size && s.used(node) < s.Size {
		return nil
	}
	switch s.Type {
	case "lvmthin":
		return fail("lvcreate 'pve/%s' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.", s.Name)
	case "zfspool":
		return fail("zfs error: cannot create '%s': out of space", s.Name)
	default:
		return fail("unable to create image: No space left on device (storage '%s')", s.Name)
	}
}

// copyDisk makes a full copy of a volume, of the same content.
func (w *world) copyDisk(node string, source *volume, s *store, vmid int, format string, log func(string, ...any)) (*volume, error) {
	v, err := w.allocate(node, s, vmid, format, source.size, log)
	if err != nil {
		return nil, err
	}
	if err := s.room(node, source.used); err != nil {
		delete(s.volumes, s.key(node, v.name))
		return nil, err
	}
	v.used = max(v.used, source.used)
	v.system = source.system
	log("transferred 0.0 B of %s (0.00%%)", humanSize(source.size))
	log("transferred %s of %s (100.00%%)", humanSize(source.size), humanSize(source.size))
	return v, nil
}

// free removes a volume (vdisk_free in PVE/Storage.pm).
func (w *world) free(node, volid string) error {
	storage, name, _ := volumeID(volid)
	s, err := w.store(storage)
	if err != nil {
		return err
	}
	if s.inUse(node, name) {
		return fail("base volume '%s' is still in use by linked clones", name)
	}
	delete(s.volumes, s.key(node, name))
	return nil
}

// inUse says whether linked clones of a volume live.
func (s *store) inUse(node, name string) bool {
	for _, v := range s.list(node) {
		if v.parent == name {
			return true
		}
	}
	return false
}

// humanSize prints bytes with one digit behind the point (render_bytes).
func humanSize(bytes int64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + units[0]
}

// sized invents a number of bytes for a name: the same for the same seed.
func (w *world) sized(name string, from, to int64) int64 {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%d %s", w.cfg.Seed, name)
	return from + int64(hash.Sum64()%uint64(to-from))
}

// serves says whether a storage is meant for a node.
func (s *store) serves(node string) bool {
	nodes := splitList(s.extra["nodes"])
	return len(nodes) == 0 || slices.Contains(nodes, node)
}

// disabled says whether a storage is switched off.
func (s *store) disabled() bool { return s.extra["disable"] == "1" }

// on says whether a storage can be used on a node.
func (s *store) on(node string) bool { return !s.disabled() && s.serves(node) }

// assumeLocal adds the storage local that PVE takes to be there when storage.cfg
// does not name it (parse_config in PVE/Storage/Plugin.pm).
func (w *world) assumeLocal() *store {
	s := newStore(Storage{Name: "local", Type: "dir", Path: "/var/lib/vz", Content: strings.Fields("backup images iso rootdir snippets vztmpl"), Size: cmp.Or(w.cfg.StorageSize, 1<<40)})
	s.assumed, s.extra = true, config{"priority": "0", "prune-backups": "keep-all=1"}
	w.stores["local"] = s
	return s
}

// backup is what an archive of vzdump holds of a guest.
type backup struct {
	kind  string
	conf  config
	disks map[string]saved // By key of the configuration.
}

// saved is one disk in an archive.
type saved struct {
	volid  string
	format string
	size   int64
	used   int64
	system bool
}
