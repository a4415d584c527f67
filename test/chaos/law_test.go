package chaos_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// laws holds the host against what must be true when all is quiet. The laws, here and on each request (world_test.go):
//
//	a  managed guests are as the files say
//	b  no guest is created twice
//	c  nothing of a guest that left the site remains
//	d  unmanaged guests are not changed
//	e  no log, tag or request holds a secret
//	f  each request is one that PVE's table of the API permits
//	g  each write to a configuration carries its digest
//	h  nothing is written without quorum, or to a node that is offline
//	i  protection, locks and decommission policies hold
func (w *world) laws(snap pve.Snapshot) {
	site, stand := w.site(), w.standing(snap)
	for addr, list := range managed(snap) {
		made := slices.DeleteFunc(slices.Clone(list), func(g pve.Guest) bool { return w.byHand[g.VMID] })
		if len(made) > 1 {
			w.violation('b', "%d guests are %s: %v", len(made), addr, vmids(made))
		}
		if site.find(addr) == nil && len(stand[addr]) == 0 && slices.ContainsFunc(list, signed) {
			w.violation('c', "%s (%v) is ours, and the site does not have it", addr, vmids(list))
		}
	}
	for _, n := range site.nodes {
		if len(stand[n.addr()]) == 0 {
			w.as(n, managed(snap)[n.addr()])
		}
	}
	w.volumes(snap, stand)
	for _, vmid := range slices.Sorted(maps.Keys(w.foreign)) {
		was := w.foreign[vmid]
		is, there := snap.Guest(vmid)
		switch {
		case !there:
			w.violation('d', "guest %d (%s) is gone, and was not ours", vmid, was.Name())
		case !maps.Equal(unlocked(is.Config), unlocked(was.Config)) || was.HA == "" && is.HA == "" && (is.Running != was.Running || is.Node != was.Node) || is.Pool != was.Pool || len(is.Pending) != len(was.Pending):
			w.violation('d', "guest %d (%s) is changed, and was not ours:\n    was %v %v\n    is  %v %v", vmid, was.Name(), was.Running, was.Config, is.Running, is.Config)
		case disksOf(snap, vmid) != w.disks[vmid]:
			w.violation('d', "disks of guest %d, which is not ours, were %s and are %s", vmid, w.disks[vmid], disksOf(snap, vmid))
		}
	}
}

// unlocked is a configuration without its lock: a copy that dies leaves the template
// of a container locked.
func unlocked(c map[string]string) map[string]string {
	if c["template"] == "1" {
		c = maps.Clone(c)
		delete(c, "lock")
	}
	return c
}

func vmids(list []pve.Guest) []int {
	var out []int
	for _, g := range list {
		out = append(out, g.VMID)
	}
	return out
}

func disksOf(snap pve.Snapshot, vmid int) string {
	var out []string
	for _, list := range snap.Volumes {
		for _, v := range list {
			if v.VMID == vmid && (v.Content == "images" || v.Content == "rootdir") {
				out = append(out, fmt.Sprintf("%s (%d bytes)", v.ID, v.Size))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// as holds a guest against its node: the plan is not the only one to say that all is well.
func (w *world) as(n *node, list []pve.Guest) {
	if len(list) != 1 {
		w.violation('a', "%s is there %d times", n.addr(), len(list))
		return
	}
	g := list[0]
	c := next(g)
	is := fmt.Sprintf("name %s, cores %s, memory %s, running %v, protection %v", c["name"]+c["hostname"], c["cores"], c["memory"], g.Running, c["protection"] == "1")
	want := fmt.Sprintf("name %s, cores %d, memory %d, running %v, protection %v", n.name, n.cores, n.memory, n.power == "running", n.guarded)
	if is != want {
		w.violation('a', "%s (%d) is: %s; shall be: %s", n.addr(), g.VMID, is, want)
	}
	m, _ := markOf(g)
	for _, name := range m.Removes {
		gone := !slices.ContainsFunc(n.disks, func(d disk) bool { return d.name == name })
		for key, val := range g.Config {
			if gone && len(g.Snapshots) == 0 && m.Detached[name] != "" && strings.HasPrefix(key, "unused") && val == m.Detached[name] && !n.guarded {
				w.violation('c', "%s (%d): the data of disk %s are still at %s", n.addr(), g.VMID, name, key)
			}
		}
	}
	for _, d := range append([]disk{{name: "root", size: n.disk}}, n.disks...) {
		slot := m.Slots["disk."+d.name]
		if _, attached := g.Config[slot]; !attached && g.Pending[slot] != "" {
			continue // it waits for a restart, and only then can be grown
		}
		if drive := sized(g, slot); !strings.Contains(drive, fmt.Sprintf("size=%dG", d.size)) {
			w.violation('a', "%s (%d): disk %s shall have %d GiB, and is %q", n.addr(), g.VMID, d.name, d.size, drive)
		}
	}
	for _, t := range append([]string{"homestak"}, n.tags...) {
		if !slices.Contains(strings.Split(c["tags"], ";"), t) {
			w.violation('a', "%s (%d) has tags %q, without %s", n.addr(), g.VMID, c["tags"], t)
		}
	}
}

// volumes looks for disks that belong to no guest.
func (w *world) volumes(snap pve.Snapshot, stand reasons) {
	used := map[string]bool{}
	// Decision 6: where no machine has or had user_data, seeds are not listed.
	looked := slices.ContainsFunc(w.site().nodes, func(n *node) bool { return n.seeded != 0 })
	for _, g := range snap.Guests {
		for _, conf := range []map[string]string{g.Config, g.Pending} {
			for _, v := range conf {
				head, _, _ := strings.Cut(v, ",")
				used[strings.TrimPrefix(head, "file=")] = true
			}
		}
		if len(g.Snapshots) > 0 {
			for _, list := range snap.Volumes {
				for _, v := range list {
					used[v.ID] = used[v.ID] || v.VMID == g.VMID // named in a section of the file that is not shown
				}
			}
		}
	}
	for _, list := range snap.Volumes {
		for _, v := range list {
			seed := seedPath.FindStringSubmatch(v.ID)
			if seed != nil && !used[v.ID] && looked && v.Size > 64<<10 && len(stand["vm."+seed[1]]) == 0 { // one that may not be deleted is emptied; where the making waits, so does the seed
				w.violation('c', "seed image %s is in no drive", v.ID)
			}
			if v.VMID != 0 && (v.Content == "images" || v.Content == "rootdir") && !used[v.ID] && !w.crashed[v.VMID] {
				w.violation('c', "volume %s belongs to no guest", v.ID)
			}
		}
	}
}

// mark is an ownership tag, read by rules of this package's own.
type mark struct {
	Site     string            `json:"site"`
	Type     string            `json:"type"`
	Node     string            `json:"node"`
	Owner    string            `json:"owner"`
	UUID     string            `json:"uuid"`
	MAC      string            `json:"mac"`
	Removes  []string          `json:"removes"`
	Detached map[string]string `json:"detached"`
	Seed     struct {
		Volume string `json:"volume"`
	} `json:"seed"`
	VMID    int    `json:"vmid"`
	Born    int    `json:"born"`
	From    string `json:"from"`
	Destroy struct {
		Policy string `json:"policy"`
	} `json:"destroy"`
	Needs []string          `json:"-"`
	Slots map[string]string `json:"slots"`
}

func (m mark) addr() string { return m.Type + "." + m.Node }

// markOf reads the mark of a guest; found is true for the copy of one, too.
func markOf(g pve.Guest) (m mark, found bool) {
	for line := range strings.Lines(g.Config["description"]) {
		if doc, ok := strings.CutPrefix(line, "homestak-gitops: "); ok {
			m = mark{}
			found = json.Unmarshal([]byte(doc), &m) == nil && m.Site == "home" && m.Owner == "father"
		}
	}
	return m, found
}

// owned returns the address of a guest, and reports whether its tag and identity are valid.
func owned(g pve.Guest) (string, bool) {
	m, found := markOf(g)
	if !found || (m.Type == "ct") != (g.Kind == "lxc") {
		return "", false
	}
	if m.UUID == "" && m.MAC == "" {
		return m.addr(), m.VMID == g.VMID
	}
	if m.Type == "ct" {
		return m.addr(), slices.Contains(cardsOf(g), strings.ToUpper(m.MAC))
	}
	return m.addr(), strings.Contains(strings.ToLower(g.Config["smbios1"]), "uuid="+strings.ToLower(m.UUID))
}

// signed reports whether the tag of a guest that is ours is signed for it. That of one that was restored under another VMID is
// not: it is left as it is, also when the other one is removed.
func signed(g pve.Guest) bool {
	m, _ := markOf(g)
	return m.Born == 0 || m.Born == g.VMID
}

var hwaddr = regexp.MustCompile(`hwaddr=([0-9A-Fa-f:]{17})`)

// cardsOf are the addresses of a container's cards, with what waits for a restart.
func cardsOf(g pve.Guest) []string {
	var out []string
	for key, val := range next(g) {
		if m := hwaddr.FindStringSubmatch(val); m != nil && strings.HasPrefix(key, "net") {
			out = append(out, strings.ToUpper(m[1]))
		}
	}
	return out
}

// next is the configuration of a guest with what waits for a restart counted in.
func next(g pve.Guest) map[string]string {
	c := maps.Clone(g.Config)
	maps.Copy(c, g.Pending)
	for key := range strings.SplitSeq(g.Pending["delete"], ",") {
		delete(c, strings.TrimPrefix(key, "!"))
	}
	delete(c, "delete")
	return c
}

// sized is the value of a disk with the size that it has. A change that waits for a
// restart goes on telling the one of when it was made.
func sized(g pve.Guest, slot string) string {
	is, will := g.Config[slot], next(g)[slot]
	now, _, _ := strings.Cut(is, ",")
	if then, _, _ := strings.Cut(will, ","); then == now {
		return is
	}
	return will
}

// kin reports whether two sights of a VMID are of the same guest.
func kin(a, b pve.Guest) bool {
	if a.Kind == "lxc" && b.Kind == "lxc" {
		ma, _ := markOf(a)
		mb, _ := markOf(b)
		return ma.MAC != "" && ma.MAC == mb.MAC || slices.ContainsFunc(cardsOf(a), func(mac string) bool { return slices.Contains(cardsOf(b), mac) })
	}
	return a.Kind == b.Kind && a.Config["smbios1"] == b.Config["smbios1"]
}

// managed returns the guests with a valid tag, by address.
func managed(s pve.Snapshot) map[string][]pve.Guest {
	out := map[string][]pve.Guest{}
	for _, g := range s.Guests {
		if addr, ok := owned(g); ok {
			out[addr] = append(out[addr], g)
		}
	}
	return out
}

// A reason is why something is left as it is, told from site and host alone, without
// the program that is tested. What the program says must be of that reason.
type reason string

const (
	claimed   reason = "an unmanaged guest or object may be it"
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
	unseen    reason = "it has no tag any more, and is outside of all ranges"
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
		unseen:  regexp.MustCompile(`$^`), // such a guest is not found, so there is no finding (decision 5)
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

// standing returns which obstacles each address has.
func (w *world) standing(snap pve.Snapshot) reasons {
	out, site, have := reasons{}, w.site(), managed(snap)
	for _, n := range site.nodes {
		addr := n.addr()
		switch list := have[addr]; len(list) {
		case 0:
			w.absent(out, n, snap)
		case 1:
			w.present(out, n, list[0], snap)
		default:
			out.add(addr, twins)
			for _, g := range list {
				if signed(g) { // and so it is the one that is converged
					w.present(out, n, g, snap)
				}
			}
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
		_, proven := owned(g)
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
	addr, proven := owned(g)
	site, kept := w.site(), reasons{}
	if proven && site.find(addr) == nil {
		leaving(kept, addr, g)
		if len(managed(snap)[addr]) > 1 {
			kept.add(addr, twins)
		}
		for other, list := range managed(snap) {
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
		for _, list := range managed(snap) {
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
	for name, storage := range at { // PVE takes none away from its snapshots; the root of a copy may be elsewhere
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
		for addr, list := range managed(snap) {
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

// quiet makes passes until nothing is left to do but what is kept for a reason.
func (w *world) quiet() {
	var left []string
	for range 12 {
		ctx, cancel := context.WithTimeout(w.ctx, 3*time.Hour)
		_, err := w.agent.Reconcile(ctx)
		cancel()
		if err != nil {
			w.violation('a', "the agent does not answer: %v", err)
			return
		}
		w.idle()
		w.live(11 * time.Second) // what the host shows is as old as that, and the HA manager looks as often
		w.rest()
		if w.granted() {
			continue
		}
		if left = w.look(); len(left) == 0 {
			break
		}
	}
	if len(left) == 0 && len(w.standing(w.sim.Snapshot())) == 0 {
		w.unsettled = false
	}
	for _, l := range left {
		w.violation('a', "%s", l)
	}
	if len(left) > 0 {
		w.logf("the agent says: %s: %v", w.agent.Status().Summary, w.agent.Status().Last.Findings)
	}
	if w.meddle != nil {
		w.meddle(w)
	}
	snap := w.sim.Snapshot()
	w.laws(snap)
	status, err := json.Marshal(w.agent.Status())
	require.NoError(w.t, err)
	w.secret("the status", string(status))
	if len(snap.Unimplemented) > 0 {
		w.violation('x', "the simulator does not know %v", snap.Unimplemented)
	}
}

// rest waits until nothing works on the host any more: a guest that its manager is
// starting counts as started to the program.
func (w *world) rest() {
	for range 600 {
		if !slices.ContainsFunc(w.sim.Snapshot().Tasks, func(t pve.Task) bool { return t.End.IsZero() }) {
			return
		}
		w.live(time.Second)
	}
	w.violation('a', "the host works for ten minutes after the agent had nothing to do")
}

var overCap = regexp.MustCompile(`^the plan removes \d+ of \d+ owned guests, at most \d+ in one pass$`)

// granted is people applying by hand, as the program tells them to, what it refused
// because more guests would go than one pass may take and trailers count for nothing
// (decision 11): no commit is known that the host converged to. Otherwise the trailers
// of these commits allow whatever they remove, and a refusal is wrong.
func (w *world) granted() bool {
	way := false
	said := w.agent.Status().Last.Findings
	if refused := w.agent.Status().Refused; refused != nil {
		said = append(said, refused.Findings...)
	}
	for _, f := range said {
		way = way || f.Severity == diag.Error && overCap.MatchString(f.Summary) && strings.Contains(f.Detail, "apply --allow-deletes")
	}
	if !way || !w.unsettled {
		return false
	}
	w.cancel() // as the command line does, which asks the agent to hold still
	require.ErrorIs(w.t, <-w.ended, context.Canceled)
	w.logf("by hand: apply --allow-deletes 50")
	w.wire.mu.Lock()
	through := agentWire{w.wire, w.wire.life}
	w.wire.mu.Unlock()
	p := w.byCommand("apply", through)
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
	r := p.Run(w.ctx)
	w.logf("  it ends: %s, %v", r.Outcome, r.Err)
	w.start()
	return true
}

// byCommand is a pass of the command line with the newest commit.
func (w *world) byCommand(verb string, way http.RoundTripper) *engine.Pass {
	return &engine.Pass{
		Verb: verb, Host: "father", Grants: engine.Grants{AllowDeletes: 50}, Memory: engine.Memory{Children: w.children()},
		Load: func(ctx context.Context) engine.Desired {
			c, err := w.repo.Head(ctx)
			require.NoError(w.t, err)
			return w.load(w.reader, c)
		},
		Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: "home", Owner: "father", Keys: w.keys, Transport: way, Concurrency: atOnce})
		},
	}
}

// look plans once more, as `plan` does, and tells what is left that has no reason.
func (w *world) look() []string {
	r := w.byCommand("plan", w.sim).Run(w.ctx)
	if r.Plan == nil {
		return []string{fmt.Sprintf("no plan: %s, %v, %v", r.Outcome, r.Err, r.Findings)}
	}
	var text bytes.Buffer
	r.Plan.Text(&text, plan.TextOptions{})
	doc, err := json.Marshal(r.Plan)
	require.NoError(w.t, err)
	report, err := json.Marshal(r)
	require.NoError(w.t, err)
	for where, said := range map[string]string{"the plan": text.String(), "the plan's JSON": string(doc), "the report": string(report), "the findings": fmt.Sprint(r.Findings)} {
		w.secret(where, said)
	}
	return unexplained(r, w.standing(w.sim.Snapshot()))
}

// unexplained is what of a plan is left without a reason.
func unexplained(r engine.Report, stand reasons) []string {
	var out []string
	for _, s := range r.Plan.Steps {
		if len(stand[s.Address.String()]) == 0 {
			out = append(out, fmt.Sprintf("left to do: %s %s: %s", s.Action, s.Address, s.Reason))
		}
	}
	for _, u := range r.Plan.Unknown {
		out = append(out, fmt.Sprintf("not known: %s: %s", u.Scope, u.Why))
	}
	texts := says()
	for _, f := range r.Findings {
		if f.Severity != diag.Error {
			continue
		}
		if !slices.ContainsFunc(stand[f.Address], func(why reason) bool { return texts[why].MatchString(f.Summary) }) {
			out = append(out, fmt.Sprintf("finding without a reason that is known (%v): %s", stand[f.Address], f))
		}
	}
	return out
}

// TestEveryLawCanTrip breaks each law on purpose, and sees that it is noticed: what
// finds nothing in ten thousand schedules must be able to find something.
func TestEveryLawCanTrip(t *testing.T) {
	for name, c := range map[string]struct {
		law    string
		meddle func(w *world, one pve.Guest)
	}{
		"a guest is not as the files say": {"law a", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "cores", "77") })
		}},
		"a guest is missing": {"law a", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Delete(g.VMID) })
		}},
		"a guest is made twice": {"law b", func(w *world, g pve.Guest) {
			g.VMID, g.Running = 40000, false
			w.sim.Edit(func(e *pve.Edit) { e.Add(g) })
		}},
		"a guest is left behind": {"law c", func(w *world, g pve.Guest) {
			born := fmt.Sprintf(`"born":%d`, g.VMID)
			g.VMID, g.Running = 40000, false
			g.Config["description"] = strings.NewReplacer(`"node":"`, `"node":"gone-`, born, `"born":40000`).Replace(g.Config["description"])
			delete(g.Config, "protection")
			w.sim.Edit(func(e *pve.Edit) { e.Add(g) })
		}},
		"a volume is left behind": {"law c", func(w *world, _ pve.Guest) {
			w.root(http.MethodPost, "/nodes/father/storage/"+w.site().storage+"/content", "vmid", "40000", "filename", "vm-40000-disk-0", "size", "1G")
		}},
		"a foreign guest is edited": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(9001, "cores", "3") })
		}},
		"a foreign guest is started": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Start(9001) })
		}},
		"a foreign guest is gone": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Delete(9001) })
		}},
		"a write to a foreign guest": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/nodes/father/qemu/9001/status/start", "{}")
		}},
		"a disk of a foreign guest": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPut, "/nodes/father/qemu/9001/resize", `{"disk":"scsi0","size":"+1G"}`)
		}},
		"a token in the log": {"law e", func(w *world, _ pve.Guest) {
			_, _ = fmt.Fprintln(w.log, "asked with", w.sim.Token())
		}},
		"a password in a mark": {"law e", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "description", password+"\n"+g.Config["description"]) })
		}},
		"a parameter that PVE does not know": {"law f", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/pools", `{"poolid":"beside","colour":"red"}`)
		}},
		"a write without digest": {"law g", func(w *world, g pve.Guest) {
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/config", g.Node, g.Kind, g.VMID), `{"onboot":true}`)
		}},
		"a disk grows without digest": {"law g", func(w *world, g pve.Guest) {
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/resize", g.Node, g.Kind, g.VMID), `{"disk":"net0","size":"+1G"}`)
		}},
		"a secret in a request": {"law e", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/pools", `{"poolid":"beside","comment":"`+password+`"}`)
		}},
		"a seed is left behind": {"law c", func(w *world, _ pve.Guest) {
			w.root(http.MethodPost, "/nodes/father/storage/local/download-url", "content", "iso", "url", "http://images.example/seed.iso",
				"filename", "homestak-seed.home.gone.0123456789ab.01234567-89ab-cdef-0123-456789abcdef.iso")
		}},
		"a guest goes without its backup": {"law i", func(w *world, g pve.Guest) {
			w.demand(g, "requires_final_backup")
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
		"a guest goes that is in use": {"law i", func(w *world, g pve.Guest) {
			w.demand(g, "requires_migration_first")
			w.sim.Edit(func(e *pve.Edit) { e.Start(g.VMID) })
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
		"a foreign guest is backed up": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/nodes/father/vzdump", `{"vmid":"9001","storage":"local"}`)
		}},
		"a write without quorum": {"law h", func(w *world, g pve.Guest) {
			w.lost = true
			w.agentSends(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/status/start", g.Node, g.Kind, g.VMID), `{}`)
			w.lost = false
		}},
		"a write to a node that is dark": {"law h", func(w *world, g pve.Guest) {
			w.dark = g.Node
			w.agentSends(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/status/start", g.Node, g.Kind, g.VMID), `{}`)
			w.dark = ""
		}},
		"a guest that is in the dark is made again": {"law h", func(w *world, g pve.Guest) {
			w.dark, w.darkened = "elsewhere", map[string]bool{g.Name(): true}
			w.agentSends(http.MethodPost, "/nodes/father/qemu", `{"vmid":40000,"description":"x \"node\":\"`+g.Name()+`\""}`)
			w.dark = ""
		}},
		"protection is taken off": {"law i", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "protection", "1") })
			for _, n := range w.site().nodes {
				n.guarded = true
			}
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/config", g.Node, g.Kind, g.VMID), `{"protection":false,"digest":"0000000000000000000000000000000000000000"}`)
		}},
		"a protected guest is destroyed": {"law i", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "protection", "1") })
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := run(t, 7, nil, func(w *world) {
				for _, addr := range slices.Sorted(maps.Keys(managed(w.sim.Snapshot()))) {
					if g := managed(w.sim.Snapshot())[addr][0]; len(w.standing(w.sim.Snapshot())[addr]) == 0 {
						c.meddle(w, g)
						return
					}
				}
			})
			require.Condition(t, func() bool {
				return slices.ContainsFunc(w.violations, func(v string) bool { return strings.HasPrefix(v, c.law) })
			}, "violations: %v", w.violations)
		})
	}
}

// demand writes a decommission policy into the mark of a guest.
func (w *world) demand(g pve.Guest, policy string) {
	notes := regexp.MustCompile(`"destroy":\{[^}]*\},`).ReplaceAllString(g.Config["description"], "")
	notes = strings.Replace(notes, `"node":`, `"destroy":{"policy":"`+policy+`"},"node":`, 1)
	w.sim.Edit(func(e *pve.Edit) {
		e.Set(g.VMID, "description", notes)
		e.Set(g.VMID, "protection", "")
	})
	clear(w.young)
}

// agentSends sends a request as the agent would.
func (w *world) agentSends(method, path, body string) {
	r, err := http.NewRequestWithContext(w.ctx, method, "https://192.0.2.10:8006/api2/json"+path, strings.NewReader(body))
	require.NoError(w.t, err)
	if body == "" {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "PVEAPIToken="+w.sim.Token())
	res, err := agentWire{w.wire, w.wire.life}.RoundTrip(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// TestAWireThatOrdersTwice is a program that is wrong: each guest it orders is ordered
// once more, under another VMID. Schedules must find it without being told where.
func TestAWireThatOrdersTwice(t *testing.T) {
	w := run(t, 3, nil, func(w *world) { w.wire.twice.Store(true) })
	for seed := uint64(4); seed < 12 && !w.broken(); seed++ {
		w = run(t, seed, nil, func(w *world) { w.wire.twice.Store(true) })
	}
	require.True(t, w.broken())
	require.Condition(t, func() bool {
		return slices.ContainsFunc(w.violations, func(v string) bool { return strings.HasPrefix(v, "law a") || strings.HasPrefix(v, "law b") })
	}, "violations: %v", w.violations)
}
