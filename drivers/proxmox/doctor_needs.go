package proxmox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Grant is a privilege on a path of PVE's access list.
type Grant struct{ Path, Priv string }

// String gives the privilege and its path as people say it.
func (g Grant) String() string { return g.Priv + " on " + g.Path }

// Need is a privilege that a site needs on a host.
type Need struct {
	Grant
	Or   [][]Grant  // each of these sets does as well
	Role string     // the documented role that it is part of
	For  string     // what it is for, such as "memory"
	By   []string   // the resources that ask for it; none where the host as such does
	At   diag.Range // where the first of them asks
	Soft bool       // without it the site converges, but less is seen
	Root bool       // no token can have it: PVE keeps it for root@pam, and Priv is empty
}

// The documented roles, by what their privileges are on; see docs/permissions.md.
const (
	roleGuests    = "HomestakGuests"
	roleTemplates = "HomestakTemplates"
	roleDisks     = "HomestakDisks"
	roleImages    = "HomestakImages"
	roleNetwork   = "HomestakBridge"
	roleNode      = "HomestakNode"
	rolePool      = "HomestakPool"
	roleStartup   = "HomestakStartup"
	roleCluster   = "HomestakCluster"
	roleBackups   = "HomestakBackups"
	roleMappings  = "HomestakMappings"
)

// Needs derives which privileges a site needs on one host of the given major
// version of PVE, each once, sorted by path. It knows nothing of the host itself:
// what a kind needs is said by the kind, in its field needs.
func Needs(site *model.Site, want *model.Want, major int) []Need {
	return derive(site, want, major).list
}

// derive is Needs, with what else the kinds say of storages and bridges.
func derive(site *model.Site, want *model.Want, major int) *needs {
	n := &needs{site: site, host: want.Host, major: major, index: map[Grant]int{}}
	n.from = &model.Resource{At: want.Host.At}
	n.guest("VM.Audit", "", "seeing which guests there are")
	for _, node := range hostNodes(want.Host) {
		n.soft(Grant{"/nodes/" + node, "Sys.Audit"}, roleNode, "state, hardware and running tasks of the node")
	}
	if len(want.Host.Nodes) > 1 {
		n.soft(Grant{"/", "Sys.Audit"}, roleCluster, "quorum of the cluster; without it nothing is done while a node is offline")
	}
	kinds := table()
	for _, addr := range want.State.Addresses() {
		n.from = want.State[addr]
		for _, k := range kinds {
			if k.schema().Name == addr.Kind {
				k.rights(n.from.Spec, n)
			}
		}
		n.node(want.Nodes[addr])
	}
	slices.SortStableFunc(n.list, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Priv, b.Priv))
	})
	return n
}

// hostNodes are the PVE nodes that a host of the site speaks of.
func hostNodes(h *model.Host) []string {
	nodes := []string{h.PVENode()}
	for _, n := range h.Nodes {
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// needs collects what the resources of a site ask for. The methods are the words
// in which a kind says what it needs.
type needs struct {
	site  *model.Site
	host  *model.Host
	major int
	from  *model.Resource // that asks now
	list  []Need
	index map[Grant]int // into list

	uses  []use
	plugs []plug
}

// use is a storage that something of the site is to be kept on.
type use struct {
	storage, content string // content is PVE's word: images, rootdir, import, iso, vztmpl, backup
	gib              int    // how much room a new one takes, 0 if that is not known
	by               *model.Resource
	attr             string
}

// plug is a bridge that something of the site is plugged into.
type plug struct {
	bridge string
	vlan   int
	by     *model.Resource
	attr   string
}

// add notes a need; attr is the attribute that asks, "" for the resource itself.
func (n *needs) add(need Need, attr string) {
	if i, known := n.index[need.Grant]; known && !need.Root {
		old := &n.list[i]
		old.Soft = old.Soft && need.Soft
		if by := n.from.Addr.String(); len(old.By) == 0 || old.By[len(old.By)-1] != by {
			old.By = append(old.By, by)
		}
		return
	}
	if n.from.Addr != (model.Address{}) {
		need.By = []string{n.from.Addr.String()}
	}
	need.At = n.from.Place(attr)
	n.index[need.Grant] = len(n.list)
	n.list = append(n.list, need)
}

func (n *needs) soft(g Grant, role, what string) {
	n.add(Need{Grant: g, Role: role, For: what, Soft: true}, "")
}

// guest asks for a privilege on the guests of this host: those of its pool, or all.
// PVE accepts either where a guest enters a pool (RPCEnvironment.pm, check_vm_perm).
func (n *needs) guest(priv, attr, what string) {
	need := Need{Grant: Grant{"/vms", priv}, Role: roleGuests, For: what}
	if n.host.Pool != "" {
		need.Or = [][]Grant{{need.Grant}}
		need.Path = "/pool/" + n.host.Pool
	}
	n.add(need, attr)
}

// softGuest is guest for what nothing depends on yet.
func (n *needs) softGuest(priv, what string) {
	path := "/vms"
	if n.host.Pool != "" {
		path = "/pool/" + n.host.Pool
	}
	n.soft(Grant{path, priv}, roleGuests, what)
}

// disk asks for room on a storage, for a volume of so many GiB.
func (n *needs) disk(storage, content string, gib int, attr, what string) {
	n.uses = append(n.uses, use{storage, content, gib, n.from, attr})
	n.add(Need{Grant: Grant{"/storage/" + storage, "Datastore.AllocateSpace"}, Role: roleDisks, For: what}, attr)
}

// card asks for a bridge, or for one VLAN of it: they are zones of their own in the
// access list (QemuServer.pm, check_bridge_access).
func (n *needs) card(bridge string, vlan int, attr string) {
	n.plugs = append(n.plugs, plug{bridge, vlan, n.from, attr})
	path := "/sdn/zones/localnetwork/" + bridge
	if vlan != 0 {
		path += fmt.Sprintf("/%d", vlan)
	}
	n.add(Need{Grant: Grant{path, "SDN.Use"}, Role: roleNetwork, For: attr}, attr)
}

// node asks for what a node of a manifest needs whatever its type is. Nothing uses
// these yet, so they are soft.
func (n *needs) node(d *model.Node) {
	if d == nil {
		return
	}
	for _, c := range d.Checks {
		if !c.Agent && c.Command == "" {
			continue
		}
		switch {
		case n.major < 9:
			n.softGuest("VM.Monitor", "asking the guest agent, for check "+c.Name)
		case c.Command != "":
			n.softGuest("VM.GuestAgent.Unrestricted", "running a command through the guest agent, for check "+c.Name)
		default:
			n.softGuest("VM.GuestAgent.Audit", "asking the guest agent, for check "+c.Name)
		}
	}
	if d.Decomm == nil {
		return
	}
	switch d.Decomm.Policy {
	case "requires_final_backup":
		storage := "local"
		if s := n.host.Storage; s != nil {
			storage = or(s.Backups, storage)
		}
		n.softGuest("VM.Backup", "the final backup")
		n.soft(Grant{"/storage/" + storage, "Datastore.AllocateSpace"}, roleBackups, "the final backup")
	case "requires_migration_first":
		n.softGuest("VM.Migrate", "the migration before it is destroyed")
	}
}

// vmNeeds is what a VM asks for (Q, check_vm_modify_config_perm and the declared
// permissions of create, clone, config, resize, move_disk and destroy).
func vmNeeds(v *VM, n *needs) {
	n.guest("VM.Allocate", "", "making and removing")
	n.guest("VM.PowerMgmt", "power", "power")
	n.guest("VM.Config.CPU", "cores", "cores")
	n.guest("VM.Config.Memory", "memory", "memory")
	n.guest("VM.Config.Options", "name", "name, tags and notes")
	n.guest("VM.Config.HWType", "", "the uuid that proves it to be ours")
	n.guest("VM.Config.Disk", "disk", "disks")
	n.guest("VM.Config.Network", "nic", "network cards")
	n.guest("VM.Config.Cloudinit", "", "user, keys and addresses by cloud-init")
	n.guest("VM.Config.CDROM", "", "the drive of cloud-init")
	n.disk(v.storage, "images", 0, "", "the drive of cloud-init")
	for _, d := range v.Disks {
		if d.Storage == "" {
			continue // where a template lies that is only named
		}
		n.disk(d.Storage, "images", d.Size, "disk."+d.Name, "disk "+d.Name)
	}
	for _, c := range v.NICs {
		n.card(c.Bridge, c.VLAN, "nic."+c.Name)
	}
	switch {
	case v.templateOurs:
		n.guest("VM.Clone", "template", "cloning template "+v.Template)
	case v.templateVMID != 0:
		n.add(Need{Grant: Grant{fmt.Sprintf("/vms/%d", v.templateVMID), "VM.Clone"}, Role: roleTemplates, For: "cloning template " + v.Template}, "template")
	}
	if v.Startup != nil {
		n.add(Need{Grant: Grant{"/", "Sys.Modify"}, Role: roleStartup, For: "startup"}, "startup")
	}
	for key, value := range v.Options {
		n.option(key, value)
	}
}

// option asks for what one PVE key of a VM needs.
func (n *needs) option(key, value string) {
	attr := "options." + key
	priv := optionPrivilege(key, value)
	if priv == "" {
		n.add(Need{Grant: Grant{Path: attr + " " + n.from.Addr.String()}, For: key, Root: true}, attr)
		return
	}
	n.guest(priv, attr, "option "+key)
	family, values := strings.TrimRight(key, "0123456789"), parseProperty(value).values
	switch family {
	case "hostpci", "usb":
		bus := map[string]string{"hostpci": "pci", "usb": "usb"}[family]
		if values["mapping"] != "" {
			n.add(Need{Grant: Grant{"/mapping/" + bus + "/" + values["mapping"], "Mapping.Use"}, Role: roleMappings, For: "option " + key}, attr)
		}
	case "efidisk", "tpmstate":
		if storage, _, ok := strings.Cut(value, ":"); ok {
			n.disk(strings.TrimPrefix(storage, "file="), "images", 0, attr, "option "+key)
		}
	}
}

// optionPrivilege is the privilege that PVE wants for a key of a VM (Q,
// check_vm_modify_config_perm); "" for what it keeps for root@pam.
func optionPrivilege(key, value string) string {
	switch family := strings.TrimRight(key, "0123456789"); family {
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios", "tablet", "vga", "watchdog":
		return "VM.Config.HWType"
	case "serial":
		if value == "socket" {
			return "VM.Config.HWType"
		}
		return ""
	case "usb", "hostpci":
		if strings.Contains(value, "mapping=") || family == "usb" && strings.Contains(value, "spice") {
			return "VM.Config.HWType"
		}
		return ""
	case "boot", "bootdisk", "efidisk", "tpmstate", "vmstatestorage":
		return "VM.Config.Disk"
	case "cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys", "ipconfig":
		return "VM.Config.Cloudinit"
	case "autostart", "bios", "keyboard", "localtime", "migrate_downtime", "migrate_speed", "ostype", "reboot", "startdate", "tdf":
		return "VM.Config.Options"
	default:
		return ""
	}
}

func imageNeeds(i *Image, n *needs) {
	n.uses = append(n.uses, use{i.Storage, i.content(), 0, n.from, "storage"})
	path := "/storage/" + i.Storage
	n.add(Need{Grant: Grant{path, "Datastore.AllocateTemplate"}, Role: roleImages, For: "download or upload"}, "")
	n.add(Need{Grant: Grant{path, "Datastore.Audit"}, Role: roleImages, For: "seeing what is there, and making disks of it"}, "")
	n.add(Need{Grant: Grant{path, "Datastore.Allocate"}, Role: roleImages, For: "removing what is no longer declared"}, "")
	if i.URL != "" {
		n.add(Need{
			Grant: Grant{"/nodes/" + n.host.PVENode(), "Sys.AccessNetwork"}, Role: roleNode, For: "download",
			Or: [][]Grant{{{"/", "Sys.Audit"}, {"/", "Sys.Modify"}}},
		}, "url")
	}
}

func poolNeeds(_ *Pool, n *needs) {
	path := "/pool/" + n.from.Addr.Name
	n.add(Need{Grant: Grant{path, "Pool.Allocate"}, Role: rolePool, For: "making, changing and removing it"}, "")
	n.add(Need{Grant: Grant{path, "Pool.Audit"}, Role: rolePool, For: "seeing whether it is there"}, "")
}
