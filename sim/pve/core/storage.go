package core

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Store is one storage with its volumes.
type Store struct {
	Storage
	Volumes map[VolumeKey]*Volume
	Assumed bool        // No entry of storage.cfg names it.
	Extra   perl.Config // Options that change nothing here, as they were written.
	Filled  int64       // Bytes that something else takes, see Edit.Fill.
}

// VolumeKey is the place of a volume; the node is empty on a shared storage.
type VolumeKey struct{ node, Name string }

// Volume is one file or block device.
type Volume struct {
	Name      string // Without the storage: 100/vm-100-disk-0.qcow2.
	Node      string
	Content   string
	Format    string
	Size      int64 // As a guest sees it.
	Length    int64 // Of the file, for uploads and downloads.
	Used      int64
	Made      int64 // Size when a container's file system was made on it.
	Vmid      int
	Parent    string // The volume it is a linked clone of, by name.
	System    bool   // Holds something that boots.
	Ctime     int64
	Notes     string
	Protected bool
	Image     string                   // Source of a disk: name and address.
	URL       string                   // Address it was downloaded from.
	Sums      func() map[string]string // Of its file; nil where they are not known.
	Backup    *Backup                  // The guest in an archive.
	Root      *content.RootSystem      // The system in a template of containers, if its content is known.
	Broken    bool                     // A template or a backup that cannot be unpacked.
	Verified  string                   // What a Proxmox Backup Server says of a backup: ok, failed, or "" before it looked.
	Encrypted string                   // Fingerprint of the key of a backup on one.
	Disc      []byte                   // Content of a small ISO image that was uploaded; immutable.
}

// NewStore is a storage with nothing on it.
func NewStore(s Storage) *Store {
	return &Store{Storage: s, Volumes: map[VolumeKey]*Volume{}}
}

// Files says whether volumes are files in directories.
func (s *Store) Files() bool { return StorageTypes[s.Type].files }

// Holds says whether the storage may have a kind of content.
func (s *Store) Holds(content string) bool { return slices.Contains(s.Content, content) }

// Key returns the place of a volume, seen from a node.
func (s *Store) Key(node, name string) VolumeKey {
	if s.Shared {
		node = ""
	}
	return VolumeKey{node, name}
}

// Find finds a volume as a node sees it; nil if there is none.
func (s *Store) Find(node, name string) *Volume { return s.Volumes[s.Key(node, name)] }

// Put keeps a volume, in place of one of the same name.
func (s *Store) Put(node string, v *Volume) {
	key := s.Key(node, v.Name)
	v.Node = key.node
	s.Volumes[key] = v
}

// List are the volumes that a node sees, by name.
func (s *Store) List(node string) []*Volume {
	node = s.Key(node, "").node
	var found []*Volume
	for key, v := range s.Volumes {
		if key.node == node {
			found = append(found, v)
		}
	}
	slices.SortFunc(found, func(a, b *Volume) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Used returns the used bytes, seen from a node.
func (s *Store) Used(node string) int64 {
	node = s.Key(node, "").node
	total := s.Filled
	for key, v := range s.Volumes {
		if key.node == node {
			total += v.Used
		}
	}
	return min(total, s.Size)
}

// FormatFor picks the format of a copy: what was asked for, else that of the
// source if the storage can have it.
func (s *Store) FormatFor(asked, source string) string {
	switch {
	case !s.Files():
		return "raw"
	case asked != "":
		return asked
	case source == "qcow2" || source == "vmdk" || source == "raw":
		return source
	default:
		return "raw"
	}
}

// FilePath returns the path of a volume in the file system of its node.
func (s *Store) FilePath(name string) string {
	if !s.Files() {
		switch s.Type {
		case "zfspool":
			return "/dev/zvol/" + s.Name + "/" + path.Base(name)
		case "rbd":
			return "rbd:" + s.Name + "/" + path.Base(name)
		case "pbs":
			return "pbs://root@pam@" + s.Extra["server"] + ":" + s.Extra["datastore"] + "/" + strings.TrimPrefix(name, "backup/")
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

// FreeDisk is the name of a new disk of a guest: with the lowest number that
// neither a disk nor a base of it has there.
func (s *Store) FreeDisk(node string, vmid int, format string) string {
	node = s.Key(node, "").node
	taken := map[int]bool{}
	for key := range s.Volumes {
		if key.node != node {
			continue
		}
		if m := diskPart.FindStringSubmatch(path.Base(key.Name)); m != nil && perl.Atoi(m[1]) == vmid && s.dirOf(key.Name, vmid) {
			taken[perl.Atoi(m[2])] = true
		}
	}
	n := 0
	for taken[n] {
		n++
	}
	return s.DiskName(vmid, n, format)
}

// dirOf reports whether a volume is where those of a guest are: of files it is the folder
// that counts, whatever guest a name tells (list_images in PVE/Storage/Plugin.pm).
func (s *Store) dirOf(name string, vmid int) bool {
	return !s.Files() || path.Base(path.Dir(name)) == perl.Itoa(vmid)
}

// VolumeID splits STORAGE:NAME; ok is false for anything else.
func VolumeID(volid string) (storage, name string, ok bool) {
	storage, name, ok = strings.Cut(volid, ":")
	return storage, name, ok && storage != "" && name != "" && !strings.Contains(storage, "/")
}

// Store finds a storage (storage_config in PVE/Storage.pm).
func (w *World) Store(name string) (*Store, error) {
	s := w.Stores[name]
	switch {
	case s == nil:
		return nil, perl.Fail("storage '%s' does not exist", name)
	case s.Disabled():
		return nil, perl.Fail("storage '%s' is disabled", name)
	case !s.Serves(w.Cfg.Node):
		return nil, perl.Fail("storage '%s' is not available on node '%s'", name, w.Cfg.Node)
	}
	return s, nil
}

// Store finds the storage of a call.
func (c *Call) Store() (*Store, error) { return c.W.Store(c.In["storage"]) }

// Volume finds a volume by its id, seen from a node; nil if there is none.
func (w *World) Volume(node, volid string) *Volume {
	storage, name, ok := VolumeID(volid)
	if !ok || w.Stores[storage] == nil {
		return nil
	}
	return w.Stores[storage].Find(node, name)
}

// StoreNames lists the storages, sorted.
func (w *World) StoreNames() []string { return slices.Sorted(maps.Keys(w.Stores)) }

// largestFile is the limit of a file system: that of ext4 with its usual blocks.
const largestFile = 16 << 40

// Room fails when a storage cannot take so many bytes more.
func (s *Store) Room(node string, bytes int64) error {
	if s.Used(node)+bytes <= s.Size && s.Used(node) < s.Size {
		return nil
	}
	switch s.Type {
	case "lvmthin":
		return perl.Fail("lvcreate 'pve/%s' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.", s.Name)
	case "zfspool":
		return perl.Fail("zfs error: cannot create '%s': out of space", s.Name)
	default:
		return perl.Fail("unable to create image: No space left on device (storage '%s')", s.Name)
	}
}

// InUse says whether linked clones of a volume live.
func (s *Store) InUse(node, name string) bool {
	for _, v := range s.List(node) {
		if v.Parent == name {
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

// Sized invents a number of bytes for a name: the same for the same seed.
func (w *World) Sized(name string, from, to int64) int64 {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%d %s", w.Cfg.Seed, name)
	return from + int64(hash.Sum64()%uint64(to-from))
}

// Serves says whether a storage is meant for a node.
func (s *Store) Serves(node string) bool {
	nodes := perl.SplitList(s.Extra["nodes"])
	return len(nodes) == 0 || slices.Contains(nodes, node)
}

// Disabled says whether a storage is switched off.
func (s *Store) Disabled() bool { return s.Extra["disable"] == "1" }

// On says whether a storage can be used on a node.
func (s *Store) On(node string) bool { return !s.Disabled() && s.Serves(node) }

// AssumeLocal adds the storage local that PVE takes to be there when storage.cfg
// does not name it (parse_config in PVE/Storage/Plugin.pm).
func (w *World) AssumeLocal() *Store {
	s := NewStore(Storage{Name: "local", Type: "dir", Path: "/var/lib/vz", Content: strings.Fields("backup images iso rootdir snippets vztmpl"), Size: cmp.Or(w.Cfg.StorageSize, 1<<40)})
	s.Assumed, s.Extra = true, perl.Config{"priority": "0", "prune-backups": "keep-all=1"}
	w.Stores["local"] = s
	return s
}

// Backup is a guest in an archive of vzdump.
type Backup struct {
	Kind  string
	Conf  perl.Config
	Disks map[string]Saved // By key of the configuration.
}

// Saved is one disk in an archive.
type Saved struct {
	Volid  string
	Format string
	Size   int64
	Used   int64
	System bool
}

// Taken is the error of creating a volume under a name that exists already: in
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
