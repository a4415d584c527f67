package guest

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// basicNeeds implements Target.
func (v VMTarget) basicNeeds(n *kind.Needs) {
	n.Guest("VM.Config.Options", "name", "name, tags and notes")
	n.Guest("VM.Config.HWType", "", "the uuid that identifies a managed VM")
	n.Guest("VM.Config.Disk", "disk", "disks")
	n.Guest("VM.Config.Network", "nic", "network cards")
	n.Guest("VM.Config.Cloudinit", "", "user, keys and addresses by cloud-init")
	n.Guest("VM.Config.CDROM", "", "the drive of cloud-init")
	if !v.Seeded() {
		n.Disk(v.DriveStorage, "images", 0, "", "the drive of cloud-init")
	} else {
		isoNeeds(n, v)
	}
}

// optionNeeds implements Target.
func (v VMTarget) optionNeeds(n *kind.Needs) {
	if v.Startup != nil {
		n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Modify"}, Role: kind.RoleStartup, For: "startup"}, "startup")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Options)) {
		optionNeeds(n, key, v.Options[key])
	}
}

// isoNeeds adds the privileges for the image of user_data, or of mode pull.
func isoNeeds(n *kind.Needs, v VMTarget) {
	attr, image := "user_data", "the image of user_data"
	if v.UserData == "" {
		attr, image = "", "the image for mode pull"
	}
	n.Uses = append(n.Uses, kind.StorageUse{Storage: v.SeedStorage, Content: "iso", GiB: 0, By: n.From, Attr: attr})
	path := "/storage/" + v.SeedStorage
	n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.AllocateTemplate"}, Role: kind.RoleSeeds, For: "uploading " + image}, attr)
	n.Add(kind.Need{
		Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleSeeds, For: "seeing " + image + ", and putting it into a drive",
		Or: [][]kind.Grant{{{Path: path, Priv: "Datastore.AllocateSpace"}}},
	}, attr)
	n.Add(kind.Need{
		Grant: kind.Grant{Path: path, Priv: "Datastore.Allocate"}, Role: kind.RoleSeeds, Soft: true,
		For: "deleting " + image + "; without, an empty one takes its place",
	}, attr)
	if v.Agent {
		agentNeeds(n, attr, "seeing that the first boot is over; without, "+image+" stays for ten minutes", true)
	}
}

// optionNeeds adds the privileges for one option of a VM.
func optionNeeds(n *kind.Needs, key, value string) {
	attr := "options." + key
	priv := KeyPrivilege(key)
	others := []string{}
	if priv == "VM.Config.Cloudinit" {
		others = append(others, "VM.Config.Network")
	}
	n.Guest(priv, attr, "option "+key, others...)
	if IsCD(key, value) {
		cdNeeds(n, key, value)
	}
	family, values := strings.TrimRight(key, "0123456789"), api.ParseProperty(value).Values
	switch family {
	case "hostpci":
		mappingNeeds(n, "pci", values["mapping"], key)
	case "usb":
		mappingNeeds(n, "usb", values["mapping"], key)
	case "virtiofs":
		mappingNeeds(n, "dir", api.ParseProperty(value).First("dirid"), key)
	case "cicustom":
		for _, file := range slices.Sorted(maps.Values(values)) { // newer versions of qemu-server check it; for snippets check_volume_access accepts no lesser privilege
			n.Add(kind.Need{Grant: kind.Grant{Path: "/storage/" + api.StorageOf(file), Priv: "Datastore.Allocate"}, Role: kind.RoleImages, Soft: true, For: "the snippets of cicustom, where PVE looks at the right to them"}, attr)
		}
	case "cpu":
		cpuModelNeeds(n, api.ParseProperty(value).First("cputype"), attr)
	case "vmstatestorage":
		n.Disk(value, "images", 0, attr, "option "+key)
	case "efidisk", "tpmstate":
		if storage, _, ok := strings.Cut(value, ":"); ok {
			n.Disk(strings.TrimPrefix(storage, "file="), "images", 0, attr, "option "+key)
		}
	}
}

// cpuModelNeeds adds the privilege for a custom CPU model (PVE/API2/Qemu.pm,
// $check_cpu_model_access). Before qemu-server 9.1.12 that is the right to see all nodes, since
// then the right to use the model. The major version does not say which one a host of PVE 9 wants,
// so either will do.
func cpuModelNeeds(n *kind.Needs, name, attr string) {
	name, made := strings.CutPrefix(name, "custom-")
	if !made {
		return
	}
	all := kind.Grant{Path: "/nodes", Priv: "Sys.Audit"}
	need := kind.Need{Grant: all, Role: kind.RoleMappings, For: "the CPU model " + name}
	if n.Major >= 9 {
		need.Grant, need.Or = kind.Grant{Path: "/mapping/cpu/" + name, Priv: "Mapping.Use"}, [][]kind.Grant{{all}}
	}
	n.Add(need, attr)
}

// mappingNeeds adds the privilege for a device or folder of the node that an administrator has
// mapped.
func mappingNeeds(n *kind.Needs, bus, name, key string) {
	if name != "" {
		n.Add(kind.Need{Grant: kind.Grant{Path: "/mapping/" + bus + "/" + name, Priv: "Mapping.Use"}, Role: kind.RoleMappings, For: "option " + key}, "options."+key)
	}
}
