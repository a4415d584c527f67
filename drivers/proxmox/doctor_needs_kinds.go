package proxmox

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// node asks for what a node of a manifest needs beside what its kind does.
func (n *needs) node(d *model.Node) {
	if d == nil {
		return
	}
	if v, ok := n.from.Spec.(*VM); ok && v.Power != "stopped" {
		for _, c := range n.site.Checks(d) {
			n.check(v, &c)
		}
	}
	if d.Decomm != nil && d.Decomm.Policy == owner.RemoveBackedUp {
		storage := backupStorage(n.host)
		path, what := "/storage/"+storage, "its final backup"
		n.uses = append(n.uses, use{storage, "backup", 0, n.from, ""})
		n.guest("VM.Backup", "", what)
		n.add(Need{Grant: Grant{path, "Datastore.AllocateSpace"}, Role: roleBackups, For: what}, "")
		n.add(Need{Grant: Grant{path, "Datastore.Audit"}, Role: roleBackups, For: "seeing that its final backup is there"}, "")
	}
}

// check asks for what a check of a VM needs. Those from outside need its address:
// where the files do not say it the agent does. Of a container PVE tells it to
// whoever may see the container.
func (n *needs) check(v *VM, c *model.Check) {
	switch {
	case c.Way() == model.WayCommand && n.major >= 9:
		n.guest("VM.GuestAgent.Unrestricted", "", "running the command of check "+c.Name)
	case c.Inside():
		n.agent("", "asking the guest agent, for check "+c.Name, false)
	case asksItself(c) && !hasAddress(v):
		n.agent("", "asking the guest agent for the address, for check "+c.Name, false)
	}
}

// asksItself reports whether a check from outside goes to the guest and nowhere else.
func asksItself(c *model.Check) bool {
	switch c.Way() {
	case model.WayHTTP:
		e, _ := model.HTTPEndpoint(c.HTTP) // what cannot be read the loader has refused
		return e.Host == ""
	case model.WayTCP:
		e, _ := model.TCPEndpoint(c.TCP)
		return e.Host == ""
	default:
		return c.Way() == model.WaySSH
	}
}

// agent asks for the right to hear the guest agent.
func (n *needs) agent(attr, what string, soft bool) {
	priv, others := "VM.GuestAgent.Audit", []string{"VM.GuestAgent.Unrestricted"}
	if n.major < 9 {
		priv, others = "VM.Monitor", nil
	}
	if soft {
		n.softGuest(priv, attr, what, others...)
		return
	}
	n.guest(priv, attr, what, others...)
}

// hasAddress reports whether the files say where a machine is reached.
func hasAddress(v *VM) bool {
	if len(v.NICs) == 0 {
		return false
	}
	_, err := netip.ParsePrefix(v.NICs[0].IP)
	return err == nil
}

// clone asks for the right to copy a template; to see it is what the template asks.
func (n *needs) clone(vmid int, name string) {
	if vmid != 0 {
		n.add(Need{Grant: Grant{fmt.Sprintf("/vms/%d", vmid), "VM.Clone"}, Role: roleTemplates, For: "cloning template " + name}, "template")
	}
}

// guestNeeds is what a guest asks for: of a VM see check_vm_modify_config_perm in
// PVE/API2/Qemu.pm, of a container check_ct_modify_config_perm in PVE/LXC.pm, and the
// declared permissions of create, clone, config, resize, move_disk and destroy.
func guestNeeds(g guest, n *needs) {
	n.guest("VM.Allocate", "", "making and removing")
	n.guest("VM.PowerMgmt", "power", "power")
	g.basicNeeds(n)
	c := g.common()
	n.attributes(c.attributes)
	for _, d := range g.volumes().list {
		if d.storage == "" {
			continue // where a template lies that is only named
		}
		n.disk(d.storage, pick(c.lxc, "rootdir", "images"), d.size, "disk."+d.name, "disk "+d.name)
	}
	for _, p := range g.ports() {
		n.card(p.bridge, p.vlan, p.trunks, "nic."+p.name)
	}
	if c.templateOurs {
		n.guest("VM.Clone", "template", "cloning template "+c.template)
	} else {
		n.clone(c.templateVMID, c.template)
	}
	g.optionNeeds(n)
}

func (*CT) basicNeeds(n *needs) {
	n.guest("VM.Config.Memory", "memory", "memory and swap")
	n.guest("VM.Config.Options", "tags", "tags, notes and all else")
	n.guest("VM.Config.Disk", "disk", "its root disk and mount points")
	n.guest("VM.Config.Network", "nic", "network cards, host name and name servers")
}

func (c *CT) optionNeeds(n *needs) {
	if !c.Unprivileged && c.templateVMID == 0 && n.major >= 9 { // pve-container 6.0.6, PVE/API2/LXC.pm, create_vm
		n.add(Need{Grant: Grant{"/", "Sys.Modify"}, Role: roleStartup, For: "a privileged container"}, "unprivileged")
	}
	for _, key := range slices.Sorted(maps.Keys(c.Options)) {
		priv := "VM.Config.Options"
		if key == "cpulimit" || key == "cpuunits" {
			priv = "VM.Config.CPU"
		}
		n.guest(priv, "options."+key, "option "+key)
	}
}

// templateNeeds: what is only named must be seen, what is downloaded is a file like
// an image.
func templateNeeds(t *Template, n *needs) {
	switch {
	case t.Image != "":
		n.guest("VM.Allocate", "image", "making and removing the template")
		for _, priv := range []string{"VM.Config.CPU", "VM.Config.Memory", "VM.Config.Options", "VM.Config.HWType", "VM.Config.Disk"} {
			n.guest(priv, "image", "the machine that becomes the template")
		}
		n.disk(t.Storage, "images", 0, "storage", "the disk of the template")
	case t.VMID != 0:
		n.add(Need{Grant: Grant{fmt.Sprintf("/vms/%d", t.VMID), "VM.Audit"}, Role: roleTemplates, For: "seeing the template"}, "vmid")
	case t.Volume != "":
		storage := storageOf(t.Volume)
		path := "/storage/" + storage
		n.uses = append(n.uses, use{storage, "vztmpl", 0, n.from, "volume"})
		n.add(Need{
			Grant: Grant{path, "Datastore.Audit"}, Role: roleImages, For: "seeing the volume, and unpacking it",
			Or: [][]Grant{{{path, "Datastore.AllocateSpace"}}},
		}, "volume")
	default:
		n.file(t.image())
	}
}

func imageNeeds(i *Image, n *needs) {
	n.file(i)
	if i.File != "" {
		n.files = append(n.files, i.File)
	}
}

// file asks for what a file of ours on a storage takes.
func (n *needs) file(i *Image) {
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
