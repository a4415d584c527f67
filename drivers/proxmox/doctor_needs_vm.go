package proxmox

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
)

func (v *VM) basicNeeds(n *needs) {
	n.guest("VM.Config.Options", "name", "name, tags and notes")
	n.guest("VM.Config.HWType", "", "the uuid that proves it to be ours")
	n.guest("VM.Config.Disk", "disk", "disks")
	n.guest("VM.Config.Network", "nic", "network cards")
	n.guest("VM.Config.Cloudinit", "", "user, keys and addresses by cloud-init")
	n.guest("VM.Config.CDROM", "", "the drive of cloud-init")
	if v.UserData == "" {
		n.disk(v.driveStorage, "images", 0, "", "the drive of cloud-init")
	} else {
		n.seed(v)
	}
}

func (v *VM) optionNeeds(n *needs) {
	if v.Startup != nil {
		n.add(Need{Grant: Grant{"/", "Sys.Modify"}, Role: roleStartup, For: "startup"}, "startup")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Options)) {
		n.option(key, v.Options[key])
	}
}

// seed asks for what the image of user_data takes.
func (n *needs) seed(v *VM) {
	n.uses = append(n.uses, use{v.seedStorage, "iso", 0, n.from, "user_data"})
	path := "/storage/" + v.seedStorage
	n.add(Need{Grant: Grant{path, "Datastore.AllocateTemplate"}, Role: roleSeeds, For: "uploading the image of user_data"}, "user_data")
	n.add(Need{
		Grant: Grant{path, "Datastore.Audit"}, Role: roleSeeds, For: "seeing the image of user_data, and putting it into a drive",
		Or: [][]Grant{{{path, "Datastore.AllocateSpace"}}},
	}, "user_data")
	n.add(Need{
		Grant: Grant{path, "Datastore.Allocate"}, Role: roleSeeds, Soft: true,
		For: "deleting the image of user_data; without, an empty one takes its place",
	}, "user_data")
	if v.Agent {
		n.agent("user_data", "seeing that the first boot is over; without, the image of user_data stays for ten minutes", true)
	}
}

// option asks for what one PVE key of a VM needs.
func (n *needs) option(key, value string) {
	attr := "options." + key
	priv := optionPrivilege(key)
	others := []string{}
	if priv == "VM.Config.Cloudinit" {
		others = append(others, "VM.Config.Network")
	}
	n.guest(priv, attr, "option "+key, others...)
	if isCD(key, value) {
		n.disc(key, value)
	}
	family, values := strings.TrimRight(key, "0123456789"), property.Parse(value).Values
	switch family {
	case "hostpci":
		n.mapping("pci", values["mapping"], key)
	case "usb":
		n.mapping("usb", values["mapping"], key)
	case "virtiofs":
		n.mapping("dir", property.Parse(value).First("dirid"), key)
	case "cicustom":
		for _, file := range slices.Sorted(maps.Values(values)) { // of late qemu-server looks at them, too; for snippets check_volume_access knows no smaller right
			n.add(Need{Grant: Grant{"/storage/" + storageOf(file), "Datastore.Allocate"}, Role: roleImages, Soft: true, For: "the snippets of cicustom, where PVE looks at the right to them"}, attr)
		}
	case "cpu":
		n.model(property.Parse(value).First("cputype"), attr)
	case "vmstatestorage":
		n.disk(value, "images", 0, attr, "option "+key)
	case "efidisk", "tpmstate":
		if storage, _, ok := strings.Cut(value, ":"); ok {
			n.disk(strings.TrimPrefix(storage, "file="), "images", 0, attr, "option "+key)
		}
	}
}

// model asks for a model of a CPU that an administrator has made up (Q,
// $check_cpu_model_access). Until qemu-server 9.1.12 that is who may see all nodes, then
// who may use that one; which of both a host of PVE 9 wants its version does not tell.
func (n *needs) model(name, attr string) {
	name, made := strings.CutPrefix(name, "custom-")
	if !made {
		return
	}
	all := Grant{"/nodes", "Sys.Audit"}
	need := Need{Grant: all, Role: roleMappings, For: "the CPU model " + name}
	if n.major >= 9 {
		need.Grant, need.Or = Grant{"/mapping/cpu/" + name, "Mapping.Use"}, [][]Grant{{all}}
	}
	n.add(need, attr)
}

// mapping asks for a device or folder of the node that an administrator has mapped.
func (n *needs) mapping(bus, name, key string) {
	if name != "" {
		n.add(Need{Grant: Grant{"/mapping/" + bus + "/" + name, "Mapping.Use"}, Role: roleMappings, For: "option " + key}, "options."+key)
	}
}

// optionPrivilege is the privilege that PVE wants for a key of a VM (Q,
// check_vm_modify_config_perm). What PVE keeps for root@pam the files cannot say.
func optionPrivilege(key string) string {
	switch strings.TrimRight(key, "0123456789") {
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios", "tablet", "vga", "watchdog", "serial", "usb", "hostpci":
		return "VM.Config.HWType"
	case "boot", "bootdisk", "efidisk", "tpmstate", "vmstatestorage", "virtiofs":
		return "VM.Config.Disk"
	case "ide", "sata", "scsi":
		return "VM.Config.CDROM"
	case "cicustom", "citype", "ciupgrade":
		return "VM.Config.Cloudinit"
	case "freeze":
		return "VM.PowerMgmt"
	default:
		return "VM.Config.Options"
	}
}
