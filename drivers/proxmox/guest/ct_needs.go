package guest

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// basicNeeds implements Target.
func (CTTarget) basicNeeds(n *kind.Needs) {
	n.Guest("VM.Config.Memory", "memory", "memory and swap")
	n.Guest("VM.Config.Options", "tags", "tags, notes and all else")
	n.Guest("VM.Config.Disk", "disk", "its root disk and mount points")
	n.Guest("VM.Config.Network", "nic", "network cards, host name and name servers")
}

// optionNeeds implements Target.
func (c CTTarget) optionNeeds(n *kind.Needs) {
	if !c.Unprivileged && c.TemplateVMID == 0 && n.Major >= 9 { // pve-container 6.0.6, PVE/API2/LXC.pm, create_vm
		n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Modify"}, Role: kind.RoleStartup, For: "a privileged container"}, "unprivileged")
	}
	for _, key := range slices.Sorted(maps.Keys(c.Options)) {
		priv := "VM.Config.Options"
		if key == "cpulimit" || key == "cpuunits" {
			priv = "VM.Config.CPU"
		}
		n.Guest(priv, "options."+key, "option "+key)
	}
}
