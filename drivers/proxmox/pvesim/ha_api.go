package pvesim

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

func (h *haManager) digest() string {
	sections := map[string]config{}
	for sid, r := range h.resources {
		sections[sid] = r.opts
	}
	return digestOf(sections)
}

// sid reads the id of a resource, which may come without its type.
func (w *world) sid(text string) string {
	if strings.Contains(text, ":") {
		return text
	}
	if g := w.guests[atoi(text)]; g != nil && g.kind == "lxc" {
		return "ct:" + text
	}
	return "vm:" + text
}

func (w *world) resource(c *call) (*haResource, error) {
	sid := w.sid(c.in["sid"])
	if r := managerOf(w).resources[sid]; r != nil {
		return r, nil
	}
	return nil, fail("no such resource '%s'", sid)
}

func (w *world) showResource(r *haResource) map[string]any {
	kind, _, _ := strings.Cut(r.sid, ":")
	return section(r.opts, map[string]any{"sid": r.sid, "type": kind, "digest": managerOf(w).digest()})
}

// apiHAResources is GET /cluster/ha/resources.
func apiHAResources(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		if kind := c.in["type"]; kind == "" || strings.HasPrefix(sid, kind+":") {
			list = append(list, w.showResource(managerOf(w).resources[sid]))
		}
	}
	return list, nil
}

// apiCreateHAResource is POST /cluster/ha/resources.
func apiCreateHAResource(w *world, c *call) (any, error) {
	sid := w.sid(c.in["sid"])
	kind, id, _ := strings.Cut(sid, ":")
	g := w.guests[atoi(id)]
	switch {
	case c.has("type") && c.in["type"] != kind:
		return nil, fail("types does not match")
	case kind != "vm" && kind != "ct":
		return nil, fail("unknown section type '%s'", kind)
	case c.has("group") && w.v9():
		return nil, fail("invalid parameter 'group': ha groups have been migrated to rules")
	case g == nil:
		return nil, fail("resource '%s' does not exist in cluster", sid)
	case haSID(g) != sid && w.v92(): // Since pve-ha-manager 5.1.1; before a VM could be a container here.
		return nil, fail("resource '%s' - guest with ID %s is not a %s", sid, id, map[string]string{"vm": "VM", "ct": "container"}[kind])
	case managerOf(w).resources[sid] != nil:
		return nil, fail("create resource failed: resource ID '%s' already defined", sid)
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	r := &haResource{sid: sid, vmid: g.vmid, opts: config{}, crm: "queued"}
	c.section(r.opts, "sid", "type")
	managerOf(w).resources[sid] = r
	if haSID(g) == sid {
		w.ha.notice(g)
	}
	return nil, nil
}

// apiHAResource is GET /cluster/ha/resources/{sid}.
func apiHAResource(w *world, c *call) (any, error) {
	r, err := w.resource(c)
	if err != nil {
		return nil, err
	}
	return w.showResource(r), nil
}

// apiUpdateHAResource is PUT /cluster/ha/resources/{sid}.
func apiUpdateHAResource(w *world, c *call) (any, error) {
	if group := c.in["group"]; isTrue(group) && w.v9() {
		return nil, fail("invalid parameter 'group': ha groups have been migrated to rules")
	} else if isTrue(group) && managerOf(w).groups[group] == nil {
		return nil, fail("HA group '%s' does not exist", group)
	}
	r, err := w.resource(c)
	if err == nil {
		err = w.needQuorum()
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.modified(managerOf(w).digest()), c.mayDrop("state group max_restart max_relocate comment failback", "")); err != nil {
		return nil, fail("update resource failed: %s", err)
	}
	c.section(r.opts, "sid")
	r.tries = 0
	if g := w.guests[r.vmid]; g != nil {
		w.ha.notice(g)
	}
	return nil, nil
}

// apiDeleteHAResource is DELETE /cluster/ha/resources/{sid}. The guest stays as it
// is.
func apiDeleteHAResource(w *world, c *call) (any, error) {
	sid := w.sid(c.in["sid"])
	if managerOf(w).resources[sid] == nil {
		return nil, fail("cannot delete service '%s', not HA managed!", sid)
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	delete(managerOf(w).resources, sid)
	return nil, nil
}

// apiMoveHAResource is POST …/migrate and …/relocate.
func apiMoveHAResource(w *world, c *call) (any, error) {
	r, err := w.resource(c)
	if err != nil {
		return nil, err
	}
	node := c.in["node"]
	if w.nodes[node] == nil {
		return nil, fail("no such cluster node '%s'", node)
	}
	r.target = node
	if g := w.guests[r.vmid]; g != nil {
		w.ha.notice(g)
	}
	if w.v9() {
		return map[string]any{"sid": r.sid, "requested-node": node}, nil
	}
	return nil, nil
}

// apiHAGroups is GET /cluster/ha/groups. PVE 9 has rules instead.
func apiHAGroups(w *world, _ *call) (any, error) {
	if w.v9() {
		return nil, fail("cannot index groups: ha groups have been migrated to rules")
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).groups)) {
		list = append(list, section(managerOf(w).groups[name], map[string]any{"group": name, "type": "group", "digest": digestOf(managerOf(w).groups)}))
	}
	return list, nil
}

// haGroup is what the calls about one group begin with.
func (w *world) haGroup(c *call, what string) (config, error) {
	name := c.in["group"]
	if w.v9() {
		return nil, fail("cannot %s group: ha groups have been migrated to rules", what)
	}
	group, ok := managerOf(w).groups[name]
	switch {
	case what == "create" && ok:
		return nil, fail("create ha group failed: ha group ID '%s' already defined", name)
	case what == "update" && !ok:
		return nil, fail("update ha group failed: no such ha group '%s'", name)
	case what == "read" && !ok:
		return nil, fail("no such ha group '%s'", name)
	}
	return group, nil
}

func apiCreateHAGroup(w *world, c *call) (any, error) {
	if _, err := w.haGroup(c, "create"); err != nil {
		return nil, err
	}
	group := config{}
	c.section(group, "group", "type")
	managerOf(w).groups[c.in["group"]] = group
	return nil, nil
}

func apiHAGroup(w *world, c *call) (any, error) {
	group, err := w.haGroup(c, "read")
	if err != nil {
		return nil, err
	}
	return section(group, map[string]any{"group": c.in["group"], "type": "group", "digest": digestOf(managerOf(w).groups)}), nil
}

func apiUpdateHAGroup(w *world, c *call) (any, error) {
	group, err := w.haGroup(c, "update")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.modified(digestOf(managerOf(w).groups)), c.mayDrop("nofailback restricted comment", "nodes")); err != nil {
		return nil, fail("update ha group failed: %s", err)
	}
	c.section(group, "group")
	return nil, nil
}

func apiDeleteHAGroup(w *world, c *call) (any, error) {
	if _, err := w.haGroup(c, "delete"); err != nil {
		return nil, err
	}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		if managerOf(w).resources[sid].opts["group"] == c.in["group"] {
			return nil, fail("delete ha group failed: ha group is used by service '%s'", sid)
		}
	}
	delete(managerOf(w).groups, c.in["group"])
	return nil, nil
}

// apiHARules is GET /cluster/ha/rules.
func apiHARules(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(managerOf(w).rules)) {
		rule := managerOf(w).rules[name]
		if c.has("type") && rule["type"] != c.in["type"] || c.has("resource") && !slices.Contains(splitList(rule["resources"]), c.in["resource"]) {
			continue
		}
		list = append(list, section(rule, map[string]any{"rule": name, "digest": digestOf(managerOf(w).rules)}))
	}
	return list, nil
}

// haRule is the rule of a call.
func (w *world) haRule(c *call) (config, error) {
	if rule, ok := managerOf(w).rules[c.in["rule"]]; ok {
		return rule, c.modified(digestOf(managerOf(w).rules))
	}
	return nil, fail("no such ha rule '%s'", c.in["rule"])
}

func apiCreateHARule(w *world, c *call) (any, error) {
	name := c.in["rule"]
	if managerOf(w).rules[name] != nil {
		return nil, fail("HA rule '%s' already defined", name)
	}
	for _, sid := range c.list("resources") {
		if managerOf(w).resources[w.sid(sid)] == nil {
			return nil, fail("cannot use unmanaged resource(s) %s.", sid)
		}
	}
	rule := config{}
	c.section(rule, "rule")
	managerOf(w).rules[name] = rule
	return nil, nil
}

func apiHARule(w *world, c *call) (any, error) {
	rule, err := w.haRule(c)
	if err != nil {
		return nil, err
	}
	return section(rule, map[string]any{"rule": c.in["rule"], "digest": digestOf(managerOf(w).rules)}), nil
}

func apiUpdateHARule(w *world, c *call) (any, error) {
	rule, err := w.haRule(c)
	if err == nil {
		c.section(rule, "rule")
	}
	return nil, err
}

func apiDeleteHARule(w *world, c *call) (any, error) {
	if _, err := w.haRule(c); err != nil {
		return nil, err
	}
	delete(managerOf(w).rules, c.in["rule"])
	return nil, nil
}

// apiHAStatusIndex is GET /cluster/ha/status.
func apiHAStatusIndex(*world, *call) (any, error) {
	return subdirs("name", "current", "manager_status"), nil
}
