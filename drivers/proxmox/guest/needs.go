package guest

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// NodeNeeds adds the privileges that a node of a manifest needs beside those of its kind: for its
// checks and for its final backup.
func NodeNeeds(n *kind.Needs, d *model.Node) {
	if d == nil {
		return
	}
	if v, ok := n.From.Spec.(*VM); ok && v.Power != "stopped" {
		for _, c := range n.Site.Checks(d) {
			checkNeeds(n, v, &c)
		}
		specNeeds(n, v, d)
	}
	if b, _ := d.BackupIn(n.Site); b != nil && (b.MaxAge != 0 || b.Verify != "") {
		path := "/storage/" + cmp.Or(b.Storage, n.Host.BackupStorage())
		n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleBackupJobs, For: "seeing how old backups are"}, "")
		if v, ok := n.From.Spec.(*VM); ok && b.Verify != "" && v.Agent {
			agentNeeds(n, "", "asking a restored guest whether it booted", false)
		}
	}
	if d.Decomm != nil && d.Decomm.Policy == owner.RemoveBackedUp {
		storage := n.Host.BackupStorage()
		path, what := "/storage/"+storage, "its final backup"
		n.Uses = append(n.Uses, kind.StorageUse{Storage: storage, Content: "backup", GiB: 0, By: n.From, Attr: ""})
		n.Guest("VM.Backup", "", what)
		n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.AllocateSpace"}, Role: kind.RoleBackups, For: what}, "")
		n.Add(kind.Need{Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleBackups, For: "seeing that its final backup is there"}, "")
	}
}

// specNeeds adds the privileges for applying the spec of a VM from outside: programs run by its guest agent
// if the spec says so, and for SSH the host key that the agent confirms and the address that it reports.
func specNeeds(n *kind.Needs, v *VM, d *model.Node) {
	s := n.Site.Specs[d.Spec]
	if s == nil || d.Mode == model.ModePull && d.TakesCommands() {
		return
	}
	via := model.ViaSSH
	if s.Access != nil && s.Access.Via != "" {
		via = s.Access.Via
	}
	switch {
	case via == model.ViaAgent:
		commandNeeds(n, "", "applying spec "+s.Name+" by the guest agent", false)
	case v.Agent:
		// Without an SSH key the spec is not applied unless it asks for SSH by name.
		byName := s.Access != nil && s.Access.Via != ""
		soft := !byName && (n.Host.SSH == nil || n.Host.SSH.Key == "")
		what := "asking the guest agent for the host key"
		if !hasAddress(v) {
			what += " and the address"
		}
		commandNeeds(n, "", what+", to apply spec "+s.Name+" by SSH", soft)
	}
}

// commandNeeds adds the privilege for running commands by the guest agent.
func commandNeeds(n *kind.Needs, attr, what string, soft bool) {
	priv := "VM.GuestAgent.Unrestricted"
	if n.Major < 9 {
		priv = "VM.Monitor"
	}
	if soft {
		n.SoftGuest(priv, attr, what)
		return
	}
	n.Guest(priv, attr, what)
}

// checkNeeds adds the privileges for a check of a VM. A check from outside needs the address of the
// VM: if the files do not declare one, the guest agent reports it. The address of a container is
// visible to everyone who may see the container.
func checkNeeds(n *kind.Needs, v *VM, c *model.Check) {
	switch {
	case c.Way() == model.WayCommand:
		commandNeeds(n, "", "running the command of check "+c.Name, false)
	case c.Inside():
		agentNeeds(n, "", "asking the guest agent, for check "+c.Name, false)
	case targetsGuest(c) && !hasAddress(v):
		agentNeeds(n, "", "asking the guest agent for the address, for check "+c.Name, false)
	}
}

// targetsGuest reports whether a check from outside connects to the guest itself.
func targetsGuest(c *model.Check) bool {
	switch c.Way() {
	case model.WayHTTP:
		e, _ := model.HTTPEndpoint(c.HTTP) // the loader has refused what cannot be parsed
		return e.Host == ""
	case model.WayTCP:
		e, _ := model.TCPEndpoint(c.TCP)
		return e.Host == ""
	default:
		return c.Way() == model.WaySSH
	}
}

// agentNeeds adds the privilege for requests to the guest agent.
func agentNeeds(n *kind.Needs, attr, what string, soft bool) {
	priv, others := "VM.GuestAgent.Audit", []string{"VM.GuestAgent.Unrestricted"}
	if n.Major < 9 {
		priv, others = "VM.Monitor", nil
	}
	if soft {
		n.SoftGuest(priv, attr, what, others...)
		return
	}
	n.Guest(priv, attr, what, others...)
}

// hasAddress reports whether the files declare a static address for the first card.
func hasAddress(v *VM) bool {
	if len(v.NICs) == 0 {
		return false
	}
	_, err := netip.ParsePrefix(v.NICs[0].IP)
	return err == nil
}

// cloneNeeds adds the privilege for copying a template. The template itself needs the one for
// seeing it.
func cloneNeeds(n *kind.Needs, vmid int, name string) {
	if vmid != 0 {
		n.Add(kind.Need{Grant: kind.Grant{Path: fmt.Sprintf("/vms/%d", vmid), Priv: "VM.Clone"}, Role: kind.RoleTemplates, For: "cloning template " + name}, "template")
	}
}

// Needs adds the privileges that a guest needs. For a VM see check_vm_modify_config_perm in
// PVE/API2/Qemu.pm, for a container check_ct_modify_config_perm in PVE/LXC.pm, and the declared
// permissions of create, clone, config, resize, move_disk and destroy.
func Needs(g Target, n *kind.Needs) {
	n.Guest("VM.Allocate", "", "making and removing")
	n.Guest("VM.PowerMgmt", "power", "power")
	g.basicNeeds(n)
	c := g.Common()
	for _, a := range c.attributes.All {
		n.Guest(a.Privilege, a.Name, a.Name)
	}
	for _, d := range g.Volumes().List {
		if d.Storage == "" {
			continue // that of a template which is only named
		}
		n.Disk(d.Storage, pick(c.LXC, "rootdir", "images"), d.Size, "disk."+d.Name, "disk "+d.Name)
	}
	for _, p := range g.Ports() {
		n.Card(p.Bridge, p.VLAN, p.Trunks, "nic."+p.Name)
	}
	if r := g.Resolved(); r.TemplateMade {
		n.Guest("VM.Clone", "template", "cloning template "+c.Template)
	} else {
		cloneNeeds(n, r.TemplateVMID, c.Template)
	}
	g.optionNeeds(n)
}
