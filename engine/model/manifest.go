package model

import (
	"cmp"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Manifest is a deployment: topology, mode, nodes. Without a host it is a recipe,
// which only `test` runs.
type Manifest struct {
	Name        string     `hcl:"name,label"`
	Description string     `hcl:"description,optional" doc:"What it is for."`
	Pattern     string     `hcl:"pattern" doc:"flat, tiered, mesh, hub-spoke or federated."`
	Host        string     `hcl:"host,optional" ref:"host" doc:"Host where its roots live; without one it is a recipe."`
	Suspend     bool       `hcl:"suspend,optional" doc:"Leave everything of it as it is."`
	OnError     string     `hcl:"on_error,optional" doc:"stop, rollback or continue when a step goes wrong."`
	Execution   *execution `hcl:"execution,block" doc:"How nodes are configured unless they say otherwise."`
	Settings    *Settings  `hcl:"settings,block" doc:"Time limits, and settings of test."`
	Owner       string     `hcl:"owner,optional" doc:"Default for its nodes."`
	Purpose     string     `hcl:"purpose,optional" doc:"Default for its nodes."`
	Services    []string   `hcl:"services,optional" doc:"Default for its nodes."`
	Stacks      []string   `hcl:"stacks,optional" doc:"Default for its nodes."`
	ReviewBy    string     `hcl:"review_by,optional" quoted:"true" doc:"Default for its nodes."`
	StorageTier string     `hcl:"storage_tier,optional" doc:"Default for its nodes."`
	Backup      *Backup    `hcl:"backup,block" doc:"Backups of its nodes that declare none."`

	At    diag.Range
	Nodes []*Node // all instances, in the order of the files
}

// execution is the mode of nodes: push or pull.
type execution struct {
	DefaultMode string `hcl:"default_mode,optional" doc:"push or pull."`
	Config      string `hcl:"config,optional" doc:"push or pull: how specs are applied (default: default_mode)."`
	Run         string `hcl:"run,optional" doc:"push or pull: how commands reach the nodes (default: default_mode)."`
}

// Settings are waits and what test does.
type Settings struct {
	VerifySSH        *bool         `hcl:"verify_ssh,optional" doc:"test also checks SSH of every node that accepts the private key in ssh of the host."`
	CleanupOnFailure *bool         `hcl:"cleanup_on_failure,optional" doc:"test destroys what it created also when it fails."`
	Timeout          time.Duration `hcl:"timeout,optional" doc:"Time limit of a step, without its checks."`
}

// Node is one instance of a node block, with the fields of all node types. Resource.Spec has those of its type.
type Node struct {
	Name      string     // of the instance: worker-2
	Block     string     // of the block: worker
	Type      string     `hcl:"type" doc:"vm, ct or pve."`
	Spec      string     `hcl:"spec,optional" ref:"spec" doc:"What the node should become."`
	Parent    string     `hcl:"parent,optional" doc:"The pve node it lives on (default: the manifest's host)."`
	DependsOn []string   `hcl:"depends_on,optional" doc:"Nodes that must exist first and go later."`
	VMID      int        `hcl:"vmid,optional" doc:"VMID (default: chosen from vmid_range)."`
	Adopt     string     `hcl:"adopt,optional" doc:"Identity of an existing guest that becomes this node, unchanged: SMBIOS UUID of a VM, MAC address of a container's first nic. Requires vmid. Devices have the names of their slots, such as disk \"scsi1\" and nic \"net0\"; root is the boot disk. Without image or template it cannot be replaced."`
	VMIDRange string     `hcl:"vmid_range,optional" doc:"Range that the VMID is chosen from."`
	Nodes     []string   `hcl:"nodes,optional" doc:"PVE nodes of the host where it may live (default: all)."`
	Spread    string     `hcl:"spread,optional" doc:"A word: guests with the same one are created on different PVE nodes, as far as these have room."`
	Together  string     `hcl:"together,optional" doc:"A word: guests with the same one are created on one PVE node."`
	Execution *nodeMode  `hcl:"execution,block" doc:"Overrides the manifest's mode."`
	Decomm    *Decomm    `hcl:"decommission,block" doc:"What happens before it is destroyed."`
	Backup    *Backup    `hcl:"backup,block" doc:"Its backups, in place of the manifest's or site's."`
	Orphan    Orphan     `hcl:"orphan,optional" doc:"refuse, destroy or abandon its children when it leaves."`
	Drift     string     `hcl:"drift,optional" doc:"revert or report changes made by hand."`
	Planned   bool       `hcl:"planned,optional" doc:"Nothing is created; its VMID, address and name are reserved."`
	Role      string     `hcl:"role,optional" doc:"For policies and outputs."`
	Owner     string     `hcl:"owner,optional" doc:"For policies and outputs."`
	Purpose   string     `hcl:"purpose,optional" doc:"For policies and outputs."`
	Services  []string   `hcl:"services,optional" doc:"Services that it offers, in words, for policies and outputs."`
	Stacks    []string   `hcl:"stacks,optional" doc:"What runs on it, such as compose projects, for policies and outputs."`
	ReviewBy  string     `hcl:"review_by,optional" quoted:"true" doc:"Date, such as 2027-03-31, by which its owner reviews its files. After it, status, doctor and metrics report the node."`
	Tier      string     `hcl:"storage_tier,optional" doc:"Kind of storage that it needs, in a word, for policies."`
	Checks    []Check    `hcl:"check,block" doc:"A health check."`
	Resource  *Resource  // Spec holds the kind's struct as declared, not yet resolved
	Manifest  *Manifest  // the deployment it belongs to
	Hyper     *HyperDecl `hcl:"hypervisor,block" doc:"pve: what its children find."`
	Mode      string     // ModePush or ModePull, after inheritance: who applies the spec
	Commands  string     // in the same way: who begins commands and jobs; "": as Mode
	At        diag.Range // of the block
	Children  []string   // names of the nodes whose parent it is, in order
}

// Inherit sets what the node does not declare of its purpose from its manifest, else from the site.
func (n *Node) Inherit(m *Manifest, s *Site) {
	n.Owner, n.Purpose = cmp.Or(n.Owner, m.Owner, s.Owner), cmp.Or(n.Purpose, m.Purpose, s.Purpose)
	n.ReviewBy, n.Tier = cmp.Or(n.ReviewBy, m.ReviewBy, s.ReviewBy), cmp.Or(n.Tier, m.StorageTier, s.StorageTier)
	for _, from := range [][2][]string{{m.Services, m.Stacks}, {s.Services, s.Stacks}} {
		if n.Services == nil {
			n.Services = from[0]
		}
		if n.Stacks == nil {
			n.Stacks = from[1]
		}
	}
}

// ReviewOverdue reports whether the date of the next review has passed at a time. A node without one never is.
func (n *Node) ReviewOverdue(at time.Time) bool {
	return n.ReviewBy != "" && at.UTC().Format(time.DateOnly) > n.ReviewBy
}

// Execution modes: who applies the spec of a node.
const (
	ModePush = "push" // the parent, from outside
	ModePull = "pull" // the node itself
)

// nodeMode overrides the manifest's mode for one node.
type nodeMode struct {
	Mode   string `hcl:"mode,optional" doc:"push or pull."`
	Config string `hcl:"config,optional" doc:"push or pull: how the spec is applied (default: mode)."`
	Run    string `hcl:"run,optional" doc:"push or pull: how commands and jobs reach the node (default: mode)."`
}

// SetModes sets the mode of each phase: by the node's own block, and then by that of its manifest, nil for none. In a block, the
// phase counts before the mode of all.
func (n *Node) SetModes(of *execution) {
	own, above := nodeMode{}, execution{}
	if n.Execution != nil {
		own = *n.Execution
	}
	if of != nil {
		above = *of
	}
	n.Mode = cmp.Or(own.Config, own.Mode, above.Config, above.DefaultMode, ModePush)
	n.Commands = cmp.Or(own.Run, own.Mode, above.Run, above.DefaultMode, ModePush)
}

// TakesCommands reports whether the node takes its commands from a queue. Otherwise they are run by entering it.
func (n *Node) TakesCommands() bool { return cmp.Or(n.Commands, n.Mode) == ModePull }

// Decomm is the condition for destroying a node.
type Decomm struct {
	Policy string   `hcl:"policy,optional" doc:"allow_immediate_destroy, requires_final_backup or requires_migration_first."`
	Verify string   `hcl:"verify,optional" doc:"restore: the final backup is restored and booted first. Needs policy requires_final_backup."`
	Before []string `hcl:"before_destroy,optional" doc:"Shell scripts that the guest agent runs as root, in this order, before the stop. One that fails keeps the guest. They may run again; a VM that is off runs none."`
}

// HyperDecl declares what the children of a pve node find there.
type HyperDecl struct {
	Node    string `hcl:"node,optional" doc:"PVE node name (default: the node's name)."`
	Storage string `hcl:"storage,optional" doc:"Storage of the children's disks."`
	Bridge  string `hcl:"bridge,optional" doc:"Bridge of the children."`
}

// Root reports whether the node lives directly on the manifest's host.
func (n *Node) Root() bool { return n.Parent == "" }

// Secrets are values by section and key, read from outside the site's history.
// A nil *Secrets knows no value; every name is then taken to exist.
type Secrets struct {
	Values map[string]map[string]string
	Source string // where they were read from, for messages
	// Private are names of ssh_keys whose values are private keys, and unknown here: they do not allow a login.
	Private []string
	Lines   map[string]int // of ssh_keys in Source, by name; nil if they are not known
	Above   bool           // the parent of this agent gave them
}

// SecretSections are the sections that secrets may have.
func SecretSections() []string { return []string{"api_tokens", "passwords", "ssh_keys", "auth"} }
