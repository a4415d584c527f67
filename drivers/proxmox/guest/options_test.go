package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

// TestOtherSpellingsAreNoChange: the same thing said otherwise.
func TestOtherSpellingsAreNoChange(t *testing.T) {
	for _, c := range [][3]string{
		{"acpi", "", "1"},
		{"kvm", "1", "yes"},
		{"cpulimit", "2", "2.0"},
		{"cpulimit", "0", ""},
		{"cpu", "", "kvm64"},
		{"cpu", "host,flags=+aes;-pcid", "flags=-pcid;+aes,cputype=host"},
		{"cpu", "host", "host,hidden=0"},
		{"hotplug", "1", "usb,disk;network"},
		{"hotplug", "", "1"},
		{"vga", "", "type=std"},
		{"vga", "virtio", "type=virtio"},
		{"cpuunits", "20000", "10000"},
		{"cpuunits", "", "100"},
		{"watchdog", "i6300esb,action=reset", "action=reset,model=i6300esb"},
		{"rng0", "/dev/urandom", "source=/dev/urandom,max_bytes=1024,period=1000"},
		{"numa0", "cpus=1;0", "cpus=0;1"},
		{"audio0", "device=AC97", "driver=spice,device=AC97"},
		{"shares", "1000", ""},
		{"startdate", "now", ""},
		{"migrate_downtime", "0.1", ""},
		{"usb0", "spice", "host=spice,usb3=0"},
		{"hostpci0", "mapping=gpu", "rombar=on,mapping=gpu"},
		{"virtiofs0", "share", "cache=auto,dirid=share"},
	} {
		require.True(t, guest.VMKeys().Same(c[0], c[1], c[2]), "%v", c)
	}
	for _, c := range [][3]string{
		{"acpi", "", "0"},
		{"cpulimit", "2", "2.5"},
		{"cpu", "host", "max"},
		{"hotplug", "1", "0"},
		{"hotplug", "disk", ""},
		{"vga", "virtio", "virtio,memory=64"},
		{"boot", "order=scsi0;net0", "order=net0;scsi0"},
		{"watchdog", "i6300esb", ""},
		{"balloon", "0", ""},
		{"cpu", "host,flags=+aes", "host,flags=-aes"},
	} {
		require.False(t, guest.VMKeys().Same(c[0], c[1], c[2]), "%v", c)
	}
}
