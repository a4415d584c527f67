package guest

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// CT is a container. The fields with hcl tags are attributes that the files declare. The plan
// compares all fields with an hcl or a plan tag, unless that is "-".
type CT struct {
	Preset   string `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size: cores, memory, disk."`
	Template string `hcl:"template,optional" ref:"template" cost:"data-loss" doc:"Container template, or a template with a vmid to clone. Required."`

	Recreate string `hcl:"recreate,optional" quoted:"true" cost:"data-loss" doc:"Any text, such as 2026-11. A guest created with another one is replaced, with its data."`

	Cores  int      `hcl:"cores,optional" pve:"cores" priv:"VM.Config.CPU" doc:"CPU cores (default: the preset's)."`
	Memory int      `hcl:"memory,optional" pve:"memory,always" unset:"512" priv:"VM.Config.Memory" cost:"hot" doc:"Memory in MiB (default: the preset's)."`
	Swap   int      `hcl:"swap,optional" default:"512" pve:"swap,always" unset:"512" priv:"VM.Config.Memory" cost:"hot" doc:"Swap in MiB; 0 for none."`
	Disk   int      `hcl:"disk,optional" plan:"-" doc:"Root disk in GiB (default: the preset's, else 4 or the clone's). It never shrinks."`
	Disks  []CTDisk `hcl:"disk,block" doc:"Further disks; the one named root is the root disk."`
	NICs   []CTNIC  `hcl:"nic,block" doc:"Network cards; one named lan on the host's bridge unless any is declared."`

	Tags        []string `hcl:"tags,optional" pve:"tags" as:"tags" priv:"VM.Config.Options" doc:"Tags beside homestak, which every managed guest has."`
	Description string   `hcl:"description,optional" doc:"Notes; the ownership tag is their last line."`
	Power       string   `hcl:"power,optional" default:"running" cost:"restart" doc:"running or stopped."`
	OnBoot      bool     `hcl:"onboot,optional" pve:"onboot,always" priv:"VM.Config.Options" doc:"Start with the host."`
	Startup     *Startup `hcl:"startup,block" pve:"startup" as:"startup" priv:"VM.Config.Options" doc:"Order and delays at boot and shutdown of the host."`
	Protection  bool     `hcl:"protection,optional" pve:"protection,always" priv:"VM.Config.Options" doc:"The guest and its disks cannot be removed."`
	Restart     string   `hcl:"restart,optional" default:"never" plan:"-" doc:"never or allowed: whether a change may restart the running guest."`

	Unprivileged bool     `hcl:"unprivileged,optional" default:"true" pve:"unprivileged,always" priv:"VM.Allocate" cost:"data-loss" doc:"Its root is an unprivileged user of the host. Fixed at creation."`
	Features     []string `hcl:"features,optional" pve:"features" as:"flags" priv:"VM.Allocate" cost:"restart" doc:"nesting, of an unprivileged container: PVE lets no API token set others."`
	Hostname     string   `hcl:"hostname,optional" pve:"hostname" priv:"VM.Config.Network" doc:"Host name inside (default: the node's name)."`
	Nameserver   []string `hcl:"nameserver,optional" pve:"nameserver" as:"list" priv:"VM.Config.Network" cost:"restart" doc:"Name servers (default: the spec's, else the site's)."`
	Searchdomain string   `hcl:"searchdomain,optional" pve:"searchdomain" priv:"VM.Config.Network" cost:"restart" doc:"Domain (default: the spec's, else the site's)."`
	Timezone     string   `hcl:"timezone,optional" pve:"timezone" priv:"VM.Config.Options" cost:"restart" doc:"Time zone (default: the spec's, else the site's)."`
	Password     string   `hcl:"password,optional" pve:"password" priv:"VM.Allocate" secret:"true" plan:"-" doc:"Password of root, at least 5 characters, set at creation only."`

	Options map[string]string `hcl:"options,optional" cost:"restart" doc:"Further PVE keys, such as tty, as in pct.conf. Undeclared keys stay."`

	Terms      string `plan:"mark"`                   // the part of the ownership tag that the files decide
	RestartDue bool   `plan:"pending" cost:"restart"` // set for the comparison: pending changes ask for a restart
}

// CTDisk is the root disk or a mount point. The ownership tag records its slot.
type CTDisk struct {
	Name    string            `hcl:"name,label"`
	Size    int               `hcl:"size,optional" cost:"hot" doc:"GiB; required for all but the root disk."`
	Storage string            `hcl:"storage,optional" cost:"migrate" doc:"Storage (default: disks in storage of the host). PVE moves only volumes of a stopped container."`
	Path    string            `hcl:"path,optional" cost:"restart" doc:"Mount point; required for all but the root disk."`
	Backup  bool              `hcl:"backup,optional" cost:"restart" doc:"Part of backups, as the root disk always is."`
	Options map[string]string `hcl:"options,optional" cost:"restart" doc:"Further members of PVE's mount point, such as ro or mountoptions."`
	Remove  bool              `hcl:"remove,optional" doc:"Destroys the data when the disk leaves the files (apply it first). Otherwise they stay for a disk of the same name."`
}

// CTNIC is a network card of a container and its addresses.
type CTNIC struct {
	Name     string            `hcl:"name,label"`
	Bridge   string            `hcl:"bridge,optional" cost:"hot" doc:"Bridge (default: the host's, else the site's)."`
	VLAN     int               `hcl:"vlan,optional" cost:"hot" doc:"VLAN tag, 1 to 4094."`
	MAC      string            `hcl:"mac,optional" cost:"hot" doc:"MAC address (default: generated once)."`
	IP       string            `hcl:"ip,optional" cost:"hot" doc:"IPv4 address with prefix length, dhcp or manual (default: the spec's for the first nic, else dhcp)."`
	Gateway  string            `hcl:"gateway,optional" cost:"hot" doc:"Default gateway (default for the first nic with a static address: the spec's, else the site's)."`
	IP6      string            `hcl:"ip6,optional" cost:"hot" doc:"IPv6 address with prefix length, auto, dhcp or manual."`
	Gateway6 string            `hcl:"gateway6,optional" cost:"hot" doc:"IPv6 default gateway."`
	Firewall bool              `hcl:"firewall,optional" cost:"hot" doc:"PVE's firewall filters it."`
	MTU      int               `hcl:"mtu,optional" cost:"restart" doc:"Largest packet in bytes, 64 to 65535, at most the bridge's (default)."`
	Rate     float64           `hcl:"rate,optional" cost:"hot" doc:"Limit in MB/s (default: none)."`
	LinkDown bool              `hcl:"link_down,optional" cost:"hot" doc:"The card has no link."`
	Trunks   []string          `hcl:"trunks,optional" cost:"restart" doc:"VLANs that pass with their tags, such as [\"10\", \"20\"]. The bridge must be VLAN aware."`
	Options  map[string]string `hcl:"options,optional" cost:"hot" doc:"Further members of PVE's network device, such as host-managed. Undeclared members stay."`
}

// CTSchema is the kind ct.
func CTSchema() model.Kind {
	return schemaOf[CT]("ct", "A container.", map[string]string{
		"name":       "PVE shows a container by its host name. Set hostname",
		"agent":      "the guest agent is a program for VMs, and a container needs none. Leave it out",
		"nic.model":  "a card of a container is always a pair of virtual ones (veth), so it has no model. Leave it out",
		"nic.queues": "packet queues are of the virtio cards of VMs; a card of a container has none. Leave it out",
		"clone":      "a container that is cloned is a full copy, since nothing on the host shows which template a linked clone of a container depends on. Leave it out",
	})
}

type (
	// CTTarget is a container as it is wanted.
	CTTarget struct {
		*CT
		*Resolution
	}

	// CTState is a container as it was observed.
	CTState struct {
		*CT
		*Observation
	}
)

func (c *CT) target(r *Resolution) Target { return CTTarget{c, r} }
func (c *CT) state(o *Observation) State  { return CTState{c, o} }

// Spec implements Guest.
func (c *CT) Spec() any { return c }

// Common implements Guest.
func (c *CT) Common() Common {
	return Common{
		LXC: true, Power: c.Power, Restart: c.Restart, Recreate: c.Recreate, Description: c.Description, Template: c.Template, Tags: c.Tags,
		Options: c.Options, Startup: c.Startup, Keys: CTKeys(), attributes: CTAttributes(),
	}
}

// WithPower implements State.
func (c CTState) WithPower(power string) State {
	ct := *c.CT
	ct.Power = power
	return CTState{&ct, c.Observation}
}

// setRestartDue implements State.
func (c *CT) setRestartDue(due bool) { c.RestartDue = due }

// brief implements Target.
func (c CTTarget) brief() string {
	size := cmp.Or(c.Preset, fmt.Sprintf("%s, %d MiB", diag.Count(c.Cores, "core"), c.Memory))
	if c.TemplateVMID != 0 {
		return size + ", clone of " + c.Template
	}
	return size + ", " + c.Template
}

// CTAttributes are the attributes of a container that are one key of its configuration, see package
// attribute. Disks, network cards, power and notes have code.
var CTAttributes = sync.OnceValue(func() AttributeTable { return attributesOf[CT](startupFormat) })
