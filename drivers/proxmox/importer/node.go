package importer

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// node is a guest as it is written.
type node struct {
	seen
	decl       *model.Node
	tag        owner.Tag // as it would be adopted with
	spec, base any       // *guest.VM or *guest.CT: as the files say it, and as it would be if they said nothing
	left       []Left
}

// Left is something of a guest that stays as it is, because the files cannot say it.
type Left struct {
	Key string `json:"key"`
	Why string `json:"why"`
}

// leave notes that a key of the guest stays as it is.
func (n *node) leave(key, why string) {
	n.left = append(n.left, Left{key, strings.TrimSuffix(diag.FirstLine(why), ".")})
}

// obstacle is why a guest cannot be adopted, and what to do.
type obstacle struct{ why, fix string }

// refused are the obstacles that do not depend on other guests and on the files.
func refused(g seen) (o obstacle, ok bool) {
	cfg := g.Config
	switch lock := cmp.Or(cfg.Now["lock"], g.Lock); {
	case g.Err != nil:
		return obstacle{"its configuration cannot be read", g.Err.Error()}, true
	case lock != "":
		return obstacle{"it is locked (" + lock + ")", "import it when the lock has ended; `" + g.Ref().Tool() + " unlock` removes one that a task left behind"}, true
	case len(cfg.PendingKeys()) > 0:
		return obstacle{"changes of it are pending (" + strings.Join(cfg.PendingKeys(), ", ") + ")", "shut it down and start it again, or revert them in PVE"}, true
	case identity(g) == "" && g.LXC:
		return obstacle{"a container without a network card has no identity", "add a card: PVE shows nothing else of a container that stays and that no copy has"}, true
	case identity(g) == "":
		return obstacle{"it has no SMBIOS UUID", fmt.Sprintf("give it one, which counts from its next start: `qm set %d --smbios1 uuid=$(cat /proc/sys/kernel/random/uuid)`", g.VMID)}, true
	}
	return obstacle{}, false
}

// identity is what proves that a guest is the one of the files, see model.Node.Adopt; "" if it has nothing like it.
func identity(g seen) string { return owner.IdentityOf(g.Config.Now, g.Ref()) }

// newNode makes the node of a guest under a name.
func (w *writer) newNode(g seen, name string) (*node, obstacle) {
	n := &node{seen: g, decl: &model.Node{
		Name: name, Block: name, Type: g.Kind(), VMID: g.VMID, Adopt: identity(g), Drift: "report", Manifest: &model.Manifest{Name: name, Host: w.host.Name},
	}}
	n.tag = owner.Tag{V: 1, Site: w.site.Name, Type: g.Kind(), Node: name, Owner: w.host.Name, Slots: n.slots()}
	if n.LXC {
		n.tag.MAC = n.decl.Adopt
	} else {
		n.tag.UUID = n.decl.Adopt
	}
	n.spec = n.observed().Spec
	n.undecided()
	w.password(n)
	if bad := w.settle(n); bad.why != "" {
		return nil, bad
	}
	n.base = n.skeleton()
	w.resolve(n, n.base)
	n.shorten()
	sort.Slice(n.left, func(i, j int) bool { return n.left[i].Key < n.left[j].Key })
	return n, obstacle{}
}

// observed is the guest as the driver observes one with the tag of the node. What cannot be observed has its default.
func (n *node) observed() *model.Resource {
	notes, _, _ := owner.ParseDescription(n.Config.Description())
	r := guest.FromConfig(n.ListedGuest, n.Config, notes, n.tag)
	switch s := r.Spec.(type) {
	case *guest.VM:
		s.Restart = guest.WithDefaults(new(guest.VM)).Restart
	case *guest.CT:
		s.Restart = guest.WithDefaults(new(guest.CT)).Restart
		maps.DeleteFunc(s.Options, func(key, _ string) bool { return guest.CTKeys().Invented[key] })
	}
	return r
}

// slots names the devices of a guest after their slots, but the root disk. What is not a volume of a storage, and what
// is on another bus than those of the files, stays as it is.
func (n *node) slots() map[string]string {
	out := map[string]string{}
	boot := "rootfs"
	if !n.LXC {
		boot = guest.BootDisk(n.Config.Next)
	}
	for key, value := range n.Config.Next {
		_, known := guest.BusSlots[api.BusOf(key)]
		isDisk := api.IsMount(key) || api.IsDrive(key) && !strings.HasPrefix(key, "unused") && !api.HoldsState(key) && !api.HoldsCD(value) && !api.IsCloudInit(api.VolumeOf(value))
		onStorage := strings.Contains(api.VolumeOf(value), ":") && !strings.HasPrefix(api.VolumeOf(value), "/")
		switch {
		case api.IsNet(key):
			out["nic."+key] = key
		case !isDisk:
		case !onStorage:
			n.leave(key, "it is a device or a folder of the node, which only root@pam may attach")
		case !known && !n.LXC:
			n.leave(key, "disks of the files are on scsi, virtio or sata")
		case key == boot:
			out["disk.root"] = key
		default:
			out["disk."+key] = key
		}
	}
	return out
}

// undecided notes the keys that no attribute of a node has, and that are not there on every guest.
func (n *node) undecided() {
	if n.LXC {
		if n.Config.Next["lxc"] != "" {
			n.leave("lxc", "only root may set raw keys of LXC")
		}
		if has(n.options(), "env") {
			n.drop("options.env", "it may have secrets: take them from secret.passwords")
		}
		return
	}
	for key, value := range n.Config.Next {
		if value == "" {
			delete(n.options(), key)
		} else if api.HoldsState(key) {
			n.options()[key] = stateOrder(value)
		}
		a, why := guest.VMAttributes().ByKey(key), guest.RefusedKey(guest.VMKeys().Family(key))
		switch {
		case slices.Contains([]string{"smbios1", "vmgenid", "template", "cipassword"}, key) || strings.HasPrefix(key, "unused"):
		case why != "":
			n.leave(key, why)
		case a != nil && a.Privilege == "VM.Config.Cloudinit":
			n.leave(key, "it is of cloud-init; that of new guests follows from "+a.Words)
		}
	}
}

// password names the secret for a password of cloud-init, which the host does not show. Secrets that are there already
// are not edited: they must have the name.
func (w *writer) password(n *node) {
	v, ok := n.spec.(*guest.VM)
	if !ok || n.Config.Next["cipassword"] == "" {
		return
	}
	if known := w.site.Secrets; !w.fresh && (known == nil || !has(known.Values["passwords"], n.decl.Name)) {
		n.leave("cipassword", fmt.Sprintf("no secret known here has its name: add %s to passwords in the secrets of the site and of its agents, and password = secret.passwords.%s here", n.decl.Name, n.decl.Name))
		return
	}
	v.Password = n.decl.Name
}

// stateOrder is the order that asks for a state drive such as the one that is there.
func stateOrder(drive string) string {
	out, p := api.StorageOf(drive)+":1", api.ParseProperty(drive).Values
	for _, member := range []string{"efitype", "pre-enrolled-keys", "version"} {
		if p[member] != "" {
			out += "," + member + "=" + p[member]
		}
	}
	return out
}

// settle leaves out of the spec what the files may not say, until they may say all of it and it is what the host has.
func (w *writer) settle(n *node) obstacle {
	for {
		want, problems := w.resolve(n, model.Clone(n.spec))
		problems = slices.DeleteFunc(problems, func(p model.Problem) bool { return p.Site || p.Severity == diag.Warning })
		for _, c := range w.claims(n.Kind(), want.Spec) {
			if by := w.claimed[c.Value]; by != "" {
				return obstacle{"its " + c.What + " is taken", fmt.Sprintf("%s has %s too: change that of one of them", by, c.Value)}
			}
		}
		if len(problems) == 0 {
			problems = w.differences(n, want)
		}
		if len(problems) > 0 {
			if p := problems[0]; !n.drop(p.Path, cmp.Or(p.Detail, p.Summary)) {
				return obstacle{p.Summary, p.Detail}
			}
			continue
		}
		w.claim(n.Kind(), want.Spec, n.decl.Name)
		return obstacle{}
	}
}

// resolve completes a spec of the node as the loader does, and returns what is wrong with it.
func (w *writer) resolve(n *node, spec any) (*model.Resource, []model.Problem) {
	addr := model.Address{Kind: n.Kind(), Name: n.decl.Name}
	r := &model.Resource{Addr: addr, Spec: spec, Node: n.decl.Name, Guest: &model.Guest{VMID: n.VMID}}
	return r, w.site.Kinds.Get(addr.Kind).Resolve(r, model.Scope{Site: w.site, Host: w.host, Manifest: n.decl.Manifest, Node: n.decl, Name: addr.Name})
}

// differences are the attributes in which the guest differs from what the files would say of it, so that it would not
// be adopted.
func (w *writer) differences(n *node, want *model.Resource) []model.Problem {
	have := n.observed()
	w.site.Kinds.Get(n.Kind()).Align(want, have)
	wanted, found := guest.ValuesByPath(want.Spec), guest.ValuesByPath(have.Spec)
	paths := slices.Collect(maps.Keys(wanted))
	for path := range found {
		if _, both := wanted[path]; !both {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	var out []model.Problem
	for _, path := range paths {
		if !slices.Contains([]string{"mark", "tags"}, path) && !reflect.DeepEqual(wanted[path], found[path]) {
			out = append(out, model.Problem{Path: path, Summary: "the files cannot say its " + path, Detail: fmt.Sprintf("the host has %v, and they would have %v", found[path], wanted[path])})
		}
	}
	return out
}

// drop leaves the attribute at a path undeclared. It returns false if the guest cannot be described without it.
func (n *node) drop(path, why string) bool {
	block, rest, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(rest, ".")
	member, further := strings.CutPrefix(attr, "options.")
	options := n.options()
	switch c, lxc := n.spec.(*guest.CT); {
	case block == "options" && has(options, rest):
		delete(options, rest)
	case block == "disk" && name != "root" && n.removeDisk(name):
	case lxc && block == "nic" && further:
		for _, card := range c.NICs {
			if card.Name == name {
				delete(card.Options, member)
			}
		}
	default:
		return false
	}
	n.leave(strings.TrimPrefix(path, "options."), why)
	return true
}

func (n *node) options() map[string]string {
	if c, ok := n.spec.(*guest.CT); ok {
		return c.Options
	}
	return n.spec.(*guest.VM).Options
}

// removeDisk leaves a disk undeclared, and reports whether there was one.
func (n *node) removeDisk(name string) bool {
	before := len(n.tag.Slots)
	delete(n.tag.Slots, "disk."+name)
	switch s := n.spec.(type) {
	case *guest.VM:
		s.Disks = without(s.Disks, func(d guest.Disk) bool { return d.Name == name })
	case *guest.CT:
		s.Disks = without(s.Disks, func(d guest.CTDisk) bool { return d.Name == name })
	}
	return len(n.tag.Slots) < before
}

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

func without[D any](list []D, gone func(D) bool) []D {
	return slices.DeleteFunc(slices.Clone(list), gone)
}

// skeleton is a spec that declares the devices of the node, and nothing of them.
func (n *node) skeleton() any {
	switch s := n.spec.(type) {
	case *guest.VM:
		out := guest.WithDefaults(new(guest.VM))
		for _, d := range s.Disks {
			out.Disks = append(out.Disks, guest.Disk{Name: d.Name})
		}
		for _, c := range s.NICs {
			out.NICs = append(out.NICs, guest.NIC{Name: c.Name})
		}
		return out
	case *guest.CT:
		out := guest.WithDefaults(new(guest.CT))
		for _, d := range s.Disks {
			out.Disks = append(out.Disks, guest.CTDisk{Name: d.Name})
		}
		for _, c := range s.NICs {
			out.NICs = append(out.NICs, guest.CTNIC{Name: c.Name})
		}
		return out
	}
	panic("neither a VM nor a container")
}

// shorten brings the spec into the form that people write: the size of the root disk is an attribute of the node, MAC
// addresses are those that PVE generated, and a bus follows from the name of a disk.
func (n *node) shorten() {
	switch s := n.spec.(type) {
	case *guest.VM:
		base := n.base.(*guest.VM)
		s.Tags, base.Tags, s.Name = ownTags(s.Tags), nil, cmp.Or(s.Name, base.Name)
		for i := range s.Disks {
			if d := &s.Disks[i]; d.Name != "root" || d.Bus == "scsi" {
				d.Bus = ""
			}
		}
		for i := range s.NICs {
			s.NICs[i].MAC = ""
		}
		s.Disk, s.Disks = foldRoot(s.Disks, base.Disks, func(d *guest.Disk) (string, *int) { return d.Name, &d.Size })
	case *guest.CT:
		base := n.base.(*guest.CT)
		s.Tags, base.Tags = ownTags(s.Tags), nil
		for i := range s.NICs {
			s.NICs[i].MAC = ""
		}
		for i := range s.Disks {
			if d := &s.Disks[i]; len(d.Options) == 0 {
				d.Options = nil
			}
		}
		s.Disk, s.Disks = foldRoot(s.Disks, base.Disks, func(d *guest.CTDisk) (string, *int) { return d.Name, &d.Size })
	}
}

// ownTags are the tags of a guest beside the one of managed guests.
func ownTags(tags []string) []string {
	return without(tags, func(t string) bool { return t == owner.PVETag })
}

// foldRoot takes the size out of the block of the root disk, and the block itself if it says nothing else.
func foldRoot[D any](disks, base []D, of func(*D) (name string, size *int)) (root int, rest []D) {
	for i := range disks {
		name, size := of(&disks[i])
		if name == "root" {
			root, *size = *size, 0
		}
		other := slices.IndexFunc(base, func(d D) bool { is, _ := of(&d); return is == name })
		if name == "root" && other >= 0 && reflect.DeepEqual(disks[i], base[other]) {
			continue
		}
		rest = append(rest, disks[i])
	}
	return root, rest
}
