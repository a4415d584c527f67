package inventory

// Preflight checks that a host has the storages, bridges, images and MAC addresses that a plan needs.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The check covers what is newly wanted: a guest that does not exist yet, a further disk, another bridge. Settings
// that are already in place cost no request, and what the token may not see is not reported as missing.

// Problems are what would make steps fail.
type Problems struct {
	Found []model.PreflightProblem
	// Missing are the storages that are not there on the host's own node.
	Missing map[string]bool
}

// check has the answers of a host for that, each read once.
type check struct {
	obs   *kind.Observation
	have  model.Observed
	found Problems

	storages map[string]map[string]string // by node, its storages and what they take; nil where it did not say
	using    map[string]map[string]bool   // by node: bridges that guests of ours run on
	bridges  map[string][]string          // by node; none where it did not say
	sees     map[string]bool              // storages of which the token would see it if they were there

	templates map[int][]string // by VMID, the storages of its disks
}

// Preflight finds what would make fail what is not as wanted yet. have is what was observed.
func Preflight(ctx context.Context, kinds map[string]kind.Kind, obs *kind.Observation, have model.Observed) (Problems, error) {
	s := &check{obs, have, Problems{Missing: map[string]bool{}}, map[string]map[string]string{}, map[string]map[string]bool{}, map[string][]string{}, map[string]bool{}, map[int][]string{}}
	if have.NothingSeen() {
		return s.found, nil // nothing is planned there
	}
	changed := obs.Want.State.Find(func(w *model.Resource) bool {
		k, is := kinds[w.Addr.Kind], have.State[w.Addr]
		return k != nil && (is == nil || k.NeedsMore(w, is))
	})
	for _, addr := range changed {
		w, k := obs.Want.State[addr], kinds[addr.Kind]
		is := have.State[addr]
		n := kind.NewNeeds(nil, obs.Want.Host, 9)
		n.From = w
		k.Needs(w.Spec, n)
		nodes := []string{obs.Host.Model.PVENode()}
		switch {
		case is != nil && is.Guest != nil:
			nodes[0] = is.Guest.Node
		case w.Guest != nil && len(w.Guest.Nodes) > 1:
			nodes = w.Guest.Nodes
		case w.Guest != nil:
			nodes[0] = cmp.Or(w.Guest.Node, nodes[0])
		}
		for _, node := range nodes {
			if err := s.node(ctx, node, n, is, len(nodes) > 1); err != nil {
				return s.found, err
			}
		}
		for _, f := range n.Uploads {
			s.file(f, w)
		}
	}
	err := s.addresses(ctx, changed)
	return s.found, err
}

// node checks what a resource needs on a node. One of several concerns the resource only if it is created there.
func (s *check) node(ctx context.Context, node string, n *kind.Needs, is *model.Resource, oneOfSeveral bool) error {
	if !s.obs.View.Nodes[node] {
		return nil
	}
	before, uses := len(s.found.Found), slices.Clip(n.Uses)
	if t := guest.TargetOf(n.From); oneOfSeveral && t != nil {
		for _, f := range t.Resolved().Files { // they are fetched to that node, too
			uses = append(uses, kind.StorageUse{Storage: f.Image.Storage, Content: f.Image.Content(), GiB: 0, By: n.From, Attr: f.Addr.Kind})
		}
	}
	if err := s.storagesFor(ctx, node, uses); err != nil {
		return err
	}
	if err := s.missingBridges(ctx, node, n.Bridges, is); err != nil {
		return err
	}
	if err := s.media(ctx, node, n.From, is); err != nil {
		return err
	}
	if oneOfSeveral {
		if err := cmp.Or(s.archive(ctx, node, n.From), s.origin(ctx, node, n.From)); err != nil {
			return err
		}
		for i := range s.found.Found[before:] {
			s.found.Found[before+i].Node = node
		}
	}
	return nil
}

// archive checks whether the volume is there from which a container is unpacked, unless it is fetched.
func (s *check) archive(ctx context.Context, node string, want *model.Resource) error {
	t := guest.TargetOf(want)
	if t == nil || !t.Common().LXC || t.Resolved().Source == "" || len(t.Resolved().Files) > 0 {
		return nil
	}
	volid := t.Resolved().Source
	list, err := s.obs.Volumes(ctx, api.NodeStorage{Node: node, Storage: api.StorageOf(volid)}, "vztmpl")
	if err != nil {
		if api.EndsPass(ctx, err) {
			return err
		}
		return nil // the storage says why, or the step will
	}
	if !slices.ContainsFunc(list, func(e map[string]json.RawMessage) bool { return api.Text(e["volid"]) == volid }) {
		s.report(model.PreflightProblem{
			Path: "template", Severity: diag.Error, Summary: fmt.Sprintf("there is no container template %s on node %s", volid, node),
			Detail: "put it there, or give the template a url: then it is fetched to every node that needs it",
		}, want, "template")
	}
	return nil
}

// origin checks whether a guest can be cloned to a node. Its template is cloned where it is. PVE clones to another node
// only if the disks of both are on shared storages (qemu-server, API2/Qemu.pm, clone_vm; pve-container, API2/LXC.pm,
// clone_vm).
func (s *check) origin(ctx context.Context, node string, want *model.Resource) error {
	t := guest.TargetOf(want)
	if t == nil || t.Resolved().TemplateVMID == 0 {
		return nil
	}
	at, storages, err := s.template(ctx, want, t.Resolved())
	if err != nil || at == "" || at == node {
		return err
	}
	if root, ok := guest.Find(t.Volumes().List, "root"); ok && root.Storage != "" {
		storages = append(slices.Clone(storages), root.Storage)
	}
	for _, storage := range storages {
		if r, known := s.obs.View.Rooms[api.NodeStorage{Node: at, Storage: storage}]; known && !r.Shared {
			s.report(model.PreflightProblem{
				Path: "template", Severity: diag.Error, Summary: fmt.Sprintf("template %d is on node %s, and storage %s is not shared", t.Resolved().TemplateVMID, at, storage),
				Detail: "PVE clones to another node only from and to shared storages: use an image, which is fetched to every node that needs it, or a shared storage",
			}, want, "template")
			return nil
		}
	}
	return nil
}

// template returns where the template of a guest is, or will be, and the storages of its disks; "" if that is not known.
func (s *check) template(ctx context.Context, want *model.Resource, r *guest.Resolution) (node string, storages []string, err error) {
	g, there := s.obs.View.Guests[r.TemplateVMID]
	if !there {
		for _, addr := range want.Needs {
			if o := s.obs.Want.State[addr]; o != nil && o.Guest != nil && o.Guest.VMID == r.TemplateVMID {
				return o.Guest.Node, []string{o.Spec.(*guest.Template).Storage}, nil
			}
		}
		return "", nil, nil
	}
	if !s.obs.View.Nodes[g.Node] {
		return "", nil, nil
	}
	if s.templates[g.VMID] == nil {
		cfg, err := s.obs.Host.API.ReadConfig(ctx, g.Ref())
		if api.EndsPass(ctx, err) {
			return "", nil, err
		}
		s.templates[g.VMID] = []string{} // not a word, if it stays so
		for key, val := range cfg.Now {
			volume := api.VolumeOf(val)
			holds := api.IsMount(key) || api.IsDrive(key) && !strings.HasPrefix(key, "unused") // CD drives count, too
			if storage := api.StorageOf(volume); holds && storage != "" && !slices.Contains(s.templates[g.VMID], storage) {
				s.templates[g.VMID] = append(s.templates[g.VMID], storage)
			}
		}
	}
	return g.Node, s.templates[g.VMID], nil
}

// report adds a problem, at the line that declares it: what the resource does not say
// itself its host does.
func (s *check) report(o model.PreflightProblem, r *model.Resource, declared string) {
	o.Address = r.Addr
	o.Any = r.Guest == nil || r.Addr.Kind == owner.TemplateType // these are recreated as a whole
	if r.Declares(declared) {
		o.At = r.RangeOf(declared)
	} else {
		o.At = s.obs.Want.Host.At
	}
	s.found.Found = append(s.found.Found, o)
}

func (s *check) storagesFor(ctx context.Context, node string, uses []kind.StorageUse) error {
	for _, u := range uses {
		if u.Storage == "" {
			continue
		}
		takes, there, known, err := s.contentOf(ctx, node, u.Storage)
		if err != nil {
			return err
		}
		if !known || there && (takes == "" || slices.Contains(strings.Split(takes, ","), u.Content)) {
			continue
		}
		declared := "storage"
		if strings.HasPrefix(u.Attr, "disk.") {
			declared = u.Attr + ".storage"
		} else if u.Attr != "" {
			declared = u.Attr
		}
		o := model.PreflightProblem{Path: u.Attr, Severity: diag.Error}
		if !there {
			names := s.names(node, u.Content)
			o.Summary = fmt.Sprintf("there is no storage %q on node %s", u.Storage, node)
			o.Detail = fmt.Sprintf("none of that name is switched on there%s: correct it here, or in the storage block of host %q; `pvesm status` on the node lists them", didYouMean(u.Storage, names), s.obs.Want.Host.Name)
			s.found.Missing[u.Storage] = s.found.Missing[u.Storage] || node == s.obs.Host.Model.PVENode()
		} else { // a disk that exists stays, and grows
			if u.Attr != "" {
				o.Path = declared
			}
			o.Summary = fmt.Sprintf("storage %q on node %s does not take %s", u.Storage, node, contentWord(u.Content))
			has := api.ContentTypes(takes)
			o.Detail = fmt.Sprintf("it takes %s: allow it with `pvesm set %s --content %s`%s", cmp.Or(strings.Join(has, ","), "nothing"), u.Storage, api.AddContentTypes(has, u.Content), s.other(node, u.Content))
		}
		s.report(o, u.By, declared)
	}
	return nil
}

// didYouMean puts what may have been meant in brackets.
func didYouMean(name string, names []string) string {
	if text := diag.DidYouMean(name, names); text != "" {
		return " (" + text + ")"
	}
	return ""
}

// contentWord explains PVE's word for what a storage takes.
func contentWord(content string) string {
	switch content {
	case "images":
		return "disks of VMs (images)"
	case "rootdir":
		return "disks of containers (rootdir)"
	case "vztmpl":
		return "container templates (vztmpl)"
	case "import":
		return "disk images (import)"
	case "iso":
		return "ISO images (iso)"
	default:
		return content
	}
}

// other names a storage that would do.
func (s *check) other(node, content string) string {
	if names := s.names(node, content); len(names) > 0 {
		return fmt.Sprintf("; or name another storage, such as %s", names[0])
	}
	return ""
}

// names are the known storages of a node that take some content.
func (s *check) names(node, content string) []string {
	var out []string
	for at, takes := range s.obs.View.Storages {
		if at.Node == node && slices.Contains(strings.Split(takes, ","), content) {
			out = append(out, at.Storage)
		}
	}
	for name, takes := range s.storages[node] {
		if slices.Contains(strings.Split(takes, ","), content) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Unknown is what stays unknown: what a listing of images or templates, which are on the host's own node, said of a storage
// that is not there is among the problems.
func (p Problems) Unknown(all []model.Unknown) []model.Unknown {
	return slices.DeleteFunc(slices.Clone(all), func(u model.Unknown) bool {
		_, storage, _ := strings.Cut(u.Scope, " on storage ")
		return (u.Kind == "image" || u.Kind == "template") && p.Missing[storage]
	})
}

// contentOf returns the content types of a storage on a node. The cluster's list shows it with the right to audit;
// the node itself also with the right to allocate. An invisible storage may exist: known is false unless the token
// would see it (pve-manager, API2/Cluster.pm, resources; pve-storage, API2/Storage/Status.pm, index).
func (s *check) contentOf(ctx context.Context, node, storage string) (takes string, there, known bool, err error) {
	if takes, there = s.obs.View.Storages[api.NodeStorage{Node: node, Storage: storage}]; there {
		return takes, true, true, nil
	}
	listed, asked := s.storages[node]
	if !asked {
		if listed, err = s.readStorages(ctx, node); err != nil {
			return "", false, false, err
		}
		s.storages[node] = listed
	}
	if listed == nil {
		return "", false, false, nil
	}
	if takes, there = listed[storage]; there {
		return takes, true, true, nil
	}
	may, asked := s.sees[storage]
	if !asked {
		var rights map[string]map[string]json.RawMessage
		path := "/storage/" + storage
		if err := s.obs.Host.API.Get(ctx, "/access/permissions?path="+url.QueryEscape(path), &rights); api.EndsPass(ctx, err) {
			return "", false, false, err
		}
		_, audits := rights[path]["Datastore.Audit"]
		_, allocates := rights[path]["Datastore.AllocateSpace"]
		may = audits || allocates
		s.sees[storage] = may
	}
	return "", false, may, nil
}

// readStorages lists the storages of a node; nil if it does not say.
func (s *check) readStorages(ctx context.Context, node string) (map[string]string, error) {
	var list []map[string]json.RawMessage
	if err := api.ReadList(ctx, s.obs.Host.API, api.Path("nodes", node, "storage"), &list); err != nil {
		if api.EndsPass(ctx, err) {
			return nil, err
		}
		return nil, nil
	}
	out := map[string]string{}
	for _, e := range list {
		if api.Text(e["enabled"]) != "0" {
			out[api.Text(e["storage"])] = api.Text(e["content"])
		}
	}
	return out, nil
}

// missingBridges checks bridges. One that a running guest has is there. One that the node does not list may
// be there all the same, made by other means than PVE's: a guest that is plugged into it already may start. No
// card is made on it.
func (s *check) missingBridges(ctx context.Context, node string, plugs []kind.UsedBridge, is *model.Resource) error {
	for _, p := range plugs {
		if s.using[node] == nil {
			s.using[node] = s.inUse(node)
		}
		if s.using[node][p.Name] {
			continue
		}
		if _, asked := s.bridges[node]; !asked {
			var list []map[string]json.RawMessage
			if err := api.ReadList(ctx, s.obs.Host.API, api.Path("nodes", node, "network")+"?type=any_bridge", &list); api.EndsPass(ctx, err) {
				return err
			}
			s.bridges[node] = []string{} // not a word, if it stays so
			for _, i := range list {
				s.bridges[node] = append(s.bridges[node], api.Text(i["iface"]))
			}
		}
		names := s.bridges[node]
		if len(names) == 0 || slices.Contains(names, p.Name) {
			continue
		}
		o := model.PreflightProblem{
			Path: p.Attr, Severity: diag.Error,
			Summary: fmt.Sprintf("node %s lists no bridge %q", node, p.Name),
			Detail: fmt.Sprintf("correct the name%s, or make the bridge in the node's System → Network and apply it; a bridge that is made by other means is listed once /etc/network/interfaces of the node has the line `iface %s inet manual`. If it is there, the token may not use it: `homestak-gitops doctor` prints the commands that grant SDN.Use",
				didYouMean(p.Name, names), p.Name),
		}
		if plugged(is, p) {
			o.Power, o.Severity = true, diag.Warning
			o.Summary = fmt.Sprintf("node %s lists no bridge %q, without which it does not start", node, p.Name)
		}
		s.report(o, p.By, p.Attr+".bridge")
	}
	return nil
}

// plugged reports whether a guest has the card already, on that bridge.
func plugged(is *model.Resource, b kind.UsedBridge) bool {
	if is == nil {
		return false
	}
	h := guest.StateOf(is)
	return h != nil && slices.ContainsFunc(h.Ports(), func(p guest.Port) bool { return "nic."+p.Name == b.Attr && p.Bridge == b.Name })
}

// inUse returns the bridges that running managed guests of a node are plugged into.
func (s *check) inUse(node string) map[string]bool {
	out := map[string]bool{}
	for _, r := range s.have.State {
		if r.Guest == nil || !r.Guest.Running || r.Guest.Node != node {
			continue
		}
		h := guest.StateOf(r)
		if h == nil {
			continue
		}
		for key, val := range h.Observed().Config.Now {
			if api.IsNet(key) {
				out[api.ParseProperty(val).Values["bridge"]] = true
			}
		}
	}
	return out
}

// file checks whether a file that is to be uploaded is in the site.
func (s *check) file(name string, r *model.Resource) {
	if s.obs.Host.Files == nil {
		return
	}
	if _, err := fs.Stat(s.obs.Host.Files, name); err != nil {
		s.report(model.PreflightProblem{
			Path: "file", Severity: diag.Error, Summary: fmt.Sprintf("the site has no file %q", name),
			Detail: "put it there (and commit it), correct the path, which is relative to the site's folder, or give a url",
		}, r, "file")
	}
}

// media checks whether the images are there that are to be put into CD drives.
func (s *check) media(ctx context.Context, node string, want, have *model.Resource) error {
	v, ok := guest.TargetOf(want).(guest.VMTarget)
	if !ok {
		return nil
	}
	var present map[string]string
	if have != nil {
		if h, ok := guest.StateOf(have).(guest.VMState); ok {
			present = h.Config.Next
		}
	}
	for _, slot := range v.NewMedia(present) {
		volid := api.VolumeOf(v.Options[slot])
		if s.isCreated(volid) {
			continue
		}
		list, err := s.obs.Volumes(ctx, api.NodeStorage{Node: node, Storage: api.StorageOf(volid)}, "iso")
		if api.EndsPass(ctx, err) {
			return err
		}
		if err != nil {
			continue // the storage says why, or the step will
		}
		var names []string
		for _, e := range list {
			names = append(names, api.Text(e["volid"]))
		}
		if slices.Contains(names, volid) {
			continue
		}
		s.report(model.PreflightProblem{
			Path: "options." + slot, Severity: diag.Error, Summary: fmt.Sprintf("there is no ISO image %s on node %s", volid, node),
			Detail: fmt.Sprintf("correct the name%s, put it there, declare it as an image block and write ${image.NAME}, or write none for an empty drive; `pvesm list %s --content iso` on the node lists what is there",
				didYouMean(volid, names), api.StorageOf(volid)),
		}, want, "options."+slot)
	}
	return nil
}

// isCreated reports whether a volume is one of the site's images, which is made before it is needed.
func (s *check) isCreated(volid string) bool {
	for _, r := range s.obs.Want.State {
		if i, ok := r.Spec.(*objects.Image); ok && i.Volume == volid {
			return true
		}
	}
	return false
}
