package core

import "github.com/homestak/homestak-gitops/sim/pve/perl"

// Allocate makes a new empty disk. The log gets what the tool would print.
func (s *Store) Allocate(w *World, node string, vmid int, format string, size int64, log func(string, ...any)) (*Volume, error) {
	name := s.FreeDisk(node, vmid, format)
	return s.AllocateAs(w, node, name, vmid, format, size, log)
}

// AllocateAs is allocate under a given name.
func (s *Store) AllocateAs(w *World, node, name string, vmid int, format string, size int64, log func(string, ...any)) (*Volume, error) {
	v := &Volume{Name: name, Content: "images", Format: format, Size: size, Vmid: vmid, Ctime: w.Now.Unix(), Used: 4096}
	if format == "qcow2" {
		v.Used = 200704
	}
	if err := s.Room(node, v.Used); err != nil {
		return nil, err
	}
	if s.Files() && size > largestFile {
		log("Formatting '%s', fmt=%s size=%d preallocation=off", s.FilePath(name), format, size)
		return nil, perl.Fail("unable to create image: qemu-img: %s: The image size is too large for file format '%s'", s.FilePath(name), format)
	}
	switch {
	case s.Files() && format == "qcow2":
		log("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16", s.FilePath(name), size)
	case s.Files():
		log("Formatting '%s', fmt=%s size=%d preallocation=off", s.FilePath(name), format, size)
	case s.Type == "lvmthin" || s.Type == "lvm":
		log("  Logical volume \"%s\" created.", name)
	}
	s.Put(node, v)
	return v, nil
}

// Copy makes a full copy of a volume, of the same content.
func (v *Volume) Copy(w *World, node string, s *Store, vmid int, format string, log func(string, ...any)) (*Volume, error) {
	c, err := s.Allocate(w, node, vmid, format, v.Size, log)
	if err != nil {
		return nil, err
	}
	if err := s.Room(node, v.Used); err != nil {
		delete(s.Volumes, s.Key(node, c.Name))
		return nil, err
	}
	c.Used = max(c.Used, v.Used)
	c.System, c.Image = v.System, v.Image
	if v.Content == "import" {
		c.Image = v.Name + " " + v.URL
	}
	log("transferred 0.0 B of %s (0.00%%)", humanSize(v.Size))
	log("transferred %s of %s (100.00%%)", humanSize(v.Size), humanSize(v.Size))
	return c, nil
}

// Free removes a volume (vdisk_free in PVE/Storage.pm).
func Free(w *World, node, volid string) error {
	storage, name, _ := VolumeID(volid)
	s, err := w.Store(storage)
	if err != nil {
		return err
	}
	if s.InUse(node, name) {
		return perl.Fail("base volume '%s' is still in use by linked clones", name)
	}
	delete(s.Volumes, s.Key(node, name))
	return nil
}
