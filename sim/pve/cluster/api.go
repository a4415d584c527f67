package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

func (h *haManager) digest() string {
	sections := map[string]perl.Config{}
	for sid, r := range h.resources {
		sections[sid] = r.opts
	}
	return perl.DigestOf(sections)
}

// resourceID reads the id of a resource, which may come without its type.
func resourceID(w *core.World, text string) string {
	if strings.Contains(text, ":") {
		return text
	}
	if g := w.Guests[perl.Atoi(text)]; g != nil && g.Kind == "lxc" {
		return "ct:" + text
	}
	return "vm:" + text
}

func resource(c *core.Call) (*haResource, error) {
	w := c.W
	sid := resourceID(w, c.In["sid"])
	if r := managerOf(w).resources[sid]; r != nil {
		return r, nil
	}
	return nil, perl.Fail("no such resource '%s'", sid)
}

func showResource(w *core.World, r *haResource) map[string]any {
	kind, _, _ := strings.Cut(r.sid, ":")
	return r.opts.Section(map[string]any{"sid": r.sid, "type": kind, "digest": managerOf(w).digest()})
}

// apiHAResources is GET /cluster/ha/resources.
func apiHAResources(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		if kind := c.In["type"]; kind == "" || strings.HasPrefix(sid, kind+":") {
			list = append(list, showResource(w, managerOf(w).resources[sid]))
		}
	}
	return list, nil
}

// apiCreateHAResource is POST /cluster/ha/resources.
func apiCreateHAResource(w *core.World, c *core.Call) (any, error) {
	sid := resourceID(w, c.In["sid"])
	kind, id, _ := strings.Cut(sid, ":")
	g := w.Guests[perl.Atoi(id)]
	switch {
	case c.Has("type") && c.In["type"] != kind:
		return nil, perl.Fail("types does not match")
	case kind != "vm" && kind != "ct":
		return nil, perl.Fail("unknown section type '%s'", kind)
	case c.Has("group") && w.V9():
		return nil, perl.Fail("invalid parameter 'group': ha groups have been migrated to rules")
	case g == nil:
		return nil, perl.Fail("resource '%s' does not exist in cluster", sid)
	case haSID(g) != sid && w.V92(): // Since pve-ha-manager 5.1.1; before a VM could be a container here.
		return nil, perl.Fail("resource '%s' - guest with ID %s is not a %s", sid, id, map[string]string{"vm": "VM", "ct": "container"}[kind])
	case managerOf(w).resources[sid] != nil:
		return nil, perl.Fail("create resource failed: resource ID '%s' already defined", sid)
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	r := &haResource{sid: sid, vmid: g.Vmid, opts: perl.Config{}, crm: "queued"}
	c.Section(r.opts, "sid", "type")
	managerOf(w).resources[sid] = r
	if haSID(g) == sid {
		w.HA.Notice(g)
	}
	return nil, nil
}

// apiHAResource is GET /cluster/ha/resources/{sid}.
func apiHAResource(w *core.World, _ *core.Call, r *haResource) (any, error) {
	return showResource(w, r), nil
}

// apiUpdateHAResource is PUT /cluster/ha/resources/{sid}.
func apiUpdateHAResource(w *core.World, c *core.Call) (any, error) {
	if group := c.In["group"]; perl.IsTrue(group) && w.V9() {
		return nil, perl.Fail("invalid parameter 'group': ha groups have been migrated to rules")
	} else if perl.IsTrue(group) && managerOf(w).groups[group] == nil {
		return nil, perl.Fail("HA group '%s' does not exist", group)
	}
	r, err := resource(c)
	if err == nil {
		err = w.NeedQuorum()
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.Modified(managerOf(w).digest()), c.MayDrop("state group max_restart max_relocate comment failback", "")); err != nil {
		return nil, perl.Fail("update resource failed: %s", err)
	}
	c.Section(r.opts, "sid")
	r.tries = 0
	if g := w.Guests[r.vmid]; g != nil {
		w.HA.Notice(g)
	}
	return nil, nil
}

// apiDeleteHAResource is DELETE /cluster/ha/resources/{sid}. The guest stays as it
// is.
func apiDeleteHAResource(w *core.World, c *core.Call) (any, error) {
	sid := resourceID(w, c.In["sid"])
	if managerOf(w).resources[sid] == nil {
		return nil, perl.Fail("cannot delete service '%s', not HA managed!", sid)
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	delete(managerOf(w).resources, sid)
	return nil, nil
}

// apiMoveHAResource is POST …/migrate and …/relocate.
func apiMoveHAResource(w *core.World, c *core.Call, r *haResource) (any, error) {
	node := c.In["node"]
	if w.Nodes[node] == nil {
		return nil, perl.Fail("no such cluster node '%s'", node)
	}
	r.target = node
	if g := w.Guests[r.vmid]; g != nil {
		w.HA.Notice(g)
	}
	if w.V9() {
		return map[string]any{"sid": r.sid, "requested-node": node}, nil
	}
	return nil, nil
}

// apiHAGroups is GET /cluster/ha/groups. PVE 9 has rules instead.
func apiHAGroups(w *core.World, _ *core.Call) (any, error) {
	if w.V9() {
		return nil, perl.Fail("cannot index groups: ha groups have been migrated to rules")
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).groups)) {
		list = append(list, managerOf(w).groups[name].Section(map[string]any{"group": name, "type": "group", "digest": perl.DigestOf(managerOf(w).groups)}))
	}
	return list, nil
}

// haGroup returns the check that begins each call about one group.
func haGroup(what string) func(*core.Call) (perl.Config, error) {
	return func(c *core.Call) (perl.Config, error) {
		name := c.In["group"]
		if c.W.V9() {
			return nil, perl.Fail("cannot %s group: ha groups have been migrated to rules", what)
		}
		group, ok := managerOf(c.W).groups[name]
		switch {
		case what == "create" && ok:
			return nil, perl.Fail("create ha group failed: ha group ID '%s' already defined", name)
		case what == "update" && !ok:
			return nil, perl.Fail("update ha group failed: no such ha group '%s'", name)
		case what == "read" && !ok:
			return nil, perl.Fail("no such ha group '%s'", name)
		}
		return group, nil
	}
}

func apiCreateHAGroup(w *core.World, c *core.Call, _ perl.Config) (any, error) {
	group := perl.Config{}
	c.Section(group, "group", "type")
	managerOf(w).groups[c.In["group"]] = group
	return nil, nil
}

func apiHAGroup(w *core.World, c *core.Call, group perl.Config) (any, error) {
	return group.Section(map[string]any{"group": c.In["group"], "type": "group", "digest": perl.DigestOf(managerOf(w).groups)}), nil
}

func apiUpdateHAGroup(w *core.World, c *core.Call, group perl.Config) (any, error) {
	if err := errors.Join(c.Modified(perl.DigestOf(managerOf(w).groups)), c.MayDrop("nofailback restricted comment", "nodes")); err != nil {
		return nil, perl.Fail("update ha group failed: %s", err)
	}
	c.Section(group, "group")
	return nil, nil
}

func apiDeleteHAGroup(w *core.World, c *core.Call, _ perl.Config) (any, error) {
	for sid, r := range perl.Sorted(managerOf(w).resources) {
		if r.opts["group"] == c.In["group"] {
			return nil, perl.Fail("delete ha group failed: ha group is used by service '%s'", sid)
		}
	}
	delete(managerOf(w).groups, c.In["group"])
	return nil, nil
}

// apiHARules is GET /cluster/ha/rules.
func apiHARules(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).rules)) {
		rule := managerOf(w).rules[name]
		if c.Has("type") && rule["type"] != c.In["type"] || c.Has("resource") && !slices.Contains(perl.SplitList(rule["resources"]), c.In["resource"]) {
			continue
		}
		list = append(list, rule.Section(map[string]any{"rule": name, "digest": perl.DigestOf(managerOf(w).rules)}))
	}
	return list, nil
}

// haRule is the rule of a call.
func haRule(c *core.Call) (perl.Config, error) {
	w := c.W
	if rule, ok := managerOf(w).rules[c.In["rule"]]; ok {
		return rule, c.Modified(perl.DigestOf(managerOf(w).rules))
	}
	return nil, perl.Fail("no such ha rule '%s'", c.In["rule"])
}

func apiCreateHARule(w *core.World, c *core.Call) (any, error) {
	name := c.In["rule"]
	if managerOf(w).rules[name] != nil {
		return nil, perl.Fail("HA rule '%s' already defined", name)
	}
	for _, sid := range c.List("resources") {
		if managerOf(w).resources[resourceID(w, sid)] == nil {
			return nil, perl.Fail("cannot use unmanaged resource(s) %s.", sid)
		}
	}
	rule := perl.Config{}
	c.Section(rule, "rule")
	managerOf(w).rules[name] = rule
	return nil, nil
}

func apiHARule(w *core.World, c *core.Call, rule perl.Config) (any, error) {
	return rule.Section(map[string]any{"rule": c.In["rule"], "digest": perl.DigestOf(managerOf(w).rules)}), nil
}

func apiUpdateHARule(_ *core.World, c *core.Call, rule perl.Config) (any, error) {
	c.Section(rule, "rule")
	return nil, nil
}

func apiDeleteHARule(w *core.World, c *core.Call, _ perl.Config) (any, error) {
	delete(managerOf(w).rules, c.In["rule"])
	return nil, nil
}

// apiHAStatus is GET /cluster/ha/status/current: the quorum, and once there is
// something to manage the manager, its hands on every node, and the resources.
func apiHAStatus(w *core.World, _ *core.Call) (any, error) {
	text := map[bool]string{true: "OK", false: "No quorum on node '" + w.Cfg.Node + "'!"}[w.Quorum]
	list := []map[string]any{{"id": "quorum", "type": "quorum", "node": w.Cfg.Node, "status": text, "quorate": perl.BoolInt(w.Quorum)}}
	if len(managerOf(w).resources) > 0 && !managerOf(w).alone {
		list = append(list, haHands(w)...)
	}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		list = append(list, haService(w, managerOf(w).resources[sid]))
	}
	return list, nil
}

// haHands are the manager and what does its work on every node.
func haHands(w *core.World) []map[string]any {
	at := w.Now.UTC().Format("Mon Jan _2 15:04:05 2006")
	list := []map[string]any{{
		"id": "master", "type": "master", "node": w.Cfg.Node, "timestamp": w.Now.Unix(), "status": fmt.Sprintf("%s (active, %s)", w.Cfg.Node, at),
	}}
	for _, name := range w.NodeNames() {
		state := "active"
		if w.Nodes[name].Offline {
			state = "old timestamp - dead?"
		}
		list = append(list, map[string]any{
			"id": "lrm:" + name, "type": "lrm", "node": name, "timestamp": w.Now.Unix(), "status": fmt.Sprintf("%s (%s, %s)", name, state, at),
		})
	}
	return list
}

// haService is a resource as the status shows it, its options and their defaults
// among it. One that no manager has looked at is queued ($add_service in
// PVE/API2/HA/Status.pm, get_verbose_service_state in PVE/HA/Tools.pm).
func haService(w *core.World, r *haResource) map[string]any {
	entry := map[string]any{
		"id": "service:" + r.sid, "type": "service", "sid": r.sid, "state": r.crm, "request_state": r.State(),
		"max_restart": 1, "max_relocate": 1,
	}
	if w.V9() {
		entry["failback"] = 1
	}
	for _, key := range []string{"failback", "group", "comment", "max_restart", "max_relocate"} {
		if value, ok := r.opts[key]; ok {
			entry[key] = perl.Config{key: value}.Section(map[string]any{})[key]
		}
	}
	node := "---"
	if g := w.Guests[r.vmid]; g != nil {
		node = g.Node
		entry["node"] = node
	}
	if !managerOf(w).alone {
		entry["crm_state"] = r.crm
	} else if r.State() == "ignored" {
		entry["state"] = "ignored"
	}
	entry["status"] = fmt.Sprintf("%s (%s, %s)", r.sid, node, entry["state"])
	return entry
}

// apiHAManager is GET /cluster/ha/status/manager_status.
func apiHAManager(w *core.World, _ *core.Call) (any, error) {
	services, nodes := map[string]any{}, map[string]any{}
	for sid, r := range managerOf(w).resources {
		if g := w.Guests[r.vmid]; g != nil {
			services[sid] = map[string]any{"node": g.Node, "state": r.crm}
		}
	}
	for name, n := range w.Nodes {
		nodes[name] = map[bool]string{true: "unknown", false: "online"}[n.Offline]
	}
	status := map[string]any{"master_node": w.Cfg.Node, "timestamp": w.Now.Unix(), "node_status": nodes, "service_status": services}
	if managerOf(w).alone {
		status = map[string]any{}
	}
	return map[string]any{
		"manager_status": status, "lrm_status": map[string]any{},
		"quorum": map[string]any{"node": w.Cfg.Node, "quorate": fmt.Sprint(perl.BoolInt(w.Quorum))},
	}, nil
}
