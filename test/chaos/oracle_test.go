package chaos_test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// A reason is why something is left as it is, told from site and host alone, without
// the program that is tested. What the program says must be of that reason.
type reason string

const (
	claimed   reason = "something that is not ours may be it"
	taken     reason = "its VMID is taken"
	twins     reason = "two guests have its identity"
	locked    reason = "its configuration is locked"
	detached  reason = "a disk was detached by hand"
	shrinks   reason = "a disk would shrink"
	protected reason = "it, or its disk, is protected"
	decomm    reason = "its decommission policy keeps it"
	needed    reason = "another one keeps it"
	waits     reason = "it needs what is kept"
	circle    reason = "it waits for its own successor"
	unsaved   reason = "no backup would hold all of its data"
	bus       reason = "its disk has another bus"
	snapped   reason = "a snapshot holds the data that shall go or move"
	held      reason = "it goes wrong together with what is locked"
	strayed   reason = "it was restored under another VMID than the files say"
	unmovable reason = "its disk moves only while it is stopped"
	unseen    reason = "it has no tag any more, and is where nobody looks"
)

// says is how the program tells of each.
func says() map[reason]*regexp.Regexp {
	return map[reason]*regexp.Regexp{
		claimed: regexp.MustCompile(`exists already and is unmanaged`), taken: regexp.MustCompile(`VMID \d+ is (taken by|still that of|that of)`),
		twins: regexp.MustCompile(`guests carry the identity of .*: neither is changed|exists already and is unmanaged \(one of \d`), locked: regexp.MustCompile(`lock`),
		detached: regexp.MustCompile(`was detached by hand|its root disk is gone`), shrinks: regexp.MustCompile(`cannot shrink`),
		protected: regexp.MustCompile(`protected`), decomm: regexp.MustCompile(`decommission policy`),
		circle: regexp.MustCompile(`depend on each other in a cycle`),
		bus:    regexp.MustCompile(`cannot go from bus`), snapped: regexp.MustCompile(`still in use|snapshot`),
		strayed: regexp.MustCompile(`restored under another VMID`),
		held:    regexp.MustCompile(`is locked`),
		unseen:  regexp.MustCompile(`$^`), // of what nobody looks at nothing can be said (decision 4)
		unsaved: regexp.MustCompile(`no backup would hold`), unmovable: regexp.MustCompile(`can only be moved while it is stopped`),
		needed: regexp.MustCompile(`still needs it|lives on it|VMID \d+ is (still )?that of`), waits: regexp.MustCompile(`it needs|still needs it|in a cycle`),
	}
}

type reasons map[string][]reason

func (s reasons) add(addr string, r reason) {
	if !slices.Contains(s[addr], r) {
		s[addr] = append(s[addr], r)
	}
}

// standing tells what stands in the way of whom.
func (w *world) standing(snap pve.Snapshot) reasons {
	out, site, have := reasons{}, w.site(), ours(snap)
	for _, n := range site.nodes {
		addr := n.addr()
		switch list := have[addr]; len(list) {
		case 0:
			w.absent(out, n, snap)
		case 1:
			w.present(out, n, list[0], snap)
		default:
			out.add(addr, twins)
		}
	}
	for addr, list := range have {
		if len(list) > 1 {
			out.add(addr, twins)
		}
		if site.find(addr) != nil {
			continue
		}
		for _, g := range list {
			leaving(out, addr, g)
			if !tagged(g) && (g.VMID < site.from || g.VMID > site.to) && !slices.ContainsFunc(site.nodes, func(n *node) bool { return n.name == g.Name() || n.vmid == g.VMID }) {
				out.add(addr, unseen)
			}
		}
	}
	for _, n := range site.nodes {
		for _, other := range site.nodes {
			if list := have[other.addr()]; slices.Contains(n.needs, other.name) && len(list) > 0 && silent(site, other, list[0]) {
				out.add(n.addr(), waits)
			}
		}
	}
	if site.onError != "continue" {
		hold(out, site)
	}
	if shielded(site, have) {
		for _, n := range site.nodes {
			out.add(n.addr(), protected)
		}
		for addr := range have {
			out.add(addr, protected)
		}
	}
	return follow(out, site, snap)
}

// silent reports whether the check of a machine that others need cannot hold before the
// restart that its agent waits for.
func silent(site *site, n *node, g pve.Guest) bool {
	return site.checked && n.kind != "ct" && n.image != "" && g.Running && g.Pending["agent"] != ""
}

// tagged reports whether a guest shows in a list that it may be ours.
func tagged(g pve.Guest) bool {
	return slices.Contains(strings.Split(next(g)["tags"], ";"), "homestak")
}

// shielded reports whether a guest would be recreated that the files protect in the same
// breath: the shipped rule denies all of such a plan.
func shielded(site *site, have map[string][]pve.Guest) bool {
	return slices.ContainsFunc(site.nodes, func(n *node) bool {
		list := have[n.addr()]
		return n.guarded && len(list) == 1 && n.recreated(list[0])
	})
}

// recreated reports whether the guest that a node has is not the one that it shall have.
func (n *node) recreated(g pve.Guest) bool {
	m, _ := markOf(g)
	from := "image." + n.image
	if n.image == "" {
		from = "template." + n.template
	}
	return m.From != "" && m.From != from || n.vmid != 0 && n.vmid != g.VMID
}

// hold is for a manifest that stops, or is taken back, when one of its steps fails: what
// is locked, or needs what is silent, fails whenever something is to be done to it.
func hold(out reasons, site *site) {
	for _, list := range out { // also of what leaves: it is of the manifest until it is gone
		if slices.Contains(list, locked) || slices.Contains(list, snapped) || slices.Contains(list, waits) {
			for _, n := range site.nodes {
				out.add(n.addr(), held)
			}
			return
		}
	}
}

func leaving(out reasons, addr string, g pve.Guest) {
	m, _ := markOf(g)
	if g.Lock != "" {
		out.add(addr, locked)
	}
	if g.Config["protection"] == "1" {
		out.add(addr, protected)
	}
	if m.Destroy.Policy == "requires_migration_first" && g.Running {
		out.add(addr, decomm)
	}
	if m.Destroy.Policy == "requires_final_backup" && !whole(g) {
		out.add(addr, unsaved)
	}
}

// whole reports whether a backup of a guest would hold all of its data.
func whole(g pve.Guest) bool {
	for key, val := range next(g) {
		if strings.HasPrefix(key, "unused") || g.Kind == "lxc" && strings.HasPrefix(key, "mp") && !strings.Contains(val, "backup=1") {
			return false
		}
	}
	return true
}

// absent is for a node that proves to be nowhere.
func (w *world) absent(out reasons, n *node, snap pve.Snapshot) {
	if t, there := snap.Guest(9002); there && t.Lock != "" && n.template == "golden-ct" {
		out.add(n.addr(), locked)
	}
	for _, g := range snap.Guests {
		m, found := markOf(g)
		_, proven := proves(g)
		switch {
		case found && !proven && m.addr() == n.addr():
			out.add(n.addr(), claimed)
		case !found && g.Name() == n.name:
			out.add(n.addr(), claimed)
		case g.VMID == n.vmid:
			w.occupied(out, n, g, snap)
		}
	}
}

// occupied is for a node whose VMID another one has. One of ours that leaves the site
// makes room, unless it is kept itself: by its terms, or because what needs it now shall
// need the new one, which comes later.
func (w *world) occupied(out reasons, n *node, g pve.Guest, snap pve.Snapshot) {
	addr, proven := proves(g)
	site, kept := w.site(), reasons{}
	if proven && site.find(addr) == nil {
		leaving(kept, addr, g)
		if len(ours(snap)[addr]) > 1 {
			kept.add(addr, twins)
		}
		for other, list := range ours(snap) {
			at := site.find(other)
			if at != nil && slices.Contains(at.needs, n.name) && slices.Contains(needsOf(list[0]), addr) {
				kept.add(addr, circle)
				out.add(other, circle)
				out.add(addr, circle)
				out.add(n.addr(), circle)
			}
		}
		if len(kept) == 0 {
			return
		}
	}
	out.add(n.addr(), claimed)
	out.add(n.addr(), taken)
}

// present is for a node that is there, once.
func (w *world) present(out reasons, n *node, g pve.Guest, snap pve.Snapshot) {
	addr := n.addr()
	m, _ := markOf(g)
	if g.Lock != "" {
		out.add(addr, locked)
	}
	if n.vmid != 0 && n.vmid != g.VMID && m.Born != g.VMID {
		out.add(addr, strayed)
	}
	if n.recreated(g) {
		leaving(out, addr, g) // it would be recreated
		if other, there := snap.Guest(n.vmid); there && other.VMID != g.VMID {
			out.add(addr, taken)
		}
		for _, list := range ours(snap) {
			if slices.Contains(needsOf(list[0]), addr) {
				out.add(addr, needed) // nothing is recreated below others
			}
		}
		return
	}
	conf := next(g)
	size, at := map[string]int{"root": n.disk}, map[string]string{"root": ""}
	for _, d := range n.disks {
		size[d.name], at[d.name] = d.size, d.storage
	}
	if n.kind == "ct" {
		w.contained(out, n, g, at)
	}
	for name, storage := range at { // PVE takes none away from its snapshots; the root of a copy may lie elsewhere
		value := conf[m.Slots["disk."+name]]
		if len(g.Snapshots) > 0 && value != "" && !strings.HasPrefix(value, cmp.Or(storage, w.site().storage)+":") && (name != "root" || n.image != "") {
			out.add(addr, snapped)
		}
	}
	if len(m.Removes) > 0 && len(g.Snapshots) > 0 {
		out.add(addr, snapped)
	}
	for key, slot := range m.Slots {
		for _, d := range n.disks {
			if key == "disk."+d.name && n.kind != "ct" && strings.TrimRight(slot, "0123456789") != cmp.Or(d.bus, "scsi") {
				out.add(addr, bus)
			}
		}
		name, ok := strings.CutPrefix(key, "disk.")
		if !ok {
			continue
		}
		is := 0
		if _, rest, ok := strings.Cut(sized(g, slot), "size="); ok {
			_, _ = fmt.Sscanf(rest, "%dG", &is)
		}
		switch want, wanted := size[name]; {
		case conf[slot] == "" && wanted:
			out.add(addr, detached)
		case wanted && want < is:
			out.add(addr, shrinks)
		case !wanted && conf["protection"] == "1":
			out.add(addr, protected)
		}
	}
}

// contained is for a container that is there: PVE moves none of its disks while it
// runs, and nothing of them while it is protected.
func (w *world) contained(out reasons, n *node, g pve.Guest, at map[string]string) {
	m, _ := markOf(g)
	conf := next(g)
	for name, storage := range at {
		value := conf[m.Slots["disk."+name]]
		if storage == "" {
			storage = w.site().storage
		}
		if value != "" && !strings.HasPrefix(value, storage+":") && g.Running && n.power == "running" && n.restart != "allowed" {
			out.add(n.addr(), unmovable)
		}
		if value == "" && conf["protection"] == "1" {
			out.add(n.addr(), protected)
		}
	}
	for _, d := range n.disks {
		value := conf[m.Slots["disk."+d.name]]
		if conf["protection"] == "1" && value != "" && d.saved != strings.Contains(value, "backup=1") {
			out.add(n.addr(), protected)
		}
	}
}

// follow adds what is kept because of others.
func follow(out reasons, site *site, snap pve.Snapshot) reasons {
	for range len(site.nodes) + 1 {
		for _, n := range site.nodes {
			for _, need := range n.needs {
				for _, other := range site.nodes {
					if other.name == need && len(out[other.addr()]) > 0 {
						out.add(n.addr(), waits)
					}
				}
			}
		}
		for addr, list := range ours(snap) {
			if len(out[addr]) == 0 {
				continue
			}
			for _, g := range list { // what a kept one needs by its mark is kept, too
				for _, need := range needsOf(g) {
					out.add(need, needed)
				}
				for _, n := range site.nodes {
					if n.vmid == g.VMID && n.addr() != addr {
						out.add(n.addr(), needed)
					}
				}
			}
		}
	}
	return out
}

var needsText = regexp.MustCompile(`"needs":\[([^\]]*)\]`)

func needsOf(g pve.Guest) []string {
	m := needsText.FindStringSubmatch(g.Config["description"])
	if m == nil {
		return nil
	}
	return strings.Split(strings.ReplaceAll(m[1], `"`, ""), ",")
}
