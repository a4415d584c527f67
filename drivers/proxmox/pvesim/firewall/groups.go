package firewall

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiSecurityGroups is GET /cluster/firewall/groups.
func apiSecurityGroups(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(f.groups)) {
		entry := map[string]any{"group": name, "digest": listDigest(f.groupList()...)}
		if comment := f.groups[name].comment; comment != "" {
			entry["comment"] = comment
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiAddSecurityGroup is POST /cluster/firewall/groups.
func apiAddSecurityGroup(w *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	name, old := c.In["group"], c.In["rename"]
	kept := strings.ToLower(name)
	if old == "" {
		if f.groups[name] != nil {
			return nil, perl.BadParam("group", "Security group '"+name+"' already exists")
		}
		if f.groups[kept] == nil {
			f.groups[kept] = &securityGroup{comment: comment(c.In["comment"])}
		}
		return nil, nil
	}
	if err := c.Modified(listDigest(f.groupList()...)); err != nil {
		return nil, err
	}
	g := f.groups[old]
	switch {
	case g == nil:
		return nil, perl.BadParam("group", "Security group '"+old+"' does not exist")
	case f.groups[name] != nil && name != old:
		return nil, perl.BadParam("group", "Security group '"+name+"' does already exist")
	}
	delete(f.groups, old)
	f.groups[kept] = g
	if c.Has("comment") {
		g.comment = comment(c.In["comment"])
	}
	for _, f := range firewallsOf(w) { // Rules that name it follow.
		for _, rule := range f.rules {
			if rule["type"] == "group" && rule["action"] == old {
				rule["action"] = name
			}
		}
	}
	return nil, nil
}

// apiDeleteSecurityGroup is DELETE /cluster/firewall/groups/{group}.
func apiDeleteSecurityGroup(_ *core.World, c *core.Call) (any, error) {
	f, rules, err := ruleList(c)
	if err != nil {
		return nil, err
	}
	if len(*rules) > 0 {
		return nil, perl.Fail("Security group '%s' is not empty", c.In["group"])
	}
	delete(f.groups, c.In["group"])
	return nil, nil
}

// firewallRoutes are the calls about a firewall, behind the path of what it guards.
// The API table says which of them are there for which.
var firewallRoutes = map[string]core.Handler{
	"GET ": apiFirewallIndex, "GET /options": apiFirewallOptions, "PUT /options": apiSetFirewallOptions, "GET /refs": apiRefs,
	"GET /rules": apiRules, "POST /rules": apiAddRule,
	"GET /rules/{pos}": apiRule, "PUT /rules/{pos}": apiSetRule, "DELETE /rules/{pos}": apiDeleteRule,
	"GET /aliases": apiAliases, "POST /aliases": apiAddAlias,
	"GET /aliases/{name}": apiAlias, "PUT /aliases/{name}": apiSetAlias, "DELETE /aliases/{name}": apiDeleteAlias,
	"GET /ipset": apiIPSets, "POST /ipset": apiAddIPSet,
	"GET /ipset/{name}": apiIPSet, "POST /ipset/{name}": apiAddMember, "DELETE /ipset/{name}": apiDeleteIPSet,
	"GET /ipset/{name}/{cidr}": apiMember, "PUT /ipset/{name}/{cidr}": apiSetMember, "DELETE /ipset/{name}/{cidr}": apiDeleteMember,
	"GET /groups": apiSecurityGroups, "POST /groups": apiAddSecurityGroup,
	"GET /groups/{group}": apiRules, "POST /groups/{group}": apiAddRule, "DELETE /groups/{group}": apiDeleteSecurityGroup,
	"GET /groups/{group}/{pos}": apiRule, "PUT /groups/{group}/{pos}": apiSetRule, "DELETE /groups/{group}/{pos}": apiDeleteRule,
}

// allFirewallRoutes are they of the cluster, a node, a VM and a container.
func allFirewallRoutes() map[string]core.Handler {
	all := map[string]core.Handler{}
	for _, at := range []string{"/cluster", "/nodes/{node}", "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/lxc/{vmid}"} {
		for name, h := range firewallRoutes {
			verb, path, _ := strings.Cut(name, " ")
			all[verb+" "+at+"/firewall"+path] = h
		}
	}
	return all
}
