package importer

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// mostNodes is how many nodes a file has at most.
const mostNodes = 50

// shared is how many guests must have a size for it to become a preset.
const shared = 3

// writer makes the files of guests that were read.
type writer struct {
	o       Options
	site    *model.Site // that they are added to
	host    *model.Host
	fresh   bool              // the site has no files yet
	names   map[string]bool   // of nodes, taken
	claimed map[string]string // addresses of guests of the site, and of those that are written → their nodes
	nodes   []*node
	report  *Report
}

// Write makes the files that declare the guests of a host that a site does not declare yet, by their names in the
// folder of the site. A site that is fresh gets files of its own, too. exists reports whether there is a file of a
// name: none of those is written.
func (s *Seen) Write(site *model.Site, h *model.Host, o Options, fresh bool, exists func(name string) bool) (map[string][]byte, *Report) {
	w := &writer{o: o, site: site, host: h, fresh: fresh, names: map[string]bool{}, claimed: map[string]string{}, report: &Report{Host: h.Name, Unknown: s.Unknown}}
	for _, want := range site.Resolved {
		for addr, r := range want.State {
			w.claim(addr.Kind, r.Spec, addr.Name)
		}
	}
	for _, m := range site.Manifests {
		for _, n := range m.Nodes {
			w.names[strings.ToLower(n.Name)] = true
		}
	}
	if fresh {
		w.host.Storage, w.host.Bridge = usual(s)
	}
	w.takeGuests(s)
	named := map[string][]byte{}
	files := append(w.files(w.templates(s)), w.objects(s)...)
	for _, f := range append(files, w.images(s)...) {
		name := free(f.name, func(name string) bool { return named[name+".hcl"] != nil || exists(name+".hcl") }) + ".hcl"
		named[name] = hcl.Write(append([]string{fmt.Sprintf("Imported from host %s by %s.", h.Name, o.Program)}, f.head...), f.blocks)
		w.report.Files = append(w.report.Files, name)
	}
	slices.Sort(w.report.Files)
	return named, w.report
}

// free is a name that is not taken: with a number behind it where it is.
func free(name string, taken func(string) bool) string {
	out := name
	for i := 2; taken(out); i++ {
		out = fmt.Sprintf("%s-%d", name, i)
	}
	return out
}

// file is one to write, by its name without its ending.
type file struct {
	name   string
	blocks []hcl.Block
	head   []string // further lines above them
}

// takeGuests makes the nodes, in the order of the VMIDs.
func (w *writer) takeGuests(s *Seen) {
	declared, identities := w.declared(), map[string]int{}
	for _, g := range s.guests {
		identities[identity(g)]++
	}
	for _, g := range s.guests {
		_, _, managed := owner.ParseDescription(g.Config.Description())
		switch {
		case g.Config.Now["template"] == "1" || !w.o.includes(g.Kind()):
			continue
		case managed:
			w.report.Managed++
			continue
		case declared[g.VMID]:
			w.report.Declared++
			continue
		}
		bad, ok := refused(g)
		if !ok && identities[identity(g)] > 1 {
			bad, ok = obstacle{"another guest has the same identity", "give one of them another: a copy has its own after `qm set VMID --smbios1 uuid=…`, or with a new network card"}, true
		}
		var n *node
		if !ok {
			n, bad = w.named(g)
		}
		if n == nil {
			w.report.Skipped = append(w.report.Skipped, skippedGuest{g.Kind(), g.VMID, nameOf(g), bad.why, bad.fix})
			continue
		}
		w.nodes = append(w.nodes, n)
	}
}

// declared are the VMIDs of the nodes of the site on the host.
func (w *writer) declared() map[int]bool {
	out := map[int]bool{}
	for _, m := range w.site.Manifests {
		for _, n := range m.Nodes {
			if m.Host == w.host.Name && n.Parent == "" {
				out[n.VMID] = true
			}
		}
	}
	return out
}

// named makes the node of a guest under a name that the site allows and that is free: that of the guest, else vm-101.
func (w *writer) named(g seen) (*node, obstacle) {
	plain := fmt.Sprintf("%s-%d", g.Kind(), g.VMID)
	taken := func(name string) bool { return w.names[name] }
	name := cmp.Or(Label(nameOf(g)), plain)
	if taken(name) {
		name = free(shortened(name, len(plain))+"-"+strconv.Itoa(g.VMID), taken)
	}
	if pattern := w.naming(); pattern != nil && !pattern(name) {
		if name = free(plain, taken); !pattern(name) {
			return nil, obstacle{"the naming rule of the site allows neither its name nor " + name, "change naming in the site block"}
		}
	}
	n, bad := w.newNode(g, name)
	if n != nil {
		w.names[name] = true
	}
	return n, bad
}

// nameOf is the name of a guest on the host.
func nameOf(g seen) string {
	return cmp.Or(g.Config.Now["name"], g.Config.Now["hostname"], g.Name)
}

// Label is a text as the name of a block: its lower-case letters and digits, with dashes for all else; "" if that
// does not begin with a letter.
func Label(text string) string {
	parts := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	if name := shortened(strings.Join(parts, "-"), 0); lang.ValidName(name) {
		return name
	}
	return ""
}

// shortened is a name with room for further characters.
func shortened(name string, room int) string {
	return strings.TrimRight(name[:min(len(name), 63-room)], "-")
}

// claims are what a resource of a kind has to itself. MAC addresses are not written, and so claim nothing.
func (w *writer) claims(kind string, spec any) []model.Claim {
	k := w.site.Kinds.Get(kind)
	if k == nil || k.Claims == nil {
		return nil
	}
	return without(k.Claims(spec), func(c model.Claim) bool { return c.What == "MAC address" })
}

// claim takes note of what a resource has to itself.
func (w *writer) claim(kind string, spec any, by string) {
	for _, c := range w.claims(kind, spec) {
		w.claimed[c.Value] = by
	}
}

// usual are the storage and the bridge that most guests have, as far as they are not the defaults.
func usual(s *Seen) (*model.Storage, string) {
	storages, bridges := map[string]int{}, map[string]int{}
	for _, g := range s.guests {
		for key, value := range g.Config.Now {
			switch {
			case api.IsNet(key):
				bridges[api.ParseProperty(value).Values["bridge"]]++
			case api.IsMount(key), api.IsDrive(key) && api.HoldsData(value):
				if volume := api.VolumeOf(value); strings.Contains(volume, ":") {
					storages[api.StorageOf(value)]++
				}
			}
		}
	}
	storage, bridge := most(storages, "local-lvm"), most(bridges, "vmbr0")
	if storage == "" {
		return nil, bridge
	}
	return &model.Storage{Disks: storage}, bridge
}

// most is the most frequent key; "" for the default.
func most(count map[string]int, def string) string {
	best := def
	for _, key := range slices.Sorted(maps.Keys(count)) {
		if key != "" && count[key] > count[best] {
			best = key
		}
	}
	if best == def {
		return ""
	}
	return best
}

// templates are the blocks of templates: guests to clone, and archives of containers.
func (w *writer) templates(s *Seen) []hcl.Block {
	have, names := map[string]bool{}, map[string]bool{}
	for addr, r := range w.site.Objects {
		if t, ok := r.Spec.(*guest.Template); ok {
			have[strconv.Itoa(t.VMID)+t.Volume], names[addr.Name] = true, true
		}
	}
	var out []hcl.Block
	add := func(name, otherwise string, t guest.Template) {
		if name = cmp.Or(Label(name), otherwise); names[name] {
			name = shortened(name, len(otherwise)+1) + "-" + otherwise
		}
		if !have[strconv.Itoa(t.VMID)+t.Volume] && !names[name] {
			names[name] = true
			out = append(out, hcl.Block{Type: "template", Label: name, Parts: []hcl.Part{{Value: &t}}})
		}
	}
	for _, g := range s.guests {
		_, _, managed := owner.ParseDescription(g.Config.Description())
		if g.Config.Now["template"] == "1" && w.o.includes("template") && !managed {
			add(nameOf(g), fmt.Sprintf("%s-%d", g.Kind(), g.VMID), guest.Template{VMID: g.VMID})
		}
	}
	for i, volume := range s.archives {
		name, _, _ := strings.Cut(path.Base(volume), ".tar.")
		add(name, fmt.Sprintf("archive-%d", i+1), guest.Template{Volume: volume})
	}
	w.report.Templates = len(out)
	return out
}

// files arranges the blocks.
func (w *writer) files(templates []hcl.Block) []file {
	var out []file
	if w.fresh {
		out = append(out,
			file{name: "site", blocks: []hcl.Block{{Type: "site", Label: w.site.Name, Parts: []hcl.Part{{Value: w.site}}}}},
			file{name: path.Join("hosts", w.host.Name), blocks: []hcl.Block{{Type: "host", Label: w.host.Name, Parts: []hcl.Part{{Value: w.withoutToken()}}}}})
	}
	if presets := w.presets(); len(presets) > 0 {
		out = append(out, file{name: "presets", blocks: presets})
	}
	if len(templates) > 0 {
		out = append(out, file{name: "templates", blocks: templates})
	}
	groups, used := map[string][]*node{}, map[string]bool{}
	for _, n := range w.nodes {
		groups[w.group(n)] = append(groups[w.group(n)], n)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		for part := range slices.Chunk(groups[group], mostNodes) {
			name := free(group, func(name string) bool { return used[name] || w.site.Manifests[name] != nil })
			used[name] = true
			out = append(out, file{name: path.Join("manifests", name), blocks: []hcl.Block{w.manifest(name, part)}})
		}
	}
	return out
}

// objects are the files of pools and IP sets that the site does not declare.
func (w *writer) objects(s *Seen) []file {
	blocks := map[string][]hcl.Block{}
	for _, r := range s.objects {
		kind, name := r.Addr.Kind, r.Addr.Name
		declared := w.site.Objects[r.Addr] != nil
		if !lang.ValidName(name) {
			w.skip(kind, name, "its name is not one of a block", "a block has a name of lower-case letters, digits and dashes: it can be used, but not be declared")
		} else if bad := w.site.Kinds.Get(kind).Resolve(&model.Resource{Addr: r.Addr, Spec: model.Clone(r.Spec)}, model.Scope{Site: w.site, Host: w.host, Name: name}); len(bad) > 0 {
			w.skip(kind, name, bad[0].Summary, bad[0].Detail)
		} else if !declared {
			blocks[kind] = append(blocks[kind], hcl.Block{Type: kind, Label: name, Parts: []hcl.Part{{Value: r.Spec}}})
			w.report.Objects++
		}
	}
	var out []file
	for _, kind := range slices.Sorted(maps.Keys(blocks)) {
		out = append(out, file{name: kind + "s", blocks: blocks[kind]})
	}
	return out
}

// skip reports an object that is not written.
func (w *writer) skip(kind, name, why, fix string) {
	w.report.Skipped = append(w.report.Skipped, skippedGuest{Type: kind, Name: name, Why: why, Fix: fix})
}

// images are the comments about files that no block can declare: one needs the URL of the file.
func (w *writer) images(s *Seen) []file {
	if !w.fresh && !slices.Contains(w.o.Only, "image") {
		return nil
	}
	const why = "Proxmox VE does not keep the URL that it came from"
	head := []string{"", "Not written, since " + why + ":"}
	for _, volume := range s.images {
		w.skip("image", volume, why, `declare it: image "NAME" { url = "https://…" }, with checksum on a line of its own; options of guests may name the file as it is`)
		head = append(head, "  "+diag.Line(volume))
	}
	if !w.fresh || len(s.images) == 0 {
		return nil
	}
	return []file{{name: "images", head: head}}
}

// group is the name of the manifest of a node.
func (w *writer) group(n *node) string {
	name := ""
	switch w.o.By {
	case "pool":
		name = n.Pool
	case "tag":
		if tags := ownTags(n.Tags); len(tags) > 0 {
			name = slices.Min(tags)
		}
	}
	return cmp.Or(Label(name), Label(n.Node), w.host.Name)
}

func (w *writer) manifest(name string, nodes []*node) hcl.Block {
	m := &model.Manifest{Description: "Guests of " + w.host.Name + " that were there already", Pattern: "flat", Host: w.host.Name}
	b := hcl.Block{Type: "manifest", Label: name, Parts: []hcl.Part{{Value: m}}}
	for _, n := range nodes {
		var comment []string
		for _, l := range n.left {
			comment = append(comment, diag.Line(fmt.Sprintf("Left as it is: %s (%s).", l.Key, l.Why)))
		}
		b.Inner = append(b.Inner, hcl.Block{Type: "node", Label: n.decl.Name, Comment: comment, Parts: []hcl.Part{{Value: n.decl}, {Value: n.spec, Base: n.base}}})
		i := importedGuest{Type: n.Kind(), VMID: n.VMID, Node: n.decl.Name, Manifest: name, Left: n.left, Password: password.MatchString(n.Config.Description())}
		if v, ok := n.spec.(*guest.VM); ok {
			i.Secret = v.Password
		}
		w.report.Imported = append(w.report.Imported, i)
	}
	return b
}

// presets gives nodes of one size a preset: one of the site, or a new one for three or more.
func (w *writer) presets() []hcl.Block {
	known, count := map[model.Preset]string{}, map[model.Preset]int{}
	for _, name := range slices.Sorted(maps.Keys(w.site.Presets)) {
		p := w.site.Presets[name]
		size := model.Preset{Cores: p.Cores, Memory: p.Memory, Disk: p.Disk}
		known[size] = cmp.Or(known[size], name)
	}
	for _, n := range w.nodes {
		count[n.size()]++
	}
	var out []hcl.Block
	for _, n := range w.nodes {
		size := n.size()
		name := known[size]
		if size.Cores == 0 || size.Memory < 16 || name == "" && count[size] < shared {
			continue
		}
		if name == "" {
			name = free(presetName(size), func(name string) bool { return w.site.Presets[name] != nil })
			known[size] = name
			out = append(out, hcl.Block{Type: "preset", Label: name, Parts: []hcl.Part{{Value: &size}}})
		}
		n.usePreset(name)
	}
	sort.Slice(out, func(i, j int) bool { return model.CompareNames(out[i].Label, out[j].Label) < 0 })
	return out
}

// presetName is such as c2-4g-32g: cores, memory and disk.
func presetName(p model.Preset) string {
	name := fmt.Sprintf("c%d-%dm", p.Cores, p.Memory)
	if p.Memory%1024 == 0 {
		name = fmt.Sprintf("c%d-%dg", p.Cores, p.Memory/1024)
	}
	if p.Disk > 0 {
		name += fmt.Sprintf("-%dg", p.Disk)
	}
	return name
}

// size is what a preset has of a node.
func (n *node) size() model.Preset {
	if c, ok := n.spec.(*guest.CT); ok {
		return model.Preset{Cores: c.Cores, Memory: c.Memory, Disk: c.Disk}
	}
	v := n.spec.(*guest.VM)
	return model.Preset{Cores: v.Cores, Memory: v.Memory, Disk: v.Disk}
}

// usePreset gives a node a preset of its size, in place of what it says of that.
func (n *node) usePreset(name string) {
	switch s := n.spec.(type) {
	case *guest.VM:
		base := n.base.(*guest.VM)
		s.Preset, s.Cores, s.Memory, s.Disk = name, base.Cores, base.Memory, base.Disk
	case *guest.CT:
		base := n.base.(*guest.CT)
		s.Preset, s.Cores, s.Memory, s.Disk = name, base.Cores, base.Memory, base.Disk
	}
}

// withoutToken is the host without what no file may have.
func (w *writer) withoutToken() *model.Host {
	h := *w.host
	h.APIToken = ""
	return &h
}

// naming reports whether the site allows a name; nil if it has no rule.
func (w *writer) naming() func(string) bool {
	if w.site.Naming == nil {
		return nil
	}
	re, err := regexp.Compile("^(?:" + w.site.Naming.Pattern + ")$")
	if err != nil {
		return nil // the loader reports it
	}
	return re.MatchString
}
