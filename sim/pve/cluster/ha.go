package cluster

// The HA manager decides whether a managed guest runs. A call that starts or stops such a
// guest only files a request, and the manager acts every ten seconds.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/lxc"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
	"github.com/homestak/homestak-gitops/sim/pve/transfer"
)

// haArea is the HA manager.
func haArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/ha/status/current":            apiHAStatus,
			"GET /cluster/ha/resources":                 apiHAResources,
			"POST /cluster/ha/resources":                apiCreateHAResource,
			"GET /cluster/ha/resources/{sid}":           core.On(resource, apiHAResource),
			"PUT /cluster/ha/resources/{sid}":           apiUpdateHAResource,
			"DELETE /cluster/ha/resources/{sid}":        apiDeleteHAResource,
			"POST /cluster/ha/resources/{sid}/migrate":  core.On(resource, apiMoveHAResource),
			"POST /cluster/ha/resources/{sid}/relocate": core.On(resource, apiMoveHAResource),
			"GET /cluster/ha/groups":                    apiHAGroups,
			"POST /cluster/ha/groups":                   core.On(haGroup("create"), apiCreateHAGroup),
			"GET /cluster/ha/groups/{group}":            core.On(haGroup("read"), apiHAGroup),
			"PUT /cluster/ha/groups/{group}":            core.On(haGroup("update"), apiUpdateHAGroup),
			"DELETE /cluster/ha/groups/{group}":         core.On(haGroup("delete"), apiDeleteHAGroup),
			"GET /cluster/ha/rules":                     apiHARules,
			"POST /cluster/ha/rules":                    apiCreateHARule,
			"GET /cluster/ha/rules/{rule}":              core.On(haRule, apiHARule),
			"PUT /cluster/ha/rules/{rule}":              core.On(haRule, apiUpdateHARule),
			"DELETE /cluster/ha/rules/{rule}":           core.On(haRule, apiDeleteHARule),
			"GET /cluster/ha/status/manager_status":     apiHAManager,
		},
		Begin: beginHA,
	}
}

// The HA manager: who manages a guest decides whether it runs. A call that starts
// or stops a managed guest files a request only, in a task that ends at once; the
// manager checks its resources every ten seconds and acts then. A guest that was
// ended otherwise is started again.

// haCycle is the time that the manager takes to notice something, haFence the time
// that a node must be gone until its guests are recovered elsewhere.
const (
	haCycle = 10 * time.Second
	haFence = 2 * time.Minute
)

// haManager is resources.cfg, groups.cfg, rules.cfg and the manager's own status.
type haManager struct {
	w         *core.World
	resources map[string]*haResource // By sid.
	groups    map[string]perl.Config // Until PVE 8.
	rules     map[string]perl.Config // Since PVE 9.
	alone     bool                   // No manager runs: requests stay unprocessed.
}

// haResource is one managed guest.
type haResource struct {
	sid    string // vm:100 or ct:100.
	vmid   int
	opts   perl.Config // As written: state, comment, group, max_restart, …
	crm    string      // State in the manager: queued, started, stopped, …
	target string      // Node to move to, if any.
	home   string      // Node that it left for the time of its maintenance.
	away   time.Time   // Since when its node is gone.
	tries  int         // Starts without success.
	due    bool        // An event is planned.
}

// beginHA gives a host its manager.
func beginHA(w *core.World) {
	w.HA = &haManager{w: w, alone: w.Cfg.NoManager, resources: map[string]*haResource{}, groups: map[string]perl.Config{}, rules: map[string]perl.Config{}}
}

// State is the requested state of the resource; enabled is another word for started.
func (r *haResource) State() string {
	switch state := r.opts["state"]; state {
	case "", "enabled":
		return "started"
	default:
		return state
	}
}

func haSID(g *core.Guest) string {
	if g.Kind == "lxc" {
		return fmt.Sprintf("ct:%d", g.Vmid)
	}
	return fmt.Sprintf("vm:%d", g.Vmid)
}

// managerOf is the manager with all that the API shows of it.
func managerOf(w *core.World) *haManager { return w.HA.(*haManager) }

// of is the resource of a guest; nil if it has none.
func (h *haManager) of(g *core.Guest) *haResource { return h.resources[haSID(g)] }

// State is the requested state of a guest; empty if it is not a resource.
func (h *haManager) State(g *core.Guest) string {
	if r := h.of(g); r != nil {
		return r.State()
	}
	return ""
}

// Shown is the state of a guest in the list of resources.
func (h *haManager) Shown(g *core.Guest) string {
	switch r := h.of(g); {
	case r == nil:
		return ""
	case h.alone:
		return r.opts["state"]
	default:
		return r.crm
	}
}

// Managed says whether the manager decides about a guest.
func (h *haManager) Managed(g *core.Guest) bool {
	r := h.of(g)
	return r != nil && r.State() != "ignored"
}

// Status is the member ha of status/current.
func (h *haManager) Status(g *core.Guest) map[string]any {
	r := h.of(g)
	if r == nil || r.State() == "ignored" {
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

// Request files a request and answers with the task that did so.
func (h *haManager) Request(c *core.Call, g *core.Guest, state string) string {
	kind, what := "hastart", "start"
	if state != "started" {
		kind, what = "hastop", "stop"
	}
	return h.w.Fork(c, g.Node, core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), End: func(t *core.Task) error {
		r := h.of(g)
		if r == nil {
			return perl.Fail("no such resource '%s'", haSID(g))
		}
		t.Logf("Requesting HA %s for %s %d", what, g.Title(), g.Vmid)
		r.opts["state"], r.tries = state, 0
		h.Notice(g)
		return nil
	}})
}

// Move files the request to move a guest.
func (h *haManager) Move(c *core.Call, g *core.Guest, target string) string {
	return h.w.Fork(c, g.Node, core.Job{Kind: "hamigrate", ID: fmt.Sprint(g.Vmid), End: func(t *core.Task) error {
		t.Logf("Requesting HA migration for %s %d to node %s", g.Title(), g.Vmid, target)
		if r := h.of(g); r != nil {
			r.target = target
			h.Notice(g)
		}
		return nil
	}})
}

// Notice schedules a check of a guest by the manager, if it is one of its resources.
func (h *haManager) Notice(g *core.Guest) {
	w, r := h.w, h.of(g)
	if r == nil || r.due || h.alone {
		return
	}
	r.due = true
	w.At(w.Now.Add(haCycle), func() {
		r.due = false
		if w.Guests[g.Vmid] == g && h.resources[r.sid] == r {
			haAct(w, r, g)
		}
	})
}

// haAct is one round of the manager for one resource.
func haAct(w *core.World, r *haResource, g *core.Guest) {
	if r.State() == "ignored" {
		r.crm = "ignored"
		return
	}
	if !w.Quorum {
		return // Restoring the quorum triggers the next round.
	}
	if w.Nodes[g.Node].Offline {
		haRecover(w, r, g)
		return
	}
	r.away = time.Time{}
	if r.target == "" && r.State() == "started" {
		r.maintain(w, g)
	}
	if r.target != "" {
		target := r.target
		r.target = ""
		if r.crm = "migrate"; target != g.Node && w.Nodes[target] != nil {
			w.ForkAs(core.RootIdentity, g.Node, transfer.Migration{Target: target, Online: true, Disks: true}.Job(w, w.RootCall(), g))
		}
		w.HA.Notice(g)
		return
	}
	switch {
	case r.State() == "started" && g.Run == nil:
		haStart(w, r, g)
	case r.State() == "started":
		r.crm, r.tries = "started", 0
	case g.Run != nil:
		r.crm = "request_stop"
		w.ForkAs(core.RootIdentity, g.Node, haStopJob(w, g))
		w.HA.Notice(g)
	default:
		r.crm = "stopped"
	}
}

// maintain moves a guest away from a node in maintenance, and back after that (PVE/HA/Manager.pm).
func (r *haResource) maintain(w *core.World, g *core.Guest) {
	usable := func(name string) bool { return !w.Nodes[name].Offline && !w.Nodes[name].Maintenance }
	switch {
	case w.Nodes[g.Node].Maintenance:
		if i := slices.IndexFunc(haNodes(w, r), usable); i >= 0 {
			r.home, r.target = cmp.Or(r.home, g.Node), haNodes(w, r)[i]
		}
	case r.home != "" && usable(r.home):
		r.home, r.target = "", r.home
	}
}

// haStart starts a guest, and gives up after its restarts.
func haStart(w *core.World, r *haResource, g *core.Guest) {
	most := 1
	if text, ok := r.opts["max_restart"]; ok {
		most = perl.Atoi(text)
	}
	if r.tries > most {
		r.crm = "error"
		return
	}
	r.tries++
	r.crm = "starting"
	c := w.RootCall()
	if g.Kind == "lxc" {
		w.ForkAs(core.RootIdentity, g.Node, lxc.StartCTJob(w, g, c))
	} else {
		w.ForkAs(core.RootIdentity, g.Node, qemu.StartJob(w, g, c))
	}
	w.HA.Notice(g)
}

func haStopJob(w *core.World, g *core.Guest) core.Job {
	c := w.RootCall()
	if g.Kind == "lxc" {
		return lxc.StopCTJob(w, "vzshutdown", g, c)
	}
	return qemu.ShutdownJob(w, g, c, true)
}

// haRecover waits until a node has surely been fenced, then takes its guest over.
func haRecover(w *core.World, r *haResource, g *core.Guest) {
	switch {
	case r.away.IsZero():
		r.away, r.crm = w.Now, "fence"
	case w.Now.Sub(r.away) >= haFence:
		for _, name := range haNodes(w, r) {
			if name == g.Node || w.Nodes[name].Offline {
				continue
			}
			g.Node, g.Run, r.away, r.crm = name, nil, time.Time{}, "recovery"
			w.SetLock(g, "")
			break
		}
	}
	w.HA.Notice(g)
}

// haNodes are the nodes that a resource may run on: those of its group or of a
// strict rule, else all.
func haNodes(w *core.World, r *haResource) []string {
	if group := managerOf(w).groups[r.opts["group"]]; group["restricted"] == "1" {
		return rankedNodes(group["nodes"])
	}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).rules)) {
		rule := managerOf(w).rules[name]
		if rule["type"] == "node-affinity" && rule["strict"] == "1" && rule["disable"] != "1" && slices.Contains(perl.SplitList(rule["resources"]), r.sid) {
			return rankedNodes(rule["nodes"])
		}
	}
	return w.NodeNames()
}

// rankedNodes reads a list of nodes with priorities, "a:2,b": higher ones first.
func rankedNodes(list string) []string {
	names := []string{}
	rank := map[string]int{}
	for _, entry := range perl.SplitList(list) {
		name, priority, _ := strings.Cut(entry, ":")
		names = append(names, name)
		rank[name] = perl.Atoi(priority)
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank[b] - rank[a] })
	return names
}

// Manage puts a guest under the manager, as ha-managed at its creation asks.
func (h *haManager) Manage(g *core.Guest, state string) {
	r := &haResource{sid: haSID(g), vmid: g.Vmid, opts: perl.Config{"state": state}, crm: "queued"}
	h.resources[r.sid] = r
	h.Notice(g)
}

// KeepHA puts a guest under the manager in a state that another host showed.
func KeepHA(w *core.World, g *core.Guest, shown string) {
	wanted := map[string]string{"stopped": "stopped", "request_stop": "stopped", "disabled": "disabled", "ignored": "ignored"}
	h := managerOf(w)
	h.Manage(g, cmp.Or(wanted[shown], "started"))
	r := h.of(g)
	if r.crm = shown; shown == "error" {
		r.tries = 100 // The manager gave up.
	}
}

// Forget takes a guest from the manager.
func (h *haManager) Forget(g *core.Guest) { delete(h.resources, haSID(g)) }
