package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

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
			return "" // it would lie outside
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

// inside is what a container is told.
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
