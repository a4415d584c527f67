package kind

// Needs collects the Proxmox VE privileges, storages and bridges that the kinds of a site declare.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Grant is a privilege on a path of PVE's access list.
type Grant struct{ Path, Priv string }

// String returns the privilege and its path.
func (g Grant) String() string { return g.Priv + " on " + g.Path }

// Need is a privilege that a site needs on a host.
type Need struct {
	Grant
	Or   [][]Grant  // each of these sets is also enough
	Role Role       // the documented role that it is part of
	For  string     // what it is for, such as "memory"
	By   []string   // the resources that ask for it; none where the host as such does
	At   diag.Range // where the first of them asks
	Soft bool       // the site converges without it
}

// Role is a documented role of Proxmox VE; see docs/permissions.md.
type Role string

// The documented roles, by what their privileges are on.
const (
	RoleGuests    Role = "HomestakGuests"
	RoleTemplates Role = "HomestakTemplates"
	RoleDisks     Role = "HomestakDisks"
	RoleImages    Role = "HomestakImages"
	RoleSeeds     Role = "HomestakSeeds"
	RoleISOs      Role = "HomestakISOs"
	RoleNetwork   Role = "HomestakBridge"
	RoleNode      Role = "HomestakNode"
	RolePool      Role = "HomestakPool"
	RoleStartup   Role = "HomestakStartup"
	RoleCluster   Role = "HomestakCluster"
	RoleBackups   Role = "HomestakBackups"

	RoleBackupJobs Role = "HomestakBackupJobs"

	RoleMappings Role = "HomestakMappings"
	RoleHA       Role = "HomestakHA"
)

// Needs collects what the resources of a site need.
type Needs struct {
	Site  *model.Site
	Host  *model.Host
	Major int
	From  *model.Resource // that asks now
	list  []Need
	index map[Grant]int // into list

	Uses    []StorageUse
	Bridges []UsedBridge
	Uploads []string // of the site, that are uploaded
}

// StorageUse is the use of a storage by the site.
type StorageUse struct {
	Storage, Content string // content is PVE's word: images, rootdir, import, iso, vztmpl, backup
	GiB              int    // how much room a new one takes, 0 if that is not known
	By               *model.Resource
	Attr             string
}

// UsedBridge is a bridge that the site uses.
type UsedBridge struct {
	Name  string
	VLAN  int
	Trunk bool // it carries further VLANs
	By    *model.Resource
	Attr  string
}

// NewNeeds returns an empty collection for a host with the given major version of PVE.
func NewNeeds(site *model.Site, host *model.Host, major int) *Needs {
	return &Needs{Site: site, Host: host, Major: major, index: map[Grant]int{}, From: &model.Resource{At: host.At}}
}

// All are the needs, sorted by path.
func (n *Needs) All() []Need {
	sort.SliceStable(n.list, func(i, j int) bool {
		return cmp.Or(cmp.Compare(n.list[i].Path, n.list[j].Path), cmp.Compare(n.list[i].Priv, n.list[j].Priv)) < 0
	})
	return n.list
}

// Add records a need; attr is the attribute that needs it, "" for the resource itself.
func (n *Needs) Add(need Need, attr string) {
	if i, known := n.index[need.Grant]; known {
		old := &n.list[i]
		if old.Soft && !need.Soft { // a required need replaces an optional one
			old.Soft, old.For, old.At = false, need.For, n.From.RangeOf(attr)
		}
		if by := n.From.Addr.String(); len(old.By) == 0 || old.By[len(old.By)-1] != by {
			old.By = append(old.By, by)
		}
		return
	}
	if n.From.Addr != (model.Address{}) {
		need.By = []string{n.From.Addr.String()}
	}
	need.At = n.From.RangeOf(attr)
	n.index[need.Grant] = len(n.list)
	n.list = append(n.list, need)
}

// Soft records a privilege that the site converges without.
func (n *Needs) Soft(g Grant, role Role, what string) {
	n.Add(Need{Grant: g, Role: role, For: what, Soft: true}, "")
}

// Guest records a privilege on the guests of this host: those of its pool, or all. PVE accepts
// either where a guest enters a pool (RPCEnvironment.pm, check_vm_perm). Each of others is also
// enough.
func (n *Needs) Guest(priv, attr, what string, others ...string) {
	n.Add(n.onGuests(priv, what, others...), attr)
}

// SoftGuest is Guest for a privilege that the site converges without.
func (n *Needs) SoftGuest(priv, attr, what string, others ...string) {
	need := n.onGuests(priv, what, others...)
	need.Soft = true
	n.Add(need, attr)
}

func (n *Needs) onGuests(priv, what string, others ...string) Need {
	need := Need{Grant: Grant{"/vms", priv}, Role: RoleGuests, For: what}
	if n.Host.Pool != "" {
		need.Path = "/pool/" + n.Host.Pool
		need.Or = [][]Grant{{{"/vms", priv}}}
	}
	for _, p := range others {
		need.Or = append(need.Or, []Grant{{need.Path, p}}, []Grant{{"/vms", p}})
	}
	return need
}

// Disk records the use of a storage, for a volume of gib GiB.
func (n *Needs) Disk(storage, content string, gib int, attr, what string) {
	n.Uses = append(n.Uses, StorageUse{storage, content, gib, n.From, attr})
	n.Add(Need{Grant: Grant{"/storage/" + storage, "Datastore.AllocateSpace"}, Role: RoleDisks, For: what}, attr)
}

// manyVLANs is the number of VLANs of a trunk that are checked one by one.
const manyVLANs = 16

// Card records the use of a bridge, or of each VLAN of a card: they are separate paths in the
// access list (pve-guest-common, PVE/GuestHelpers.pm, check_vnet_access). For a trunk of very many
// it is the bridge, whose entry counts for all of them.
func (n *Needs) Card(bridge string, vlan int, trunks []string, attr string) {
	n.Bridges = append(n.Bridges, UsedBridge{bridge, vlan, len(trunks) > 0, n.From, attr})
	path := "/sdn/zones/localnetwork/" + bridge
	use := func(path string) {
		n.Add(Need{Grant: Grant{path, "SDN.Use"}, Role: RoleNetwork, For: attr}, attr)
	}
	tags := map[int]bool{}
	if vlan != 0 {
		tags[vlan] = true
	}
	for _, t := range trunks {
		v, _ := api.ParseVLANs(t)
		for tag := v.First; tag <= v.Last; tag++ {
			tags[tag] = true
		}
	}
	if len(tags) == 0 || len(tags) > manyVLANs {
		use(path)
		return
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		use(fmt.Sprintf("%s/%d", path, tag))
	}
}
