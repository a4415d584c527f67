package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The HA manager: who manages a guest decides whether it runs. A call that starts
// or stops a managed guest files a request only, in a task that ends at once; the
// manager looks at its resources every ten seconds and acts then. A guest that was
// ended otherwise is started again.

// haCycle is how long the manager takes to notice something, haFence how long a
// node must be gone until its guests are recovered elsewhere.
const (
	haCycle = 10 * time.Second
	haFence = 2 * time.Minute
)

// haManager is resources.cfg, groups.cfg, rules.cfg and the manager's own status.
type haManager struct {
	w         *world
	resources map[string]*haResource // By sid.
	groups    map[string]config      // Until PVE 8.
	rules     map[string]config      // Since PVE 9.
	alone     bool                   // No manager runs: nobody acts on what is written.
}

// haResource is one managed guest.
type haResource struct {
	sid    string // vm:100 or ct:100.
	vmid   int
	opts   config    // As written: state, comment, group, max_restart, …
	crm    string    // What the manager thinks of it: queued, started, stopped, …
	target string    // Where it has to go, if anywhere.
	away   time.Time // Since when its node is gone.
	tries  int       // Starts without success.
	due    bool      // An event is planned.
}

// beginHA gives a host its manager.
func beginHA(w *world) {
	w.ha = &haManager{w: w, alone: w.cfg.NoManager, resources: map[string]*haResource{}, groups: map[string]config{}, rules: map[string]config{}}
}

// state is what the resource shall be; enabled is another word for started.
func (r *haResource) state() string {
	switch state := r.opts["state"]; state {
	case "", "enabled":
		return "started"
	default:
		return state
	}
}

func haSID(g *guest) string {
	if g.kind == "lxc" {
		return fmt.Sprintf("ct:%d", g.vmid)
	}
	return fmt.Sprintf("vm:%d", g.vmid)
}

// managerOf is the manager with all that the API shows of it.
func managerOf(w *world) *haManager { return w.ha.(*haManager) }

// of is the resource of a guest; nil if it has none.
func (h *haManager) of(g *guest) *haResource { return h.resources[haSID(g)] }

// state is what a guest shall be; empty if it is no resource.
func (h *haManager) state(g *guest) string {
	if r := h.of(g); r != nil {
		return r.state()
	}
	return ""
}

// shown is the state of a guest in the list of resources.
func (h *haManager) shown(g *guest) string {
	switch r := h.of(g); {
	case r == nil:
		return ""
	case h.alone:
		return r.opts["state"]
	default:
		return r.crm
	}
}

// managed says whether the manager decides about a guest.
func (h *haManager) managed(g *guest) bool {
	r := h.of(g)
	return r != nil && r.state() != "ignored"
}

// status is the member ha of status/current.
func (h *haManager) status(g *guest) map[string]any {
	r := h.of(g)
	if r == nil || r.state() == "ignored" {
		return map[string]any{"managed": 0}
	}
	entry := map[string]any{"managed": 1, "state": nil, "group": nil}
	if !h.alone {
		entry["state"] = r.crm
	}
	if group := r.opts["group"]; group != "" {
		entry["group"] = group
	}
	return entry
}

// request files a request and answers with the task that did so.
func (h *haManager) request(c *call, g *guest, state string) string {
	kind, what := "hastart", "start"
	if state != "started" {
		kind, what = "hastop", "stop"
	}
	return h.w.fork(c, g.node, job{kind: kind, id: fmt.Sprint(g.vmid), end: func(t *task) error {
		r := h.of(g)
		if r == nil {
			return fail("no such resource '%s'", haSID(g))
		}
		t.logf("Requesting HA %s for %s %d", what, g.title(), g.vmid)
		r.opts["state"], r.tries = state, 0
		h.notice(g)
		return nil
	}})
}

// move files the request to move a guest.
func (h *haManager) move(c *call, g *guest, target string) string {
	return h.w.fork(c, g.node, job{kind: "hamigrate", id: fmt.Sprint(g.vmid), end: func(t *task) error {
		t.logf("Requesting HA migration for %s %d to node %s", g.title(), g.vmid, target)
		if r := h.of(g); r != nil {
			r.target = target
			h.notice(g)
		}
		return nil
	}})
}

// notice plans that the manager looks at a guest, if it is one of its own.
func (h *haManager) notice(g *guest) {
	w, r := h.w, h.of(g)
	if r == nil || r.due || h.alone {
		return
	}
	r.due = true
	w.at(w.now.Add(haCycle), func() {
		r.due = false
		if w.guests[g.vmid] == g && h.resources[r.sid] == r {
			w.haAct(r, g)
		}
	})
}

// haAct is one round of the manager for one resource.
func (w *world) haAct(r *haResource, g *guest) {
	if r.state() == "ignored" {
		r.crm = "ignored"
		return
	}
	if !w.quorum {
		return // Whoever gives the quorum back lets it look again.
	}
	if w.nodes[g.node].offline {
		w.haRecover(r, g)
		return
	}
	r.away = time.Time{}
	if r.target != "" {
		target := r.target
		r.target = ""
		if r.crm = "migrate"; target != g.node && w.nodes[target] != nil {
			w.forkAs(rootIdentity, g.node, w.migrateJob(w.rootCall(), g, migration{target: target, online: true, disks: true}))
		}
		w.ha.notice(g)
		return
	}
	switch {
	case r.state() == "started" && g.run == nil:
		w.haStart(r, g)
	case r.state() == "started":
		r.crm, r.tries = "started", 0
	case g.run != nil:
		r.crm = "request_stop"
		w.forkAs(rootIdentity, g.node, w.haStopJob(g))
		w.ha.notice(g)
	default:
		r.crm = "stopped"
	}
}

// haStart starts a guest, and gives up after its restarts.
func (w *world) haStart(r *haResource, g *guest) {
	most := 1
	if text, ok := r.opts["max_restart"]; ok {
		most = atoi(text)
	}
	if r.tries > most {
		r.crm = "error"
		return
	}
	r.tries++
	r.crm = "starting"
	c := w.rootCall()
	if g.kind == "lxc" {
		w.forkAs(rootIdentity, g.node, w.startCTJob(g, c))
	} else {
		w.forkAs(rootIdentity, g.node, w.startJob(g, c))
	}
	w.ha.notice(g)
}

func (w *world) haStopJob(g *guest) job {
	c := w.rootCall()
	if g.kind == "lxc" {
		return w.stopCTJob("vzshutdown", g, c)
	}
	return w.shutdownJob(g, c, true)
}

// haRecover waits until a node has surely been fenced, then takes its guest over.
func (w *world) haRecover(r *haResource, g *guest) {
	switch {
	case r.away.IsZero():
		r.away, r.crm = w.now, "fence"
	case w.now.Sub(r.away) >= haFence:
		for _, name := range w.haNodes(r) {
			if name == g.node || w.nodes[name].offline {
				continue
			}
			g.node, g.run, r.away, r.crm = name, nil, time.Time{}, "recovery"
			delete(g.conf, "lock")
			w.write(g)
			break
		}
	}
	w.ha.notice(g)
}

// haNodes are the nodes that a resource may run on: those of its group or of a
// strict rule, else all.
func (w *world) haNodes(r *haResource) []string {
	if group := managerOf(w).groups[r.opts["group"]]; group["restricted"] == "1" {
		return rankedNodes(group["nodes"])
	}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).rules)) {
		rule := managerOf(w).rules[name]
		if rule["type"] == "node-affinity" && rule["strict"] == "1" && rule["disable"] != "1" && slices.Contains(splitList(rule["resources"]), r.sid) {
			return rankedNodes(rule["nodes"])
		}
	}
	return w.nodeNames()
}

// rankedNodes reads a list of nodes with priorities, "a:2,b": higher ones first.
func rankedNodes(list string) []string {
	names := []string{}
	rank := map[string]int{}
	for _, entry := range splitList(list) {
		name, priority, _ := strings.Cut(entry, ":")
		names = append(names, name)
		rank[name] = atoi(priority)
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank[b] - rank[a] })
	return names
}

// manage puts a guest under the manager, as ha-managed at its creation asks.
func (h *haManager) manage(g *guest, state string) {
	r := &haResource{sid: haSID(g), vmid: g.vmid, opts: config{"state": state}, crm: "queued"}
	h.resources[r.sid] = r
	h.notice(g)
}

// forget takes a guest from the manager.
func (h *haManager) forget(g *guest) { delete(h.resources, haSID(g)) }
