package pvesim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// What no recording of a real host covers, from PVE's source.

// TestRatesInBytes: what a drive is given in bytes per second is 0.000 afterwards
// (parse_drive in PVE/QemuServer/Drive.pm).
func TestRatesInBytes(t *testing.T) {
	for _, version := range pvesim.Versions() {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1,bps=10485760"})
		require.Equal(t, "files:100/vm-100-disk-0.raw,mbps=0.000,size=1G", c.object(vmURL("100", "/config"))["scsi0"])
		set := func(value, want string) step { return step{"PUT", vmURL("100", "/config"), form{"scsi0": value}, want} }
		const disk, unparsed = "files:100/vm-100-disk-0.raw", "scsi0: unable to parse drive options"
		c.steps(
			set(disk+",bps_rd=1,bps_wr=2", "OK"),
			set(disk+",bps_rd=1,mbps_rd=2", unparsed),
			set(disk+",bps=1,mbps_rd=2", unparsed),
			set(disk+",bps=1,mbps_max=2", "OK"),
		)
		require.Equal(t, disk+",mbps=0.000,mbps_max=2,size=1G", c.object(vmURL("100", "/config"))["scsi0"])
	}
}
