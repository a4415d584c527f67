package chaos_test

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// site is what the files of a schedule say. It is changed by edits and written out as
// text, which is what the loader gets.
type site struct {
	nodes     []*node
	cluster   []string // names of the PVE nodes
	storage   string   // where disks are
	other     string   // where else they may be; "" in a cluster
	pooled    bool     // the host has a pool that its guests join
	comment   string   // of that pool
	beside    bool     // there is a pool without members
	sums      map[string]int
	from, to  int    // the range that VMIDs are chosen from
	onError   string // of the manifest
	born      int    // names given so far
	templates []int  // VMIDs of templates
	spare     bool   // the files keep downloads that no container is made from
	vault     string // where final backups go; "" leaves it to the host
	checked   bool   // guests with an agent must answer by it
}

// node is one guest as the files have it.
type node struct {
	name, kind           string
	image, template      string
	vmid                 int // 0: chosen
	cores, memory, disk  int
	disks                []disk
	nics                 []nic
	tags, needs          []string
	restart, power       string
	policy, orphan       string
	notes                string
	onboot, guarded      bool
	balloon, order, down int
	seeded               int  // which of the user data it has; 0: none
	nesting              bool // of a container
}

type disk struct {
	name, storage string
	size          int
	bus           string // of a VM; "" leaves it to the program
	remove        bool   // its data go with it
	saved         bool   // of a container: it is part of backups
}

type nic struct {
	name string
	vlan int
}

func (n *node) addr() string { return n.kind + "." + n.name }

// maker makes a new node of one sort. A kind of guest that is new to the program gets
// a maker here, and the lines that it needs in text.
type maker struct {
	sort string
	make func(r *rand.Rand, s *site, n *node)
}

func makers() []maker {
	fromImage := func(r *rand.Rand, n *node) { n.image = []string{"debian-12", "debian-13"}[r.IntN(2)] }
	return []maker{
		{"vm from an image", func(r *rand.Rand, _ *site, n *node) { n.kind = "vm"; fromImage(r, n) }},
		{"vm from an image with disks", func(r *rand.Rand, s *site, n *node) {
			n.kind = "vm"
			fromImage(r, n)
			for i := range 1 + r.IntN(2) {
				n.disks = append(n.disks, s.newDisk(r, fmt.Sprintf("data-%d", i)))
			}
		}},
		{"vm with words of its own", func(r *rand.Rand, _ *site, n *node) {
			n.kind, n.seeded = "vm", 1+r.IntN(3)
			fromImage(r, n)
		}},
		{"clone of a template", func(_ *rand.Rand, _ *site, n *node) { n.kind, n.template = "vm", "golden" }},
		{"pve", func(r *rand.Rand, _ *site, n *node) { n.kind = "pve"; fromImage(r, n) }},
		{"container", func(r *rand.Rand, s *site, n *node) { s.contain(r, n, pick(r, "deb", "alp", "lying")) }},
		{"container with disks", func(r *rand.Rand, s *site, n *node) {
			s.contain(r, n, pick(r, "deb", "alp"))
			for i := range 1 + r.IntN(2) {
				n.disks = append(n.disks, s.newDisk(r, fmt.Sprintf("data-%d", i)))
			}
		}},
		{"clone of a container", func(r *rand.Rand, s *site, n *node) { s.contain(r, n, "golden-ct") }},
	}
}

// contain makes a container of a node.
func (*site) contain(r *rand.Rand, n *node, from string) {
	n.kind, n.template, n.disk, n.nesting = "ct", from, 4+r.IntN(12), r.IntN(3) == 0
}

func (s *site) newDisk(r *rand.Rand, name string) disk {
	return disk{
		name: name, storage: s.anyStorage(r), size: 1 + r.IntN(8), bus: pick(r, "", "", "scsi", "virtio", "sata"),
		remove: r.IntN(4) == 0, saved: r.IntN(2) == 0,
	}
}

// anyStorage is a storage for a disk; "" leaves it to the host.
func (s *site) anyStorage(r *rand.Rand) string {
	if s.other == "" || r.IntN(3) > 0 {
		return ""
	}
	return s.other
}

// add makes a node.
func (s *site) add(r *rand.Rand) *node {
	s.born++
	n := &node{
		name: fmt.Sprintf("n%d", s.born), cores: 1 + r.IntN(4), memory: 512 * (1 + r.IntN(6)), disk: 20 + r.IntN(10),
		restart: pick(r, "never", "allowed"), power: "running",
	}
	all := makers()
	all[r.IntN(len(all))].make(r, s, n)
	if r.IntN(3) == 0 {
		n.vmid = s.freeVMID(r)
	}
	if r.IntN(4) == 0 && len(s.nodes) > 0 {
		n.needs = []string{s.nodes[r.IntN(len(s.nodes))].name}
	}
	for i := range r.IntN(3) {
		n.nics = append(n.nics, nic{name: []string{"lan", "dmz"}[i], vlan: r.IntN(3) * 7})
	}
	n.tags = slices.Compact(slices.Sorted(slices.Values([]string{pick(r, "prod", "lab"), pick(r, "prod", "web")})))[:r.IntN(2)]
	n.guarded, n.onboot = r.IntN(8) == 0, r.IntN(2) == 0
	n.notes = pick(r, "", "", "About it\n\nsecond line")
	if r.IntN(3) == 0 {
		n.policy = pick(r, "allow_immediate_destroy", "requires_final_backup", "requires_final_backup", "requires_migration_first")
	}
	if r.IntN(6) == 0 {
		n.orphan = pick(r, "refuse", "destroy", "abandon")
	}
	if r.IntN(5) == 0 && n.kind != "ct" {
		n.balloon = 256
	}
	if r.IntN(5) == 0 {
		n.order, n.down = 1+r.IntN(4), 20+r.IntN(20)
	}
	s.nodes = append(s.nodes, n)
	return n
}

func (s *site) freeVMID(r *rand.Rand) int {
	for {
		id := s.from + 50 + r.IntN(40)
		if !slices.ContainsFunc(s.nodes, func(n *node) bool { return n.vmid == id }) {
			return id
		}
	}
}

// drop takes a node out of the files, and every mention of it.
func (s *site) drop(name string) {
	s.nodes = slices.DeleteFunc(s.nodes, func(n *node) bool { return n.name == name })
	for _, n := range s.nodes {
		n.needs = slices.DeleteFunc(n.needs, func(s string) bool { return s == name })
	}
}

func (s *site) find(addr string) *node {
	for _, n := range s.nodes {
		if n.addr() == addr {
			return n
		}
	}
	return nil
}

// copy is one that edits of this one do not reach.
func (s *site) copy() *site {
	c := *s
	c.sums = maps.Clone(s.sums)
	c.nodes = nil
	for _, n := range s.nodes {
		m := *n
		m.disks, m.nics, m.tags, m.needs = slices.Clone(n.disks), slices.Clone(n.nics), slices.Clone(n.tags), slices.Clone(n.needs)
		c.nodes = append(c.nodes, &m)
	}
	return &c
}

// text is the site in its language.
func (s *site) text() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("site \"home\" {\n  max_deletes = 50\n  vmid_range \"guests\" {\n    from = %d\n    to   = %d\n  }\n}\n", s.from, s.to)
	p("host \"father\" {\n  api = \"https://192.0.2.10:8006\"\n  insecure_tls = true\n  storage {\n    disks = %q", s.storage)
	if s.vault != "" {
		p("    backups = %q", s.vault)
	}
	p("  }")
	if len(s.cluster) > 1 {
		p("  nodes = [\"%s\"]", strings.Join(s.cluster, `", "`))
	}
	if s.pooled {
		p("  pool = \"prod\"")
	}
	p("}\n")
	if s.pooled {
		p("pool \"prod\" {\n  host = host.father\n  comment = %q\n}\n", s.comment)
	}
	if s.beside {
		p("pool \"beside\" {\n  host = host.father\n}\n")
	}
	for _, name := range []string{"debian-12", "debian-13"} {
		p("image %q {\n  url = \"https://images.example/%s.qcow2\"\n  checksum = \"sha256:%064x\"\n}\n", name, name, 0xaa0000+s.sums[name])
	}
	s.downloads(p)
	if s.checked {
		p("spec \"answers\" {\n  check \"agent\" {\n    agent = true\n  }\n}\n")
	}
	p("manifest \"web\" {\n  pattern = \"flat\"\n  host = host.father\n  on_error = %q", s.onError)
	for _, n := range s.nodes {
		n.text(p)
		if s.checked && n.kind != "ct" && n.image != "" {
			p("    spec = spec.answers")
		}
		p("  }")
	}
	p("}")
	return b.String()
}

// downloads are the templates that the files name: what is downloaded while some
// container needs it, or is kept anyway, and what was on the host before.
func (s *site) downloads(p func(string, ...any)) {
	p("template \"golden\" {\n  vmid = %d\n}\n", s.templates[0])
	p("template \"golden-ct\" {\n  vmid = %d\n}\n", s.templates[1])
	p("template \"lying\" {\n  volume = %q\n}\n", lying)
	for _, name := range []string{"deb", "alp"} {
		if s.spare || slices.ContainsFunc(s.nodes, func(n *node) bool { return n.template == name }) {
			p("template %q {\n  url = \"http://images.example/%s.tar.zst\"\n  checksum = \"sha256:%064x\"\n}\n", name, name, 0xcc0000+s.sums[name])
		}
	}
}

// lying is a container template that was on the host before.
const lying = "local:vztmpl/lying.tar.gz"

func (n *node) text(p func(string, ...any)) {
	p("  node %q {\n    type = %q\n    cores = %d\n    memory = %d\n    disk = %d\n    restart = %q\n    power = %q", n.name, n.kind, n.cores, n.memory, n.disk, n.restart, n.power)
	p("    onboot = %v\n    protection = %v\n    tags = [%s]", n.onboot, n.guarded, quoted(n.tags))
	if n.image != "" {
		p("    image = image.%s", n.image)
	} else {
		p("    template = template.%s", n.template)
	}
	if n.vmid != 0 {
		p("    vmid = %d", n.vmid)
	}
	if n.notes != "" {
		p("    description = %q", n.notes)
	}
	if len(n.needs) > 0 {
		p("    depends_on = [node.%s]", strings.Join(n.needs, ", node."))
	}
	if n.orphan != "" {
		p("    orphan = %q", n.orphan)
	}
	if n.policy != "" {
		p("    decommission {\n      policy = %q\n    }", n.policy)
	}
	if n.order != 0 {
		p("    startup {\n      order = %d\n      down = %d\n    }", n.order, n.down)
	}
	if n.balloon != 0 {
		p("    options = {\n      balloon = \"%d\"\n    }", n.balloon)
	}
	if n.seeded != 0 {
		p("    user_data = \"#cloud-config\\npassword: ${secret.passwords[\"root\"]}\\nhostname: h%d\\n\"", n.seeded)
	}
	if n.nesting {
		p("    features = [\"nesting\"]")
	}
	for _, d := range n.disks {
		p("    disk %q {\n      size = %d", d.name, d.size)
		if d.storage != "" {
			p("      storage = %q", d.storage)
		}
		switch {
		case n.kind == "ct":
			p("      path = %q\n      backup = %v", "/srv/"+d.name, d.saved)
		case d.bus != "":
			p("      bus = %q\n      remove = %v", d.bus, d.remove)
		default:
			p("      remove = %v", d.remove)
		}
		p("    }")
	}
	for _, c := range n.nics {
		p("    nic %q {", c.name)
		if c.vlan != 0 {
			p("      vlan = %d", c.vlan)
		}
		p("    }")
	}
}

func quoted(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return `"` + strings.Join(list, `", "`) + `"`
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// edits are the changes that people make in the files. Each says what it did, "" if
// there was nothing to do it to.
func edits() []func(r *rand.Rand, s *site) string {
	some := func(do func(r *rand.Rand, s *site, n *node) string) func(*rand.Rand, *site) string {
		return func(r *rand.Rand, s *site) string {
			if len(s.nodes) == 0 {
				return ""
			}
			n := s.nodes[r.IntN(len(s.nodes))]
			if what := do(r, s, n); what != "" {
				return n.addr() + ": " + what
			}
			return ""
		}
	}
	return []func(*rand.Rand, *site) string{
		addNode, addNode,
		some(removeNode), some(removeNode), some(removeNode), some(removeNode), some(renameNode), some(leaveKindly),
		some(sizes), some(labels), some(flags), some(origin), some(growDisk), some(growDisk), some(shrinkDisk), some(addDisk), some(dropDisk), some(dropDisk), some(moveDisk), some(moveDisk), some(cards), some(number), some(needs), some(removal), some(userData), some(inside),
		contents, moveRange, pools, around,
		func(r *rand.Rand, s *site) string {
			s.onError = pick(r, "stop", "rollback", "continue")
			return "on_error " + s.onError
		},
	}
}

func addNode(r *rand.Rand, s *site) string {
	if len(s.nodes) > 8 {
		return ""
	}
	n := s.add(r)
	return fmt.Sprintf("added %s (image %q, template %q, vmid %d)", n.addr(), n.image, n.template, n.vmid)
}

func removeNode(_ *rand.Rand, s *site, n *node) string {
	if len(s.nodes) < 2 {
		return ""
	}
	s.drop(n.name)
	return "removed"
}

// leaveKindly demands a backup, or rest, before it goes; a later edit may remove it.
func leaveKindly(r *rand.Rand, _ *site, n *node) string {
	n.policy = pick(r, "requires_final_backup", "requires_final_backup", "requires_migration_first")
	if n.policy == "requires_migration_first" {
		n.power = pick(r, "running", "stopped")
	}
	return fmt.Sprintf("policy %q, power %s", n.policy, n.power)
}

func renameNode(_ *rand.Rand, s *site, n *node) string {
	s.born++
	old := n.name
	n.name = fmt.Sprintf("n%d", s.born)
	for _, m := range s.nodes {
		for i := range m.needs {
			if m.needs[i] == old {
				m.needs[i] = n.name
			}
		}
	}
	return "was " + old
}

func sizes(r *rand.Rand, _ *site, n *node) string {
	n.cores, n.memory = 1+r.IntN(6), 512*(1+r.IntN(8))
	return fmt.Sprintf("%d cores, %d MiB", n.cores, n.memory)
}

func labels(r *rand.Rand, _ *site, n *node) string {
	n.tags = pick(r, nil, []string{"prod"}, []string{"lab", "web"})
	n.notes = pick(r, "", "Ask Ann", "Notes\n\nof two lines")
	return fmt.Sprintf("tags %v, description %q", n.tags, n.notes)
}

func flags(r *rand.Rand, _ *site, n *node) string {
	switch r.IntN(7) {
	case 0:
		n.power = pick(r, "running", "stopped")
	case 1:
		n.guarded = !n.guarded
	case 2:
		n.onboot = !n.onboot
	case 3:
		n.restart = pick(r, "never", "allowed")
	case 4:
		n.policy = pick(r, "", "allow_immediate_destroy", "requires_final_backup", "requires_migration_first")
	case 5:
		if n.kind != "ct" {
			n.balloon = pick(r, 0, 128, 512)
		}
	case 6:
		n.order, n.down = r.IntN(3), 10+r.IntN(30)
	}
	return fmt.Sprintf("power %s, protection %v, onboot %v, restart %s, policy %q, balloon %d, order %d", n.power, n.guarded, n.onboot, n.restart, n.policy, n.balloon, n.order)
}

// origin makes it another machine.
func origin(r *rand.Rand, _ *site, n *node) string {
	if n.kind == "ct" && r.IntN(2) == 0 {
		n.template = pick(r, "deb", "alp", "lying", "golden-ct")
		return fmt.Sprintf("template %q", n.template)
	}
	if n.kind != "vm" || r.IntN(2) == 0 {
		return ""
	}
	n.seeded = 0
	if n.image == "" || r.IntN(3) > 0 {
		n.image, n.template = pick(r, "debian-12", "debian-13"), ""
	} else {
		n.image, n.template = "", "golden"
	}
	return fmt.Sprintf("image %q, template %q", n.image, n.template)
}

func growDisk(r *rand.Rand, _ *site, n *node) string {
	if len(n.disks) > 0 && r.IntN(2) == 0 {
		d := &n.disks[r.IntN(len(n.disks))]
		d.size += 1 + r.IntN(4)
		return fmt.Sprintf("disk %s has %d GiB", d.name, d.size)
	}
	n.disk += 1 + r.IntN(5)
	return fmt.Sprintf("root disk has %d GiB", n.disk)
}

func shrinkDisk(r *rand.Rand, _ *site, n *node) string {
	if r.IntN(3) > 0 || n.disk < 6 {
		return ""
	}
	n.disk -= 2
	return fmt.Sprintf("root disk has only %d GiB", n.disk)
}

func addDisk(r *rand.Rand, s *site, n *node) string {
	for i := range 3 {
		name := fmt.Sprintf("data-%d", i)
		if !slices.ContainsFunc(n.disks, func(d disk) bool { return d.name == name }) {
			n.disks = append(n.disks, s.newDisk(r, name))
			return "new disk " + name
		}
	}
	return ""
}

func dropDisk(r *rand.Rand, _ *site, n *node) string {
	if len(n.disks) == 0 {
		return ""
	}
	i := r.IntN(len(n.disks))
	name := n.disks[i].name
	n.disks = slices.Delete(n.disks, i, i+1)
	return "without disk " + name
}

func moveDisk(r *rand.Rand, s *site, n *node) string {
	if len(n.disks) == 0 || s.other == "" {
		return ""
	}
	d := &n.disks[r.IntN(len(n.disks))]
	if d.storage == "" {
		d.storage = s.other
	} else {
		d.storage = ""
	}
	return fmt.Sprintf("disk %s on storage %q", d.name, d.storage)
}

func cards(r *rand.Rand, _ *site, n *node) string {
	switch {
	case len(n.nics) == 0:
		n.nics = []nic{{name: "lan", vlan: r.IntN(20)}}
	case len(n.nics) < 3 && r.IntN(2) == 0:
		n.nics = append(n.nics, nic{name: fmt.Sprintf("net-%d", len(n.nics)), vlan: r.IntN(20)})
	case len(n.nics) > 1 && r.IntN(2) == 0:
		n.nics = n.nics[:len(n.nics)-1]
	default:
		n.nics[0].vlan = r.IntN(20)
	}
	return fmt.Sprintf("nics %v", n.nics)
}

// number declares another VMID, or none.
func number(r *rand.Rand, s *site, n *node) string {
	if r.IntN(3) > 0 {
		return ""
	}
	n.vmid = pick(r, 0, s.freeVMID(r))
	return fmt.Sprintf("vmid %d", n.vmid)
}

// needs changes what it waits for; only on older ones, so that nothing goes in circles.
func needs(r *rand.Rand, s *site, n *node) string {
	at := slices.Index(s.nodes, n)
	n.needs = nil
	if at > 0 && r.IntN(3) > 0 {
		n.needs = []string{s.nodes[r.IntN(at)].name}
	}
	return fmt.Sprintf("depends on %v", n.needs)
}

// contents is another content of an image, under the same name.
func contents(r *rand.Rand, s *site) string {
	if r.IntN(2) == 0 {
		return ""
	}
	name := pick(r, "debian-12", "debian-13", "deb", "alp")
	s.sums[name]++
	return "image " + name + " has another content"
}

func moveRange(_ *rand.Rand, s *site) string {
	for _, n := range s.nodes {
		if n.vmid != 0 {
			return "" // it would be outside
		}
	}
	s.from += 200
	s.to += 200
	return fmt.Sprintf("VMIDs from %d to %d", s.from, s.to)
}

func pools(r *rand.Rand, s *site) string {
	if s.pooled && r.IntN(2) == 0 {
		s.comment = pick(r, "what pays", "what earns", "")
		return "pool prod: " + s.comment
	}
	s.beside = !s.beside
	return fmt.Sprintf("pool beside: %v", s.beside)
}

// removal says of a disk that its data shall go with it, or not.
func removal(r *rand.Rand, _ *site, n *node) string {
	if len(n.disks) == 0 || n.kind == "ct" {
		return ""
	}
	d := &n.disks[r.IntN(len(n.disks))]
	d.remove = !d.remove
	return fmt.Sprintf("disk %s: remove %v", d.name, d.remove)
}

// userData changes the first words of a machine, which comes too late for one that lives.
func userData(r *rand.Rand, _ *site, n *node) string {
	if n.seeded == 0 {
		return ""
	}
	n.seeded = 1 + r.IntN(3)
	return fmt.Sprintf("user data %d", n.seeded)
}

// inside changes settings of a container.
func inside(r *rand.Rand, _ *site, n *node) string {
	if n.kind != "ct" {
		return ""
	}
	if len(n.disks) > 0 && r.IntN(2) == 0 {
		d := &n.disks[r.IntN(len(n.disks))]
		d.saved = !d.saved
		return fmt.Sprintf("disk %s in backups: %v", d.name, d.saved)
	}
	n.nesting = !n.nesting
	return fmt.Sprintf("nesting %v", n.nesting)
}

// around changes what stands around the guests.
func around(r *rand.Rand, s *site) string {
	switch r.IntN(3) {
	case 0:
		s.spare = !s.spare
	case 1:
		s.vault = pick(r, "", "vault")
	default:
		s.checked = !s.checked
	}
	return fmt.Sprintf("spare templates %v, backups in %q, checks %v", s.spare, s.vault, s.checked)
}

// repo is a repository in memory: a branch of commits, each with its tree. The real one
// has faults of its own, and tests of its own.
type repo struct {
	mu     sync.Mutex // the agent asks while the schedule pushes
	branch []model.Commit
	trees  map[string]fs.FS
}

func newRepo() *repo { return &repo{trees: map[string]fs.FS{}} }

func (r *repo) push(text, subject string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("%040x", len(r.branch)+1)
	c := model.Commit{
		ID: id, Subject: subject, Author: model.Person{Name: "Ada", Email: "ada@home.example"}, At: time.Now(),
		Trailers: map[string]string{"Allow-Deletes": "50"},
	}
	if len(r.branch) > 0 {
		c.Parents = []string{r.branch[len(r.branch)-1].ID}
	}
	r.branch = append(r.branch, c)
	r.trees[id] = fstest.MapFS{"site.hcl": {Data: []byte(text)}}
	return id
}

func (r *repo) tree(id string) fs.FS {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trees[id]
}

// Head is as agent.source wants it, and so are the others.
func (r *repo) Head(ctx context.Context) (model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.branch[len(r.branch)-1], ctx.Err()
}

func (r *repo) Commit(_ context.Context, id string) (model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.at(id); i >= 0 {
		return r.branch[i], nil
	}
	return model.Commit{}, fmt.Errorf("no commit %s", id)
}

func (r *repo) Since(_ context.Context, from, to string) ([]model.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, j := r.at(from), r.at(to)
	if i < 0 || j < i {
		return nil, model.ErrUnrelated
	}
	out := slices.Clone(r.branch[i+1 : j+1])
	slices.Reverse(out)
	return out, nil
}

func (*repo) Keep(...string) error { return nil }

func (r *repo) at(id string) int {
	return slices.IndexFunc(r.branch, func(c model.Commit) bool { return c.ID == id })
}
