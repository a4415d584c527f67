package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

const uuid = "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"

// adopt resolves a guest that existed.
func adopt(kind string, spec any, vmid int, identity string) (guest.Target, []string) {
	in := scope()
	in.Node.VMID, in.Node.Adopt, in.Node.Spec = vmid, identity, ""
	r := &model.Resource{Addr: model.Address{Kind: kind, Name: "web-1"}, Spec: spec}
	problems := proxmox.ResolveGuest(kind)(r, in)
	return guest.TargetOf(r), summaries(problems)
}

// A guest made by hand may have neither disk nor nic nor cloud-init, so that no default of the site counts.
func TestAdoptedGuestHasNoDefaults(t *testing.T) {
	target, problems := adopt("vm", guest.WithDefaults(&guest.VM{Memory: 512}), 104, uuid)
	require.Empty(t, problems)
	v := target.(guest.VMTarget)
	require.Equal(t, 1, v.Cores)
	require.Empty(t, v.Disks)
	require.Empty(t, v.NICs)
	require.Empty(t, v.Options)
	require.Empty(t, v.User+v.Domain)
	require.Empty(t, v.Keys)
	require.Empty(t, v.DNS)
	require.Equal(t, "web-1", v.Name)

	target, problems = adopt("ct", guest.WithDefaults(&guest.CT{Memory: 512, Features: []string{"fuse"}, NICs: []guest.CTNIC{{Name: "net0"}}}), 104, "BC:24:11:00:00:01")
	require.Empty(t, problems)
	c := target.(guest.CTTarget)
	require.Zero(t, c.Cores)
	require.Empty(t, c.Disks)
	require.Equal(t, []guest.CTNIC{{Name: "net0", Bridge: "vmbr1"}}, c.NICs)
	require.Empty(t, c.Nameserver)
	require.Empty(t, c.Searchdomain+c.Timezone)
	require.Empty(t, c.RootKeys)
}

// With an image the files can create the guest again, with all that others have.
func TestAdoptedGuestWithAnImage(t *testing.T) {
	target, problems := adopt("vm", guest.WithDefaults(&guest.VM{Cores: 1, Memory: 512, Image: "debian", Name: "Web.example"}), 104, uuid)
	require.Empty(t, problems)
	v := target.(guest.VMTarget)
	require.True(t, v.Adopted)
	require.Equal(t, []guest.Disk{{Name: "root", Storage: "fast"}}, v.Disks)
	require.Len(t, v.NICs, 1)
	require.Equal(t, "homestak", v.User)
	require.Equal(t, "Web.example", v.Name)
	_, problems = adopt("pve", guest.WithDefaults(&guest.VM{Cores: 1, Memory: 512, Image: "debian"}), 104, uuid)
	require.Empty(t, problems, "it lost its ownership tag")
}

func TestAdoptRefusesWrongForms(t *testing.T) {
	newVM := func() any { return guest.WithDefaults(&guest.VM{Memory: 512}) }
	newCT := func() any { return guest.WithDefaults(&guest.CT{Memory: 512, NICs: []guest.CTNIC{{Name: "net0"}}}) }
	for says, c := range map[string]struct {
		kind     string
		spec     any
		vmid     int
		identity string
	}{
		"adopt: adopt without vmid":                                    {"vm", newVM(), 0, uuid},
		`adopt: adopt = "web" is not a UUID`:                           {"vm", newVM(), 104, "web"},
		`adopt: adopt = "BC:24:11:00:00:01" is not a UUID`:             {"pve", newVM(), 104, "BC:24:11:00:00:01"},
		"adopt: a pve node made elsewhere cannot be adopted":           {"pve", newVM(), 104, uuid},
		`adopt: adopt = "` + uuid + `" is not a MAC address`:           {"ct", newCT(), 104, uuid},
		"adopt: the nic that identifies the container is not declared": {"ct", guest.WithDefaults(&guest.CT{Memory: 512}), 104, "BC:24:11:00:00:01"},
		`name: PVE refuses name = "a_b"`:                               {"vm", guest.WithDefaults(&guest.VM{Memory: 512, Name: "a_b"}), 104, uuid},
		`disk.scsi1.bus: disk "scsi1" on bus sata`:                     {"vm", guest.WithDefaults(&guest.VM{Memory: 512, Disks: []guest.Disk{{Name: "scsi1", Bus: "sata"}}}), 104, uuid},
		`disk.ide0.bus: bus = "ide" is not valid`:                      {"vm", guest.WithDefaults(&guest.VM{Memory: 512, Disks: []guest.Disk{{Name: "ide0"}}}), 104, uuid},
		"disk.sata0: slot sata0 has a disk and a CD drive":             {"vm", guest.WithDefaults(&guest.VM{Memory: 512, Disks: []guest.Disk{{Name: "sata0"}}, Options: map[string]string{"sata0": "none,media=cdrom"}}), 104, uuid},
		`disk.mp3.path: disk "mp3" has no path to be mounted on`:       {"ct", guest.WithDefaults(&guest.CT{Memory: 512, Disks: []guest.CTDisk{{Name: "mp3"}}, NICs: []guest.CTNIC{{Name: "net0"}}}), 104, "BC:24:11:00:00:01"},
	} {
		_, problems := adopt(c.kind, c.spec, c.vmid, c.identity)
		require.Equal(t, []string{says}, problems, says)
	}
}

// A disk or nic that is named after a slot has that one; the others get those that are left.
func TestDevicesNamedAfterSlots(t *testing.T) {
	v, problems := vm(func(v *guest.VM) {
		v.Disks = []guest.Disk{{Name: "data", Size: 1}, {Name: "scsi1", Size: 1}, {Name: "virtio2", Size: 1}, {Name: "scsi01", Size: 1, Bus: "scsi"}}
		v.NICs = []guest.NIC{{Name: "lan"}, {Name: "net0"}, {Name: "net-2"}, {Name: "net40"}}
	})
	require.Empty(t, problems)
	require.Equal(t, map[string]string{
		"disk.root": "scsi0", "disk.scsi1": "scsi1", "disk.data": "scsi2", "disk.virtio2": "virtio2", "disk.scsi01": "scsi3",
		"nic.net0": "net0", "nic.lan": "net1", "nic.net-2": "net2", "nic.net40": "net3",
	}, v.Slots(api.GuestConfig{}, nil))
	require.Equal(t, "scsi4", v.Slots(api.GuestConfig{}, map[string]string{"disk.scsi1": "scsi4"})["disk.scsi1"], "what the ownership tag says counts")
	c, problems := ct(func(c *guest.CT) {
		c.Disks = []guest.CTDisk{{Name: "data", Size: 1, Path: "/a"}, {Name: "mp0", Size: 1, Path: "/b"}}
	})
	require.Empty(t, problems)
	require.Equal(t, map[string]string{"disk.root": "rootfs", "disk.mp0": "mp0", "disk.data": "mp1", "nic.lan": "net0"}, c.Slots(api.GuestConfig{}, nil))
}
