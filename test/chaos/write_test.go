package chaos_test

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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
	asks := strings.HasSuffix(path, "/agent/ping") // a POST that writes nothing
	if lost && !asks && !w.wire.sightless() {
		w.violation('h', "%s without quorum", what)
	}
	if dark != "" && !asks && strings.HasPrefix(path, "/nodes/"+dark+"/") {
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
	} else if mark, _ := markOf(g); len(ours(snap)[addr]) > 1 && mark.Born != g.VMID { // its tag is signed for another VMID
		w.violation('d', "%s is to a copy with the identity of %s", what, addr)
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
func (w *world) mayLeave(what, method, rest, addr string, g pve.Guest, snap pve.Snapshot) {
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
func backedUp(g pve.Guest, m mark, snap pve.Snapshot) bool {
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
func (w *world) mayUnprotect(what, method, rest, addr string, g pve.Guest, in map[string]string) {
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
