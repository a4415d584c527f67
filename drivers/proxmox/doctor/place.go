package doctor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// storages looks for the storages that the site names: there, switched on, for the
// right content, with room for what is not made yet.
func (e *exam) storages(ctx context.Context) {
	n := proxmox.DeriveNeeds(e.Of, e.Want, cmp.Or(e.major, 9))
	byStorage := map[string][]rights.Use{}
	for _, u := range n.Uses {
		byStorage[u.Storage] = append(byStorage[u.Storage], u)
	}
	for _, node := range e.host.AllNodes() {
		if e.dark(node) {
			e.skip("storages", "node %s cannot be asked", node)
			continue
		}
		list, err := e.list(ctx, api.Path("nodes", node, "storage"))
		if err != nil {
			e.unread("storages", err)
			continue
		}
		on := map[string]map[string]json.RawMessage{}
		for _, s := range list {
			on[api.Text(s["storage"])] = s
		}
		for _, name := range slices.Sorted(maps.Keys(byStorage)) {
			e.storage(ctx, node, name, byStorage[name], on)
		}
	}
	e.leftovers(ctx)
}

// dark reports that a node is known to be offline, or not to be there at all.
func (e *exam) dark(node string) bool {
	return len(e.nodes) > 0 && !e.nodes[node]
}

func (e *exam) storage(ctx context.Context, node, name string, uses []rights.Use, on map[string]map[string]json.RawMessage) {
	label := "storage " + name
	if len(e.host.AllNodes()) > 1 {
		label += " on " + node
	}
	by, want := askers{}, map[string]bool{}
	for _, u := range uses {
		by.add(u.By, u.Attr)
		want[u.Content] = true
	}
	why := "used by " + by.String()
	s, there := on[name]
	if !there {
		path := "/storage/" + name
		if err := e.readRight(ctx, path); err != nil || !e.can(rights.Grant{Path: path, Priv: "Datastore.Audit"}) && !e.can(rights.Grant{Path: path, Priv: "Datastore.AllocateSpace"}) {
			e.skip(label, "the token may not see it: see the privileges on %s", path)
			return
		}
		known := slices.Sorted(maps.Keys(on))
		e.fail(label, "there is none of that name, or it is switched off; "+diag.DidYouMean(name, known), why,
			append([]string{"on the host: pvesm status"}, e.otherStorage(uses, on)...)...)
		return
	}
	switch {
	case api.Text(s["enabled"]) == "0":
		e.fail(label, "it is switched off", why, "pvesm set "+name+" --disable 0")
		return
	case api.Text(s["active"]) == "0":
		e.fail(label, "it is not active: the node does not get at it", why, "on node "+node+": pvesm status; is it mounted, is its server up?")
		return
	}
	has := api.ContentTypes(api.Text(s["content"]))
	lacks := slices.DeleteFunc(slices.Sorted(maps.Keys(want)), func(c string) bool { return slices.Contains(has, c) })
	if len(lacks) > 0 {
		e.fail(label, fmt.Sprintf("it does not take %s, only %s", strings.Join(lacks, ", "), cmp.Or(strings.Join(has, ", "), "nothing")), why,
			fmt.Sprintf("pvesm set %s --content %s", name, api.AddContentTypes(has, lacks...)))
		return
	}
	if api.Text(s["avail"]) == "" {
		e.warn(label, "takes what is needed; the node does not say how much is free", why, "on node "+node+": pvesm status --storage "+name)
		return
	}
	e.room(label, name, api.Number(s["avail"]), uses, why)
}

// otherStorage is the line of the host block that names a storage which takes what
// the missing one was to hold.
func (e *exam) otherStorage(uses []rights.Use, on map[string]map[string]json.RawMessage) []string {
	attrs := map[string]string{"images": "disks", "rootdir": "disks", "import": "images", "vztmpl": "images", "iso": "iso", "backup": "backups", "snippets": "snippets"}
	content := uses[0].Content
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if slices.Contains(strings.Split(api.Text(on[name]["content"]), ","), content) && attrs[content] != "" {
			return []string{fmt.Sprintf("storage { %s = %q }    # in host %q, or storage of what uses it", attrs[content], name, e.host.Name)}
		}
	}
	return nil
}

// room compares what is still to be made with what is free.
func (e *exam) room(label, name string, free int, uses []rights.Use, why string) {
	gib := 0
	for _, u := range uses {
		if e.have.State[u.By.Addr] == nil {
			gib += u.GiB
		}
	}
	const giB = 1 << 30
	room := "make room: on the host, pvesm list " + name
	switch {
	case free < giB && gib > 0 && e.seen:
		e.fail(label, fmt.Sprintf("it is full (%d MiB free), and what is still to be made needs up to %d GiB", free>>20, gib), why, room)
	case free < giB:
		e.warn(label, fmt.Sprintf("it is full: %d MiB free", free>>20), why+"; downloads, uploads, backups and disks that grow fail there", room)
	case gib > 0 && e.seen && gib > free/giB:
		e.warn(label, fmt.Sprintf("%d GiB are free, and what is still to be made may grow to %d GiB", free/giB, gib), why+"; thin volumes take what is written to them",
			room)
	default:
		e.ok(label, "takes what is needed, %d GiB free", free/giB)
	}
}

// bridge is what is known of a bridge of a node.
type bridge struct {
	vlanAware bool
	ports     string
	vnet      bool // a network of SDN
}

// readBridges lists a node's own bridges, which anybody may see, and the networks
// of SDN as far as the token may use them (pve-manager, Network.pm).
func (e *exam) readBridges(ctx context.Context, node string) (map[string]bridge, error) {
	out := map[string]bridge{}
	for _, query := range []string{"", "?type=any_bridge"} {
		list, err := e.list(ctx, api.Path("nodes", node, "network")+query)
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

func (e *exam) bridges(ctx context.Context) {
	byBridge := map[string][]rights.Bridge{}
	for _, p := range proxmox.DeriveNeeds(e.Of, e.Want, cmp.Or(e.major, 9)).Bridges {
		byBridge[p.Name] = append(byBridge[p.Name], p)
	}
	for _, node := range e.host.AllNodes() {
		if e.dark(node) {
			if len(byBridge) > 0 {
				e.skip("bridges", "node %s cannot be asked", node)
			}
			continue
		}
		known, err := e.readBridges(ctx, node)
		if err != nil {
			e.unread("bridges", err)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(byBridge)) {
			label := "bridge " + name
			if len(e.host.AllNodes()) > 1 {
				label += " on " + node
			}
			if _, there := known[name]; !there && e.hiddenBridge(ctx, name, byBridge[name]) {
				e.skip(label, "the token may not see it: see the privileges")
				continue
			}
			e.bridge(label, name, byBridge[name], known)
		}
	}
}

// hiddenBridge says whether PVE may have left a bridge out of its list because the token
// has no right on it, nor on a VLAN of it that is plugged in (check_sdn_bridge in
// PVE/RPCEnvironment.pm).
func (e *exam) hiddenBridge(ctx context.Context, name string, plugs []rights.Bridge) bool {
	path := "/sdn/zones/localnetwork/" + name
	paths := []string{path}
	for _, p := range plugs {
		if p.VLAN != 0 {
			paths = append(paths, fmt.Sprint(path, "/", p.VLAN))
		}
	}
	for _, path := range paths {
		if e.readRight(ctx, path) != nil || e.can(rights.Grant{Path: path, Priv: "SDN.Use"}) || e.can(rights.Grant{Path: path, Priv: "SDN.Audit"}) {
			return false
		}
	}
	return true
}

func (e *exam) bridge(label, name string, plugs []rights.Bridge, known map[string]bridge) {
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
		e.fail(label, "the node has no such bridge; "+diag.DidYouMean(name, names), "network cards of "+by.String(),
			fmt.Sprintf("bridge = %q    # in host %q or the nic", cmp.Or(diag.Nearest(name, names), cmp.Or(first(names), "vmbr0")), e.host.Name),
			"or make it: in the web interface of the node, System → Network → Create → Linux Bridge, then Apply Configuration")
	case len(trunks) > 0 && !b.vlanAware && !b.vnet:
		e.fail(label, "it is not VLAN aware", "trunks of "+trunks.String()+": on such a bridge PVE starts no guest that has them",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	case len(tagged) > 0 && !b.vlanAware && !b.vnet && b.ports == "":
		e.fail(label, "it is not VLAN aware and has no port", "VLAN tags of "+tagged.String()+": PVE can tag on such a bridge only behind a port",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	case len(tagged) > 0 && !b.vlanAware && !b.vnet:
		e.warn(label, "it is not VLAN aware", "VLAN tags of "+tagged.String()+" work by a further bridge that PVE makes for each tag",
			"in /etc/network/interfaces, under iface "+name+": bridge-vlan-aware yes; then: ifreload -a")
	default:
		e.ok(label, "there")
	}
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// file compares a file of the site with its checksum.
func (e *exam) file(ctx context.Context, name string, r *model.Resource, i *objects.Image) {
	if e.Files == nil {
		e.skip(name, "the site's files are not at hand")
		return
	}
	why := "it is uploaded to the host; " + askedBy(r, "file")
	sum, size, err := checksum(ctx, e.Files, i.File)
	want := strings.ToLower(strings.TrimPrefix(i.Checksum, "sha256:"))
	switch {
	case ctx.Err() != nil:
		e.skip(name, "reading %s takes too long; its checksum is compared at the upload", i.File)
	case err != nil:
		e.fail(name, err.Error(), why, "put the file into the site, or correct file")
	case want == "":
		e.ok(name, "%s is in the site, %d MiB", i.File, size>>20)
	case want != sum:
		e.fail(name, i.File+" has another checksum than the site says", why, fmt.Sprintf("checksum = %q    # if this is the file that is meant", "sha256:"+sum))
	default:
		e.ok(name, "%s has its checksum, %d MiB", i.File, size>>20)
	}
}

// checksum reads a file, and gives up with its context.
func checksum(ctx context.Context, files fs.FS, name string) (sum string, size int64, err error) {
	f, err := files.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, 16<<20)
		size += n
		switch {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(h.Sum(nil)), size, nil
		case err != nil:
			return "", size, err
		case ctx.Err() != nil:
			return "", size, ctx.Err()
		}
	}
}
