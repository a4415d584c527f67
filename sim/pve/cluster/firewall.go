package cluster

// The firewall is its files: those of the cluster, of nodes and of guests. No packet is
// filtered.

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// firewallArea is the firewall.
func firewallArea() core.Area {
	routes := allFirewallRoutes()
	return core.Area{
		Routes: routes,
		Begin:  beginFirewall,
	}
}

// firewallRoutes are the calls about a firewall, behind the path of what it guards.
// The API table says which of them are there for which.
var firewallRoutes = map[string]core.Handler{
	"GET ": apiFirewallIndex, "GET /options": core.On(fileOfCall, apiFirewallOptions), "PUT /options": core.On(fileOfCall, apiSetFirewallOptions),
	"GET /refs":  core.On(fileOfCall, apiRefs),
	"GET /rules": core.On(rulesOfCall, apiRules), "POST /rules": core.On(rulesOfCall, apiAddRule),
	"GET /rules/{pos}": core.On(ruleOfCall, apiRule), "PUT /rules/{pos}": core.On(ruleOfCall, apiSetRule),
	"DELETE /rules/{pos}": core.On(ruleOfCall, apiDeleteRule),
	"GET /aliases":        core.On(fileOfCall, apiAliases), "POST /aliases": core.On(fileOfCall, apiAddAlias),
	"GET /aliases/{name}": core.On(aliasOfCall, apiAlias), "PUT /aliases/{name}": core.On(aliasOfCall, apiSetAlias),
	"DELETE /aliases/{name}": core.On(aliasOfCall, apiDeleteAlias),
	"GET /ipset":             core.On(fileOfCall, apiIPSets), "POST /ipset": core.On(fileOfCall, apiAddIPSet),
	"GET /ipset/{name}": core.On(setOfCall, apiIPSet), "POST /ipset/{name}": core.On(setOfCall, apiAddMember),
	"DELETE /ipset/{name}":     core.On(setOfCall, apiDeleteIPSet),
	"GET /ipset/{name}/{cidr}": core.On(memberOfCall, apiMember), "PUT /ipset/{name}/{cidr}": core.On(memberOfCall, apiSetMember),
	"DELETE /ipset/{name}/{cidr}": core.On(memberOfCall, apiDeleteMember),
	"GET /groups":                 core.On(fileOfCall, apiSecurityGroups), "POST /groups": core.On(fileOfCall, apiAddSecurityGroup),
	"GET /groups/{group}": core.On(rulesOfCall, apiRules), "POST /groups/{group}": core.On(rulesOfCall, apiAddRule),
	"DELETE /groups/{group}":    core.On(rulesOfCall, apiDeleteSecurityGroup),
	"GET /groups/{group}/{pos}": core.On(ruleOfCall, apiRule), "PUT /groups/{group}/{pos}": core.On(ruleOfCall, apiSetRule),
	"DELETE /groups/{group}/{pos}": core.On(ruleOfCall, apiDeleteRule),
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

// firewall is one file of the firewall: the cluster's, a node's or a guest's. It is
// kept and shown; no packet is ever filtered.
type firewall struct {
	options perl.Config
	rules   []perl.Config
	aliases map[string]perl.Config // By name in lower case.
	ipsets  map[string]*named
	groups  map[string]*named // Of the cluster alone.
}

// named is an object that rules refer to: a set of addresses, or a security group, which has rules.
type named struct {
	comment string
	members map[string]perl.Config // By address.
	rules   []perl.Config
}

func newFirewall() *firewall {
	return &firewall{options: perl.Config{}, aliases: map[string]perl.Config{}, ipsets: map[string]*named{}, groups: map[string]*named{}}
}

// firewalls are all files, by what they are of: the cluster's, those of nodes by name and
// those of guests by their path.
type firewalls map[string]*firewall

func firewallsOf(w *core.World) firewalls { return core.MapOf[firewalls](&w.Parts) }

// beginFirewall keeps the files of guests with them.
func beginFirewall(w *core.World) {
	w.Hooks.Cloned = append(w.Hooks.Cloned, func(from, to *core.Guest) { copyFirewall(w, from, to) })
	w.Hooks.Removed = append(w.Hooks.Removed, func(g *core.Guest) { delete(firewallsOf(w), core.VMPath(g.Vmid)) })
}

// copyFirewall gives a clone the rules of its source.
func copyFirewall(w *core.World, from, to *core.Guest) {
	f := firewallsOf(w)[core.VMPath(from.Vmid)]
	if f == nil {
		return
	}
	copied := newFirewall()
	maps.Copy(copied.options, f.options)
	for _, rule := range f.rules {
		copied.rules = append(copied.rules, maps.Clone(rule))
	}
	for name, alias := range f.aliases {
		copied.aliases[name] = maps.Clone(alias)
	}
	for name, set := range f.ipsets {
		members := map[string]perl.Config{}
		for cidr, member := range set.members {
			members[cidr] = maps.Clone(member)
		}
		copied.ipsets[name] = &named{comment: set.comment, members: members}
	}
	firewallsOf(w)[core.VMPath(to.Vmid)] = copied
}

// fileOfCall is that of a call: of the guest or node of its path, else the cluster's. A guest's is a file of its
// number, without a check that the guest exists (load_vmfw_conf in PVE/Firewall.pm).
func fileOfCall(c *core.Call) (*firewall, error) {
	w := c.W
	key := "cluster"
	switch {
	case strings.Contains(c.M.Path, "{vmid}"):
		key = core.VMPath(c.Vmid())
	case c.In["node"] != "":
		key = c.In["node"]
	}
	if firewallsOf(w)[key] == nil {
		firewallsOf(w)[key] = newFirewall()
	}
	if c.Req.Method != http.MethodGet {
		return firewallsOf(w)[key], w.NeedQuorum()
	}
	return firewallsOf(w)[key], nil
}

// apiFirewallIndex is GET …/firewall.
func apiFirewallIndex(_ *core.World, c *core.Call) (any, error) {
	names := []string{"rules", "aliases", "ipset", "refs", "options"}
	switch {
	case c.M.Path == "/cluster/firewall":
		names = append(names, "groups", "macros")
	case !strings.Contains(c.M.Path, "{vmid}"):
		names = []string{"rules", "options", "log"}
	}
	return core.Subdirs("name", names...), nil
}

// apiFirewallOptions is GET …/firewall/options.
func apiFirewallOptions(_ *core.World, c *core.Call, f *firewall) (any, error) {
	entry := f.options.TypedBy("PUT " + c.M.Path)
	entry["digest"] = listDigest(f.options)
	return entry, nil
}

// apiSetFirewallOptions is PUT …/firewall/options.
func apiSetFirewallOptions(_ *core.World, c *core.Call, f *firewall) (any, error) {
	if err := c.Modified(listDigest(f.options)); err != nil {
		return nil, err
	}
	for _, option := range c.List("delete") {
		if _, known := c.M.Param(option); !known || option == "delete" || option == "digest" {
			return nil, perl.BadParam("delete", "no such option '"+option+"'")
		}
	}
	c.Update(f.options, "node", "vmid")
	if c.Num("enable", 0) > 1 {
		f.options["enable"] = fmt.Sprint(c.W.Now.Unix())
	}
	return nil, nil
}

// ruleList are the rules that a call is about: those of a file or of a group, and of these
// perhaps one.
type ruleList struct {
	file  *firewall
	rules *[]perl.Config
	pos   int
}

func (l ruleList) digest() string { return listDigest(*l.rules...) }

// rulesOfCall finds them.
func rulesOfCall(c *core.Call) (ruleList, error) {
	f, err := fileOfCall(c)
	if err != nil || !strings.Contains(c.M.Path, "/firewall/groups/{group}") {
		return ruleList{file: f, rules: &f.rules}, err
	}
	g := f.groups[c.In["group"]]
	if g == nil {
		return ruleList{}, perl.Fail("no such security group '%s'", c.In["group"])
	}
	return ruleList{file: f, rules: &g.rules}, nil
}

// ruleOfCall finds one of them.
func ruleOfCall(c *core.Call) (ruleList, error) {
	l, err := rulesOfCall(c)
	if err == nil && c.Req.Method != http.MethodGet {
		err = c.Modified(l.digest())
	}
	if l.pos = c.Num("pos", -1); err == nil && (l.pos < 0 || l.pos >= len(*l.rules)) {
		err = perl.Fail("no rule at position %d", l.pos)
	}
	return l, err
}

func showRule(rule perl.Config, pos any, digest string) map[string]any {
	entry := rule.TypedBy("POST /cluster/firewall/rules")
	entry["pos"], entry["digest"] = pos, digest
	if version := rule["ipversion"]; version != "" {
		entry["ipversion"] = perl.Atoi(version)
	}
	return entry
}

// apiRules is GET …/rules.
func apiRules(_ *core.World, _ *core.Call, l ruleList) (any, error) {
	list := []map[string]any{}
	for n, rule := range *l.rules {
		list = append(list, showRule(rule, n, l.digest()))
	}
	return list, nil
}

// apiAddRule is POST …/rules: at the top, whatever position is given.
func apiAddRule(_ *core.World, c *core.Call, l ruleList) (any, error) {
	rule := perl.Config{}
	setRule(c, rule)
	if err := verifyRule(c, l.file, rule); err != nil {
		return nil, err
	}
	if c.In["enable"] == "" {
		rule["enable"] = "0"
	}
	*l.rules = slices.Insert(*l.rules, 0, rule)
	return nil, nil
}

// apiRule is GET …/rules/{pos}. The position comes back as it was asked for: text.
func apiRule(_ *core.World, c *core.Call, l ruleList) (any, error) {
	return showRule((*l.rules)[l.pos], c.In["pos"], l.digest()), nil
}

// apiSetRule is PUT …/rules/{pos}: it changes a rule, or moves it.
func apiSetRule(_ *core.World, c *core.Call, l ruleList) (any, error) {
	rule := (*l.rules)[l.pos]
	if to := c.Num("moveto", 0); c.Has("moveto") && to != l.pos {
		*l.rules = slices.Delete(*l.rules, l.pos, l.pos+1)
		if to > l.pos {
			to--
		}
		*l.rules = slices.Insert(*l.rules, min(max(to, 0), len(*l.rules)), rule)
		return nil, nil
	}
	changed := maps.Clone(rule)
	setRule(c, changed)
	err := dropFromRule(c, changed)
	if err == nil {
		err = verifyRule(c, l.file, changed)
	}
	if err == nil {
		(*l.rules)[l.pos] = changed
	}
	return nil, err
}

// apiDeleteRule is DELETE …/rules/{pos}.
func apiDeleteRule(_ *core.World, _ *core.Call, l ruleList) (any, error) {
	*l.rules = slices.Delete(*l.rules, l.pos, l.pos+1)
	return nil, nil
}

// cleanAddress is an address or network as it is kept: as it was sent, but without the
// length that says that it is a single one (parse_ip_or_cidr in PVE/Firewall.pm).
func cleanAddress(text string) string {
	if strings.Contains(text, ":") {
		return strings.TrimSuffix(text, "/128")
	}
	return strings.TrimSuffix(text, "/32")
}
