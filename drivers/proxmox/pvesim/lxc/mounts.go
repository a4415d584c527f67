package lxc

import (
	"strconv"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/volumes"
)

// newMount is a mount point that names a new volume as it is configured once that is
// made (create_disks in PVE/LXC.pm). One that names what is there stays as it is: nobody
// looks at the volume. The volume that was made is returned beside it.
func newMount(w *core.World, g *core.Guest, m property.Mount, log func(string, ...any)) (value, made string, err error) {
	storage, gib, order := m.Order()
	if m.Kind() != "volume" || !order {
		return m.String(), "", nil
	}
	st, err := w.Store(storage)
	if err != nil {
		return "", "", err
	}
	amount, _ := strconv.ParseFloat(gib, 64) // What the pattern of orders lets through is a number.
	v, err := allocateMount(w, g.Node, st, g.Vmid, int64(amount*1024)<<20, log)
	if err != nil {
		return "", "", err
	}
	m.Volume = storage + ":" + v.Name
	m.Opts["size"] = property.FormatSize(v.Size)
	return m.String(), m.Volume, nil
}

// allocateMount makes a file system for a container: a disk image with ext4 on
// it, or a subvolume where the storage has such (alloc_disk in PVE/LXC.pm).
func allocateMount(w *core.World, node string, st *core.Store, vmid int, size int64, log func(string, ...any)) (*core.Volume, error) {
	format := "raw"
	switch {
	case st.Type == "zfspool" || st.Files() && st.Holds("rootdir") && size == 0:
		format = "subvol"
	case !st.Holds("rootdir"):
		return nil, perl.Fail("content type 'rootdir' is not available or configured on storage '%s'", st.Name)
	}
	v, err := volumes.Allocate(w, node, st, vmid, format, size, log)
	if err != nil {
		return nil, err
	}
	v.System, v.Made = true, size
	if format == "raw" {
		v.Used = min(size, 36405248)
		guests.NewExt4(size).LogMade(w.Rng.UUID(), log)
	}
	return v, nil
}
