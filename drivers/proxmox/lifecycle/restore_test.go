package lifecycle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// TestForbiddenKeysOfARestoredGuest: keys now in force and pending ones. The stories are in drivers/proxmox.
func TestForbiddenKeysOfARestoredGuest(t *testing.T) {
	cfg := api.GuestConfig{
		Now: map[string]string{
			"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "hostpci0": "mapping=gpu", "usb1": "host=1234:5678", "virtiofs0": "dirid=share", "serial0": "socket",
			"serial1": "/dev/ttyS0", "dev0": "/dev/dri/card0", "hookscript": "local:snippets/x", "scsi0": "local-lvm:vm-1-disk-0", "nameserver": "10.0.0.1", "memory": "512",
			"args": "-netdev user,id=n0", "ivshmem": "size=32", "mp0": "/srv/files,mp=/files", "mp1": "local-lvm:vm-1-disk-1,mp=/data", "scsi1": "/dev/sdb",
		},
		Next: map[string]string{"net1": "virtio=BC:24:11:00:00:02,bridge=vmbr0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"},
	}
	require.Equal(t, []string{"args", "dev0", "hookscript", "hostpci0", "ivshmem", "mp0", "net0", "net1", "scsi1", "serial1", "usb1", "virtiofs0"}, attachments(cfg))
	require.Empty(t, attachments(api.GuestConfig{Now: map[string]string{"serial0": "socket", "scsi0": "x"}}))
}
