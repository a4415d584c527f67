package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// network checks the bridges of the site's network cards.
type network struct {
	*subject
	session *session
	token   *token
	nodes   *nodes
}

func (w *network) check(ctx context.Context) {
	byBridge := map[string][]kind.UsedBridge{}
	for _, p := range proxmox.DeriveNeeds(w.site, w.want, w.session.major()).Bridges {
		byBridge[p.Name] = append(byBridge[p.Name], p)
	}
	for _, node := range w.host.AllNodes() {
		if w.nodes.dark(node) {
			if len(byBridge) > 0 {
				w.skip("bridges", "node %s cannot be queried", node)
			}
			continue
		}
		known, err := w.bridgesOf(ctx, node)
		if err != nil {
			w.unread("bridges", err)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(byBridge)) {
			label := "bridge " + name
			if len(w.host.AllNodes()) > 1 {
				label += " on " + node
			}
			if _, there := known[name]; !there && w.hidden(ctx, name, byBridge[name]) {
				w.skip(label, "the token may not see it: see the privileges")
				continue
			}
			w.bridge(label, name, byBridge[name], known)
		}
	}
}

// hidden says whether PVE may have left a bridge out of its list because the token
// has no right on it, nor on a VLAN of it that is plugged in (check_sdn_bridge in
// PVE/RPCEnvironment.pm).
func (w *network) hidden(ctx context.Context, name string, plugs []kind.UsedBridge) bool {
	path := "/sdn/zones/localnetwork/" + name
	paths := []string{path}
	for _, p := range plugs {
		if p.VLAN != 0 {
			paths = append(paths, fmt.Sprint(path, "/", p.VLAN))
		}
	}
	for _, path := range paths {
		may, err := w.token.may(ctx, kind.Grant{Path: path, Priv: "SDN.Use"}, kind.Grant{Path: path, Priv: "SDN.Audit"})
		if err != nil || may {
			return false
		}
	}
	return true
}

func (w *network) bridge(label, name string, plugs []kind.UsedBridge, known map[string]bridge) {
	by, tagged, trunks := askers{}, askers{}, askers{}
	for _, p := range plugs {
		by.add(p.By, p.Attr)
		if p.Trunk {
			trunks.add(p.By, p.Attr)
		}
		if p.VLAN != 0 {
			tagged.add(p.By, p.Attr)
		}
	}
	b, there := known[name]
	switch names := slices.Sorted(maps.Keys(known)); {
	case !there:
		w.fail(label, "the node has no such bridge; "+diag.DidYouMean(name, names), "network cards of "+by.String(),
			fmt.Sprintf("bridge = %q    # in host %q or the nic", cmp.Or(diag.Nearest(name, names), cmp.Or(first(names), "vmbr0")), w.host.Name),
			"or make it: in the web interface of the node, System → Network → Create → Linux Bridge, then Apply Configuration")
	case len(trunks) > 0 && !b.vlanAware && !b.vnet:
		w.fail(label, "it is not VLAN aware", "trunks of "+trunks.String()+": on such a bridge PVE starts no guest that has them",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	case len(tagged) > 0 && !b.vlanAware && !b.vnet && b.ports == "":
		w.fail(label, "it is not VLAN aware and has no port", "VLAN tags of "+tagged.String()+": PVE can tag on such a bridge only behind a port",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	case len(tagged) > 0 && !b.vlanAware && !b.vnet:
		w.warn(label, "it is not VLAN aware", "VLAN tags of "+tagged.String()+" work by a further bridge that PVE makes for each tag",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	default:
		w.ok(label, "there")
	}
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// bridge is a bridge of a node, as far as it is known.
type bridge struct {
	vlanAware bool
	ports     string
	vnet      bool // a network of SDN
}

// bridgesOf lists a node's own bridges, which every token may see, and the networks
// of SDN as far as the token may use them (pve-manager, Network.pm).
func (s *subject) bridgesOf(ctx context.Context, node string) (map[string]bridge, error) {
	out := map[string]bridge{}
	for _, query := range []string{"", "?type=any_bridge"} {
		list, err := s.list(ctx, api.Path("nodes", node, "network")+query)
		if err != nil {
			return nil, err
		}
		for _, i := range list {
			name, kind := api.Text(i["iface"]), api.Text(i["type"])
			_, known := out[name]
			if own := kind == "bridge" || kind == "OVSBridge"; own || query != "" && !known {
				out[name] = bridge{
					vlanAware: api.Text(i["bridge_vlan_aware"]) == "1" || kind == "OVSBridge", vnet: !own && !known,
					ports: api.Text(i["bridge_ports"]) + api.Text(i["ovs_ports"]),
				}
			}
		}
	}
	return out, nil
}
