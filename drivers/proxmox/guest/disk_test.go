package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

// The machine finds an empty disk by its serial number, which is its name.
func TestTheNameOfADiskIsItsSerialNumber(t *testing.T) {
	for _, c := range []struct{ name, slot, want string }{
		{"data", "scsi1", "local-lvm:8,discard=on,iothread=1,ssd=1,serial=data"},
		{"data", "virtio1", "local-lvm:8,discard=on,iothread=1,serial=data"},
		{"root", "scsi0", "local-lvm:8,discard=on,iothread=1,ssd=1"},
		{"a-name-of-21-letters-", "sata1", "local-lvm:8,discard=on,ssd=1"},
	} {
		d := guest.Disk{Name: c.name, Storage: "local-lvm", Size: 8}
		require.Equal(t, c.want, d.NewValue(c.slot))
	}
	d := guest.Disk{Name: "data"}
	require.Equal(t, "local-lvm:vm-100-disk-1,discard=on,iothread=1,ssd=1,serial=data", d.AttachValue("local-lvm:vm-100-disk-1", "scsi1"))
	require.Equal(t, "local-lvm:vm-100-disk-1,ssd=1", d.KeepValue("local-lvm:vm-100-disk-1,ssd=1"), "one that is attached keeps what it has")
}
