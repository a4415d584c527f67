package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

func TestCardKeepsWhatIsNotOurs(t *testing.T) {
	n := guest.NIC{Bridge: "vmbr1", VLAN: 12, Rate: 5}
	require.Equal(t, "virtio,bridge=vmbr1,rate=5,tag=12", proxmox.Card("", n))
	require.Equal(t, "virtio=BC:24:11:00:00:01,bridge=vmbr1,host-tunnel=1,queues=0,rate=5.0,tag=12", proxmox.Card("virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,host-tunnel=1,queues=0,rate=5.0", n))
	require.Equal(t, "e1000=AA:BB:CC:00:00:02,bridge=vmbr1", proxmox.Card("e1000=BC:24:11:00:00:01,bridge=vmbr0,tag=7", guest.NIC{Bridge: "vmbr1", MAC: "AA:BB:CC:00:00:02"}))
	require.Equal(t, "rtl8139=AA:BB:CC:00:00:03,bridge=vmbr1", proxmox.Card("model=rtl8139,macaddr=AA:BB:CC:00:00:03,bridge=vmbr0", guest.NIC{Bridge: "vmbr1"}))
}
