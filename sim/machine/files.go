package machine

// The file system of a simulated machine is in memory: folders, plain files, symbolic links
// and a few devices, with modes, owners and times, and the permissions that follow from them.
// Nothing is written to the disk of the real machine.
//
// Read FS first, then path.go (how a name is resolved), handle.go (an open file) and volume.go (other disks).

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Cred is who asks. The zero value is root.
type Cred struct {
	UID, GID int
	Groups   []int
}

// in reports whether one of the groups of c is gid.
func (c Cred) in(gid int) bool { return c.GID == gid || slices.Contains(c.Groups, gid) }

// FileKind is the type of a file.
type FileKind int

// The kinds of files.
const (
	PlainFile FileKind = iota
	Folder
	SymbolicLink
	DeviceFile
	BlockDevice
)

// FS is one file system. Safe for concurrent use.
type FS struct {
	// mu is for a moment only: the programs of a machine run side by side, and each call reads or
	// changes the tree as a whole.
	mu   sync.Mutex
	root *node
	now  func() time.Time
	last uint64 // inode

	Volumes *volumes // other disks
}

// node is an inode.
type node struct {
	ino          uint64
	kind         FileKind
	perm         uint32 // with set-uid, set-gid and sticky
	uid, gid     int
	mtime, ctime time.Time
	nlink        int
	data         []byte
	hole         int64 // zeros after data
	shared       bool  // data belongs to a clone as well
	target       string
	children     map[string]*node
	special      SpecialFile
	parent       *node // of a folder
	covers       *node // of a volume that is mounted: the folder that it is mounted on
}

// SpecialFile is a file that does something when it is read or written, such as those in /proc.
type SpecialFile interface {
	// ReadAt returns what the file holds from an offset on; none at its end.
	ReadAt(size int, offset int64) []byte
	// Write takes a text, or refuses it.
	Write(data []byte) error
}

// FileInfo is the result of stat(2).
type FileInfo struct {
	Name     string
	Ino      uint64
	Kind     FileKind
	Perm     uint32
	UID, GID int
	Size     int64
	ModTime  time.Time
	Changed  time.Time
	Links    int
	Target   string // of a link
}

// NewFS makes a file system that is empty but for its root.
func NewFS(now func() time.Time) *FS {
	f := &FS{now: now}
	f.root = f.node(Folder, 0o755, Cred{})
	f.root.parent = f.root
	f.Volumes = &volumes{f, map[string]*Volume{}}
	return f
}

func (f *FS) node(kind FileKind, perm uint32, c Cred) *node {
	f.last++
	n := &node{ino: f.last, kind: kind, perm: perm, uid: c.UID, gid: c.GID, nlink: 1, mtime: f.now(), ctime: f.now()}
	if kind == Folder {
		n.children = map[string]*node{}
	}
	return n
}

// Clone returns a file system with the same files, whose times go by another clock. Neither sees
// what becomes of the other.
func (f *FS) Clone(now func() time.Time) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &FS{now: now, last: f.last}
	seen := map[*node]*node{}
	var copied func(n, parent *node) *node
	copied = func(n, parent *node) *node {
		if c := seen[n]; c != nil {
			return c
		}
		n.shared = true
		c := *n
		seen[n] = &c
		c.parent = parent
		if n.covers != nil {
			c.covers = copied(n.covers, parent)
		}
		if n.kind == Folder {
			c.children = make(map[string]*node, len(n.children))
			for name, child := range n.children {
				c.children[name] = copied(child, &c)
			}
		}
		return &c
	}
	out.root = copied(f.root, nil)
	out.root.parent = out.root
	out.Volumes = &volumes{out, make(map[string]*Volume, len(f.Volumes.all))}
	for name, v := range f.Volumes.all {
		c := *v
		if v.root != nil {
			c.root = copied(v.root, nil)
		}
		out.Volumes.all[name] = &c
	}
	return out
}

func (n *node) size() int64 { return int64(len(n.data)) + n.hole }

func (n *node) info(name string) FileInfo {
	i := FileInfo{
		Name: name, Ino: n.ino, Kind: n.kind, Perm: n.perm, UID: n.uid, GID: n.gid, Size: n.size(),
		ModTime: n.mtime, Changed: n.ctime, Links: n.nlink, Target: n.target,
	}
	if n.kind == SymbolicLink {
		i.Size = int64(len(n.target))
	}
	if n.kind == Folder {
		i.Size = 4096
	}
	return i
}

// Mode is the mode as ls(1) shows it.
func (i FileInfo) Mode() string {
	const letters = "rwxrwxrwx"
	b := []byte{map[FileKind]byte{PlainFile: '-', Folder: 'd', SymbolicLink: 'l', DeviceFile: 'c', BlockDevice: 'b'}[i.Kind]}
	for bit := range 9 {
		if i.Perm&(1<<(8-bit)) != 0 {
			b = append(b, letters[bit])
		} else {
			b = append(b, '-')
		}
	}
	for at, s := range map[int][3]uint32{3: {0o4000, 's', 'S'}, 6: {0o2000, 's', 'S'}, 9: {0o1000, 't', 'T'}} {
		if i.Perm&s[0] == 0 {
			continue
		}
		if b[at] == 'x' {
			b[at] = byte(s[1])
		} else {
			b[at] = byte(s[2])
		}
	}
	return string(b)
}

// may checks the rights of c on a node; want is of 4 (read), 2 (write) and 1 (execute).
func (n *node) may(c Cred, want uint32) bool {
	if c.UID == 0 {
		return want&1 == 0 || n.kind == Folder || n.perm&0o111 != 0
	}
	bits := n.perm
	switch {
	case n.uid == c.UID:
		bits >>= 6
	case c.in(n.gid):
		bits >>= 3
	}
	return bits&want == want
}

// remove takes a name out of a folder. The folder is sticky where only owners may.
func (f *FS) remove(c Cred, dir *node, name string) error {
	n := dir.children[name]
	if !dir.may(c, 3) {
		return syscall.EACCES
	}
	if dir.perm&0o1000 != 0 && c.UID != 0 && c.UID != n.uid && c.UID != dir.uid {
		return syscall.EPERM
	}
	if n.covers != nil {
		return syscall.EBUSY
	}
	delete(dir.children, name)
	n.nlink--
	f.touch(dir)
	return nil
}

func (f *FS) touch(n *node) {
	n.mtime = f.now()
	n.ctime = n.mtime
}

// own gives a node its own copy of its bytes before a change.
func (n *node) own() {
	if n.shared {
		n.data, n.shared = slices.Clone(n.data), false
	}
}

// names lists a folder.
func (n *node) names() []string { return slices.Sorted(maps.Keys(n.children)) }

// ErrorText is an error as programs print it: "No such file or directory".
func ErrorText(err error) string {
	text := err.Error()
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
