package guest

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// VM is a virtual machine. The fields with hcl tags are attributes that the files declare. The plan
// compares all fields with an hcl or a plan tag, unless that is "-".
type VM struct {
	Preset   string `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size: cores, memory, disk."`
	Image    string `hcl:"image,optional" ref:"image" cost:"data-loss" doc:"Disk image for the root disk."`
	Template string `hcl:"template,optional" ref:"template" cost:"data-loss" doc:"VM template to clone instead of an image."`

	Recreate string `hcl:"recreate,optional" quoted:"true" cost:"data-loss" doc:"Any text, such as 2026-11. A guest created with another one is replaced, with its data."`

	Clone string `hcl:"clone,optional" plan:"-" doc:"full (default) or linked (the root disk depends on the template's). Used at creation only."`

	Cores   int    `hcl:"cores,optional" pve:"cores,always" unset:"1" priv:"VM.Config.CPU" cost:"restart" doc:"CPU cores (default: the preset's)."`
	Sockets int    `hcl:"sockets,optional" default:"1" pve:"sockets" unset:"1" priv:"VM.Config.CPU" cost:"restart" doc:"CPU sockets, of so many cores each."`
	Memory  int    `hcl:"memory,optional" pve:"memory.current,always" unset:"512" priv:"VM.Config.Memory" cost:"restart" doc:"Memory in MiB (default: the preset's)."`
	Disk    int    `hcl:"disk,optional" plan:"-" doc:"Root disk in GiB (default: the preset's, else the image's). It never shrinks."`
	Disks   []Disk `hcl:"disk,block" doc:"Further disks; the one named root is the root disk."`
	NICs    []NIC  `hcl:"nic,block" doc:"Network cards; one named lan on the host's bridge unless any is declared."`

	Name        string            `hcl:"name,optional" pve:"name" priv:"VM.Config.Options" doc:"Name in PVE, and host name for cloud-init (default: the node's name)."`
	Tags        []string          `hcl:"tags,optional" pve:"tags" as:"tags" priv:"VM.Config.Options" doc:"Tags beside homestak, which every managed guest has."`
	Description string            `hcl:"description,optional" doc:"Notes; the ownership tag is their last line."`
	Power       string            `hcl:"power,optional" default:"running" cost:"restart" doc:"running or stopped."`
	OnBoot      bool              `hcl:"onboot,optional" pve:"onboot,always" priv:"VM.Config.Options" doc:"Start with the host."`
	Startup     *Startup          `hcl:"startup,block" pve:"startup" as:"startup" priv:"VM.Config.Options" doc:"Order and delays at boot and shutdown of the host; needs Sys.Modify on /."`
	Protection  bool              `hcl:"protection,optional" pve:"protection,always" priv:"VM.Config.Options" doc:"The guest and its disks cannot be removed."`
	Restart     string            `hcl:"restart,optional" default:"never" plan:"-" doc:"never or allowed: whether a change may restart the running guest."`
	Agent       bool              `hcl:"agent,optional" default:"true" pve:"agent.enabled,always" priv:"VM.Config.Options" cost:"restart" doc:"The guest agent is expected inside."`
	Options     map[string]string `hcl:"options,optional" cost:"restart" doc:"Further PVE keys, such as cpu, as in qm.conf. Undeclared keys stay. A CD drive is ide0, ide1, ide3 (with q35: ide0 only), sataN or scsiN with STORAGE:iso/NAME.iso,media=cdrom, ${image.NAME},media=cdrom or none,media=cdrom. Keys with an attribute, and keys for root@pam only, are refused."`
	Password    string            `hcl:"password,optional" pve:"cipassword" priv:"VM.Config.Cloudinit" secret:"true" plan:"-" doc:"Password of cloud-init's user, set at creation only. user_data has a place of its own for it."`
	UserData    string            `hcl:"user_data,optional" plan:"-" doc:"Input of cloud-init for the first boot, in place of PVE's cloud-init drive; may contain secrets. Used at creation only."`

	User       string   `plan:"ci_user" pve:"ciuser" priv:"VM.Config.Cloudinit" words:"vm_user in the site block"`                           // created at first boot
	Keys       []string `plan:"ssh_keys" pve:"sshkeys" as:"keys" priv:"VM.Config.Cloudinit" words:"the site's secrets and the spec's users"` // of that user
	DNS        []string `plan:"dns" pve:"nameserver" as:"list" priv:"VM.Config.Cloudinit" words:"dns in the site block or the spec"`
	Domain     string   `plan:"domain" pve:"searchdomain" priv:"VM.Config.Cloudinit" words:"domain in the site block or the spec"`
	Terms      string   `plan:"mark"`                   // the part of the ownership tag that the files decide
	RestartDue bool     `plan:"pending" cost:"restart"` // set for the comparison: pending changes ask for a restart
	Seed       string   `plan:"seed"`                   // observed: the attached seed image; wanted: none
}

// Disk is a disk of a VM. The ownership tag records its slot.
type Disk struct {
	Name    string `hcl:"name,label"`
	Size    int    `hcl:"size,optional" cost:"hot" doc:"GiB; required for all but the root disk."`
	Storage string `hcl:"storage,optional" cost:"migrate" doc:"Storage (default: disks in storage of the host)."`
	Bus     string `hcl:"bus,optional" cost:"restart" doc:"scsi (default), virtio or sata. A change stops the machine, so restart must be allowed."`
	Blank   bool   `hcl:"blank,optional" plan:"-" doc:"Root disk only: empty, for an installation from CD or network."`
	Remove  bool   `hcl:"remove,optional" doc:"Destroys the data when the disk leaves the files (apply it first). Otherwise they stay for a disk of the same name."`
}

// NIC is a network card of a VM and its addresses as cloud-init sets them.
type NIC struct {
	Name    string `hcl:"name,label"`
	Bridge  string `hcl:"bridge,optional" cost:"hot" doc:"Bridge (default: the host's, else the site's)."`
	VLAN    int    `hcl:"vlan,optional" cost:"hot" doc:"VLAN tag, 1 to 4094."`
	MAC     string `hcl:"mac,optional" cost:"hot" doc:"MAC address (default: generated once)."`
	IP      string `hcl:"ip,optional" cost:"restart" doc:"Address with prefix length, or dhcp (default: the spec's for the first nic, else dhcp). Cloud-init applies a change at the next boot."`
	Gateway string `hcl:"gateway,optional" cost:"restart" doc:"Default gateway (default for the first nic with a static address: the spec's, else the site's)."`

	IP6      string   `hcl:"ip6,optional" cost:"restart" doc:"IPv6 address with prefix length, auto (router advertisements) or dhcp (default: none)."`
	Gateway6 string   `hcl:"gateway6,optional" cost:"restart" doc:"IPv6 default gateway, to a static ip6."`
	Model    string   `hcl:"model,optional" cost:"hot" doc:"Model: virtio (default), e1000, e1000e, rtl8139, vmxnet3 and others."`
	Firewall bool     `hcl:"firewall,optional" cost:"hot" doc:"PVE's firewall filters it."`
	MTU      int      `hcl:"mtu,optional" cost:"hot" doc:"Largest packet in bytes, 576 to 65520, at most the bridge's; 1 for the bridge's (default: PVE's). Model virtio only."`
	Queues   int      `hcl:"queues,optional" cost:"hot" doc:"Packet queues, 1 to 64, usually as many as cores (default: 1). Model virtio only."`
	Rate     float64  `hcl:"rate,optional" cost:"hot" doc:"Limit in MB/s (default: none)."`
	LinkDown bool     `hcl:"link_down,optional" cost:"hot" doc:"The card has no link."`
	Trunks   []string `hcl:"trunks,optional" cost:"hot" doc:"VLANs that pass with their tags, such as [\"10\", \"20-29\"]. The bridge must be VLAN aware."`
}

// VMAttributes are the attributes of a VM that are one key of its configuration, see
// attribute.go. Disks, network cards, power and notes have code.
var VMAttributes = sync.OnceValue(func() AttributeTable { return attributesOf[VM](startupFormat) })

// VMSchema is the kind vm.
func VMSchema() model.Kind { return schemaOf[VM]("vm", "A virtual machine.", nil) }

// PVESchema is the kind pve: a VM that becomes a PVE host of its own. Its guests can use hardware
// virtualisation.
func PVESchema() model.Kind {
	return schemaOf[VM]("pve", "A virtual machine that becomes a PVE host with children of its own.", nil)
}

type (
	// VMTarget is a VM as it is wanted.
	VMTarget struct {
		*VM
		*Resolution
	}

	// VMState is a VM as it was observed.
	VMState struct {
		*VM
		*Observation
	}
)

func (v *VM) target(r *Resolution) Target { return VMTarget{v, r} }
func (v *VM) state(o *Observation) State  { return VMState{v, o} }

// Spec implements Guest.
func (v *VM) Spec() any { return v }

// Common implements Guest.
func (v *VM) Common() Common {
	return Common{
		Power: v.Power, Restart: v.Restart, Recreate: v.Recreate, Description: v.Description, Template: v.Template, Tags: v.Tags,
		Options: v.Options, Startup: v.Startup, Keys: VMKeys(), attributes: VMAttributes(),
	}
}

// WithPower implements State.
func (v VMState) WithPower(power string) State {
	vm := *v.VM
	vm.Power = power
	return VMState{&vm, v.Observation}
}

// setRestartDue implements State.
func (v *VM) setRestartDue(due bool) { v.RestartDue = due }

// Declared implements Guest.
func (v *VM) Declared() map[string]string { return v.Options }

// brief implements Target.
func (v VMTarget) brief() string {
	size := cmp.Or(v.Preset, fmt.Sprintf("%s, %d MiB", diag.Count(v.Cores, "core"), v.Memory))
	from := v.Image
	switch {
	case v.Blank():
		from = "a blank root disk"
	case from == "":
		from = "clone of " + v.Template
	}
	if v.Pulls != "" {
		from += ", pulls spec " + v.Pulls
	}
	return size + ", " + from
}
