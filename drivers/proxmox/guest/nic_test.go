package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

// A card keeps its MAC address, and what the files do not declare.
func TestTextOfANIC(t *testing.T) {
	n, other := guest.NIC{Bridge: "vmbr1", VLAN: 12, Rate: 5}, guest.NIC{Bridge: "vmbr1", MAC: "AA:BB:CC:00:00:02"}
	for _, c := range []struct {
		nic       guest.NIC
		old, want string
	}{
		{n, "", "virtio,bridge=vmbr1,rate=5,tag=12"},
		{
			n, "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,host-tunnel=1,queues=0,rate=5.0",
			"virtio=BC:24:11:00:00:01,bridge=vmbr1,host-tunnel=1,queues=0,rate=5.0,tag=12",
		},
		{other, "e1000=BC:24:11:00:00:01,bridge=vmbr0,tag=7", "e1000=AA:BB:CC:00:00:02,bridge=vmbr1"},
		{guest.NIC{Bridge: "vmbr1"}, "model=rtl8139,macaddr=AA:BB:CC:00:00:03,bridge=vmbr0", "rtl8139=AA:BB:CC:00:00:03,bridge=vmbr1"},
	} {
		require.Equal(t, c.want, c.nic.Text(c.old))
	}
}
