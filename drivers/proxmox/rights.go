package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

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
	Soft bool       // the site converges without it
}

// The documented roles, by what their privileges are on; see docs/permissions.md.
const (
	roleGuests    = "HomestakGuests"
	roleTemplates = "HomestakTemplates"
	roleDisks     = "HomestakDisks"
	roleImages    = "HomestakImages"
	roleSeeds     = "HomestakSeeds"
	roleISOs      = "HomestakISOs"
	roleNetwork   = "HomestakBridge"
	roleNode      = "HomestakNode"
	rolePool      = "HomestakPool"
	roleStartup   = "HomestakStartup"
	roleCluster   = "HomestakCluster"
	roleBackups   = "HomestakBackups"
	roleMappings  = "HomestakMappings"
	roleHA        = "HomestakHA"
)

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
	files []string // of the site, that are uploaded
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
	trunk  bool // it carries further VLANs
	by     *model.Resource
	attr   string
}

// newNeeds begins the collection for a host of the given major version of PVE.
func newNeeds(site *model.Site, host *model.Host, major int) *needs {
	return &needs{site: site, host: host, major: major, index: map[Grant]int{}, from: &model.Resource{At: host.At}}
}

// all are the needs, sorted by path.
func (n *needs) all() []Need {
	slices.SortStableFunc(n.list, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Priv, b.Priv))
	})
	return n.list
}

// add notes a need; attr is the attribute that asks, "" for the resource itself.
func (n *needs) add(need Need, attr string) {
	if i, known := n.index[need.Grant]; known {
		old := &n.list[i]
		if old.Soft && !need.Soft { // what it is needed for counts more than what it is good for
			old.Soft, old.For, old.At = false, need.For, n.from.RangeOf(attr)
		}
		if by := n.from.Addr.String(); len(old.By) == 0 || old.By[len(old.By)-1] != by {
			old.By = append(old.By, by)
		}
		return
	}
	if n.from.Addr != (model.Address{}) {
		need.By = []string{n.from.Addr.String()}
	}
	need.At = n.from.RangeOf(attr)
	n.index[need.Grant] = len(n.list)
	n.list = append(n.list, need)
}

func (n *needs) soft(g Grant, role, what string) {
	n.add(Need{Grant: g, Role: role, For: what, Soft: true}, "")
}

// guest asks for a privilege on the guests of this host: those of its pool, or all.
// PVE accepts either where a guest enters a pool (RPCEnvironment.pm, check_vm_perm).
// Each of others does as well.
func (n *needs) guest(priv, attr, what string, others ...string) {
	n.add(n.onGuests(priv, what, others...), attr)
}

// softGuest is guest for what the site converges without.
func (n *needs) softGuest(priv, attr, what string, others ...string) {
	need := n.onGuests(priv, what, others...)
	need.Soft = true
	n.add(need, attr)
}

func (n *needs) onGuests(priv, what string, others ...string) Need {
	need := Need{Grant: Grant{"/vms", priv}, Role: roleGuests, For: what}
	if n.host.Pool != "" {
		need.Path = "/pool/" + n.host.Pool
		need.Or = [][]Grant{{{"/vms", priv}}}
	}
	for _, p := range others {
		need.Or = append(need.Or, []Grant{{need.Path, p}}, []Grant{{"/vms", p}})
	}
	return need
}

// disk asks for room on a storage, for a volume of so many GiB.
func (n *needs) disk(storage, content string, gib int, attr, what string) {
	n.uses = append(n.uses, use{storage, content, gib, n.from, attr})
	n.add(Need{Grant: Grant{"/storage/" + storage, "Datastore.AllocateSpace"}, Role: roleDisks, For: what}, attr)
}

// manyVLANs is how many VLANs of a trunk are asked for one by one.
const manyVLANs = 16

// card asks for a bridge, or for each of its VLANs that a card uses: they are zones of
// their own in the access list (pve-guest-common, PVE/GuestHelpers.pm, check_vnet_access).
// For a trunk of very many it is the bridge, whose entry counts for all of them.
func (n *needs) card(bridge string, vlan int, trunks []string, attr string) {
	n.plugs = append(n.plugs, plug{bridge, vlan, len(trunks) > 0, n.from, attr})
	path := "/sdn/zones/localnetwork/" + bridge
	use := func(path string) {
		n.add(Need{Grant: Grant{path, "SDN.Use"}, Role: roleNetwork, For: attr}, attr)
	}
	tags := map[int]bool{}
	if vlan != 0 {
		tags[vlan] = true
	}
	for _, t := range trunks {
		v, _ := parseVLANs(t)
		for tag := v.first; tag <= v.last; tag++ {
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
