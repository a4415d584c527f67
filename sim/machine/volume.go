package machine

import "syscall"

// Volume is a disk beside the one that the root of the machine is on.
type Volume struct {
	Serial string
	Bytes  int64 // of the disk

	Type, Label string // of the file system on it; empty while nothing is on it
	Formatted   int64  // bytes of the file system
	root        *node  // nil until it is first mounted
}

// volumes are the disks of a machine. Safe for concurrent use.
type volumes struct {
	f   *FS
	all map[string]*Volume // by the names of their devices, such as sdb
}

// All lists them by the names of their devices.
func (d *volumes) All() map[string]Volume {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	out := map[string]Volume{}
	for name, v := range d.all {
		out[name] = *v
	}
	return out
}

// Set changes the size and content of a disk, and adds a missing one. The content of its file system stays if v is
// a result of All.
func (d *volumes) Set(name string, v Volume) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.all[name] = &v
}

// Mount puts the file system of a disk in the place of a folder.
func (d *volumes) Mount(volume, name string) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	dir, last, n, err := d.f.walk(Cred{}, name, true)
	v := d.all[volume]
	switch {
	case err != nil:
		return err
	case n == nil || v == nil:
		return syscall.ENOENT
	case n.kind != Folder:
		return syscall.ENOTDIR
	case n == dir || v.root != nil && v.root.covers != nil:
		return syscall.EBUSY
	}
	if v.root == nil {
		v.root = d.f.node(Folder, 0o755, Cred{})
	}
	v.root.covers, v.root.parent = n, dir
	dir.children[last] = v.root
	return nil
}

// Unmount shows again what a disk is mounted on; "" is every disk.
func (d *volumes) Unmount(volume string) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for device, v := range d.all {
		if v.root == nil || v.root.covers == nil || volume != "" && volume != device {
			continue
		}
		for name, child := range v.root.parent.children {
			if child == v.root {
				v.root.parent.children[name] = v.root.covers
			}
		}
		v.root.covers = nil
	}
}
