package pvesim

import "strconv"

// newMount is a mount point that names a new volume as it is configured once that is
// made (create_disks in PVE/LXC.pm). One that names what is there stays as it is: nobody
// looks at the volume. The volume that was made is returned beside it.
func (w *world) newMount(g *guest, m mount, log func(string, ...any)) (value, made string, err error) {
	storage, gib, order := m.order()
	if m.kind() != "volume" || !order {
		return m.String(), "", nil
	}
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	amount, _ := strconv.ParseFloat(gib, 64) // What the pattern of orders lets through is a number.
	v, err := w.allocateMount(g.node, st, g.vmid, int64(amount*1024)<<20, log)
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
	switch {
	case st.Type == "zfspool" || st.files() && st.holds("rootdir") && size == 0:
		format = "subvol"
	case !st.holds("rootdir"):
		return nil, fail("content type 'rootdir' is not available or configured on storage '%s'", st.Name)
	}
	v, err := w.allocate(node, st, vmid, format, size, log)
	if err != nil {
		return nil, err
	}
	v.system, v.made = true, size
	if format == "raw" {
		v.used = min(size, 36405248)
		newExt4(size).logMade(w.uuid(), log)
	}
	return v, nil
}
