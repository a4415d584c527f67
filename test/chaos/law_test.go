package chaos_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// mark is an owner mark, read by rules of this package's own.
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
	From    string `json:"from"`
	Destroy struct {
		Policy string `json:"policy"`
	} `json:"destroy"`
	Needs []string          `json:"-"`
	Slots map[string]string `json:"slots"`
}

func (m mark) addr() string { return m.Type + "." + m.Node }

// markOf reads the mark of a guest; found is true for the copy of one, too.
func markOf(g pvesim.Guest) (m mark, found bool) {
	for line := range strings.Lines(g.Config["description"]) {
		if doc, ok := strings.CutPrefix(line, "homestak-gitops: "); ok {
			m = mark{}
			found = json.Unmarshal([]byte(doc), &m) == nil && m.Site == "home" && m.Owner == "father"
		}
	}
	return m, found
}

// proves reports whether a guest is ours by mark and identity.
func proves(g pvesim.Guest) (string, bool) {
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

var hwaddr = regexp.MustCompile(`hwaddr=([0-9A-Fa-f:]{17})`)

// cardsOf are the addresses of a container's cards, with what waits for a restart.
func cardsOf(g pvesim.Guest) []string {
	var out []string
	for key, val := range next(g) {
		if m := hwaddr.FindStringSubmatch(val); m != nil && strings.HasPrefix(key, "net") {
			out = append(out, strings.ToUpper(m[1]))
		}
	}
	return out
}

// next is the configuration of a guest with what waits for a restart counted in.
func next(g pvesim.Guest) map[string]string {
	c := maps.Clone(g.Config)
	maps.Copy(c, g.Pending)
	for key := range strings.SplitSeq(g.Pending["delete"], ",") {
		delete(c, strings.TrimPrefix(key, "!"))
	}
	delete(c, "delete")
	return c
}

// kin reports whether two sights of a VMID are of the same guest.
func kin(a, b pvesim.Guest) bool {
	if a.Kind == "lxc" && b.Kind == "lxc" {
		ma, _ := markOf(a)
		mb, _ := markOf(b)
		return ma.MAC != "" && ma.MAC == mb.MAC || slices.ContainsFunc(cardsOf(a), func(mac string) bool { return slices.Contains(cardsOf(b), mac) })
	}
	return a.Kind == b.Kind && a.Config["smbios1"] == b.Config["smbios1"]
}

// ours are the guests that prove to be ours, by address.
func ours(s pvesim.Snapshot) map[string][]pvesim.Guest {
	out := map[string][]pvesim.Guest{}
	for _, g := range s.Guests {
		if addr, ok := proves(g); ok {
			out[addr] = append(out[addr], g)
		}
	}
	return out
}

var guestPath = regexp.MustCompile(`^/nodes/([^/]+)/(qemu|lxc)/(\d+)(/.*)?$`)

// mayWrite holds a write of the agent against what holds at any moment: it is to
// something of ours, with the digest, where the host can be seen, and goes around
// no protection.
func (w *world) mayWrite(method, path string, in map[string]string) {
	what := method + " " + path
	if in["skiplock"] != "" {
		w.violation('i', "%s goes around a lock", what)
	}
	w.mu.Lock()
	lost, dark, at := w.lost, w.dark, w.darkened
	w.mu.Unlock()
	if lost && !w.wire.sightless() {
		w.violation('h', "%s without quorum", what)
	}
	if dark != "" && strings.HasPrefix(path, "/nodes/"+dark+"/") {
		w.violation('h', "%s on a node that is offline", what)
	}
	m := guestPath.FindStringSubmatch(path)
	if m == nil {
		if method == http.MethodPost && (strings.HasSuffix(path, "/qemu") || strings.HasSuffix(path, "/lxc")) {
			if _, n, ok := strings.Cut(in["description"], `"node":"`); ok && at[strings.SplitN(n, `"`, 2)[0]] {
				w.violation('h', "%s makes again what is on the node that is offline", what)
			}
			w.ordered(in["vmid"])
		}
		if strings.HasSuffix(path, "/vzdump") {
			w.mayBackUp(what, in)
			return
		}
		if t := taskPath.FindStringSubmatch(path); t != nil && method == http.MethodDelete {
			id, _ := strconv.Atoi(t[1])
			g, there := w.sim.Snapshot().Guest(id)
			if _, proven := proves(g); there && !proven || t[2] != "root@pam%21sim" {
				w.violation('d', "%s ends a task that is not ours, or not on ours", what)
			}
			return
		}
		if h := haPath.FindStringSubmatch(path); h != nil && method == http.MethodDelete {
			id, _ := strconv.Atoi(h[1])
			g, there := w.sim.Snapshot().Guest(id)
			if _, proven := proves(g); there && !proven {
				w.violation('d', "%s is to a guest that is not provably ours", what)
			}
			return
		}
		if !plainWrite.MatchString(path) {
			w.violation('d', "%s is to nothing of ours", what)
		}
		return
	}
	snap := w.sim.Snapshot()
	id, _ := strconv.Atoi(m[3])
	g, there := snap.Guest(id)
	if !there || g.Node != m[1] { // it went; nothing can happen to it
		return
	}
	if m[4] == "/clone" {
		if !slices.Contains(w.site().templates, id) {
			w.violation('d', "%s copies what is no template of the site", what)
		}
		w.ordered(in["newid"])
		return
	}
	addr, proven := proves(g)
	if !proven {
		w.violation('d', "%s (%s) is to a guest that is not provably ours", what, g.Name())
	} else if len(ours(snap)[addr]) > 1 {
		w.violation('d', "%s is to one of several with the identity of %s", what, addr)
	}
	if method != http.MethodGet && digested[m[4]] && in["digest"] == "" {
		w.violation('g', "%s carries no digest", what)
	}
	w.mayLeave(what, method, m[4], addr, g, snap)
	w.mayUnprotect(what, method, m[4], addr, g, in)
}

// digested are the writes to a guest for which PVE takes a digest.
var digested = map[string]bool{"/config": true, "/resize": true, "/move_disk": true, "/move_volume": true}

var seedPath = regexp.MustCompile(`:iso/homestak-seed\.home\.([^.]+)\.`)

var haPath = regexp.MustCompile(`^/cluster/ha/resources/(?:vm|ct)(?::|%3A)(\d+)$`)

// taskPath is one task of a guest, with its user.
var taskPath = regexp.MustCompile(`^/nodes/[^/]+/tasks/UPID:(?:[^:]*:){5}(\d+):([^:]+):$`)

// mayBackUp: only what is ours is read out.
func (w *world) mayBackUp(what string, in map[string]string) {
	id, _ := strconv.Atoi(in["vmid"])
	g, there := w.sim.Snapshot().Guest(id)
	if _, proven := proves(g); there && !proven {
		w.violation('d', "%s of guest %d, which is not provably ours", what, id)
	}
}

// ordered notes the VMID of a guest that is about to be made.
func (w *world) ordered(vmid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, _ := strconv.Atoi(vmid)
	w.young[id] = true
}

// mayLeave: a guest goes as its mark demands. What was made in this round may be taken
// back by a rollback, for which no policy is meant.
func (w *world) mayLeave(what, method, rest, addr string, g pvesim.Guest, snap pvesim.Snapshot) {
	mk, _ := markOf(g)
	w.mu.Lock()
	young := w.young[g.VMID]
	w.mu.Unlock()
	going := method == http.MethodDelete && rest == ""
	if young {
		return
	}
	switch mk.Destroy.Policy {
	case "requires_final_backup":
		if going && !backedUp(g, mk, snap) {
			w.violation('i', "%s, whose decommission policy is %s, and there is no backup of it", what, mk.Destroy.Policy)
		}
	case "requires_migration_first":
		stops := method == http.MethodPost && (rest == "/status/shutdown" || rest == "/status/stop")
		wanted := slices.ContainsFunc(w.lately(), func(s *site) bool { return s.find(addr) != nil })
		if g.Running && (going || stops && !wanted) {
			w.violation('i', "%s, which runs, and whose decommission policy is %s", what, mk.Destroy.Policy)
		}
	}
}

// backedUp reports whether there is a whole backup of the guest that stands there now.
func backedUp(g pvesim.Guest, m mark, snap pvesim.Snapshot) bool {
	for _, list := range snap.Volumes {
		for _, v := range list {
			if v.Content == "backup" && v.VMID == g.VMID && v.Size > 0 && v.Protected && strings.Contains(v.Notes, m.addr()) && strings.Contains(v.Notes, m.UUID) {
				return !g.Running
			}
		}
	}
	return false
}

// plainWrite is a write that is to no guest that exists.
var plainWrite = regexp.MustCompile(`^(/nodes/[^/]+/(qemu|lxc)|/pools(/prod|/beside)?|/nodes/[^/]+/storage/[^/]+/(download-url|upload|content/[^/]*(homestak\.home|homestak-seed\.home)\.[^/]+))$`)

// mayUnprotect: a protected guest stays, and its protection goes only by the files.
func (w *world) mayUnprotect(what, method, rest, addr string, g pvesim.Guest, in map[string]string) {
	if g.Config["protection"] != "1" {
		return
	}
	if method == http.MethodDelete && rest == "" {
		w.violation('i', "%s of a guest that is protected", what)
	}
	_, set := in["protection"]
	off := set && in["protection"] != "1" && in["protection"] != "true" || slices.Contains(strings.Split(in["delete"], ","), "protection")
	if !off {
		return
	}
	for _, s := range w.lately() {
		if n := s.find(addr); n != nil && !n.guarded {
			return
		}
	}
	w.violation('i', "%s takes protection off a guest that the files protect, or do not have", what)
}

// laws holds the host against what must be true when all is quiet.
func (w *world) laws(snap pvesim.Snapshot) {
	site, stand := w.site(), w.standing(snap)
	for addr, list := range ours(snap) {
		made := slices.DeleteFunc(slices.Clone(list), func(g pvesim.Guest) bool { return w.byHand[g.VMID] })
		if len(made) > 1 {
			w.violation('b', "%d guests are %s: %v", len(made), addr, vmids(made))
		}
		if site.find(addr) == nil && len(stand[addr]) == 0 {
			w.violation('c', "%s (%v) is ours, and the site does not have it", addr, vmids(list))
		}
	}
	for _, n := range site.nodes {
		if len(stand[n.addr()]) == 0 {
			w.as(n, ours(snap)[n.addr()])
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

func vmids(list []pvesim.Guest) []int {
	var out []int
	for _, g := range list {
		out = append(out, g.VMID)
	}
	return out
}

func disksOf(snap pvesim.Snapshot, vmid int) string {
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
func (w *world) as(n *node, list []pvesim.Guest) {
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
		if drive := c[slot]; !strings.Contains(drive, fmt.Sprintf("size=%dG", d.size)) {
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
func (w *world) volumes(snap pvesim.Snapshot, stand reasons) {
	used := map[string]bool{}
	// Decision 15: where no machine has or had words of its own nobody looks for seeds.
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
