package firewall

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// firewall is one file of the firewall: the cluster's, a node's or a guest's. It is
// kept and shown; no packet is ever filtered.
type firewall struct {
	options property.Config
	rules   []property.Config
	aliases map[string]property.Config // By name in lower case.
	ipsets  map[string]*ipset
	groups  map[string]*securityGroup // Of the cluster alone.
}

// ipset is a set of addresses, securityGroup a security group: rules that others name.
type (
	ipset struct {
		comment string
		members map[string]property.Config // By address.
	}
	securityGroup struct {
		comment string
		rules   []property.Config
	}
)

func newFirewall() *firewall {
	return &firewall{options: property.Config{}, aliases: map[string]property.Config{}, ipsets: map[string]*ipset{}, groups: map[string]*securityGroup{}}
}

// firewalls are all files, by what they are of: the cluster's, those of nodes by name and
// those of guests by their path.
type firewalls struct{ of map[string]*firewall }

func firewallsOf(w *core.World) map[string]*firewall {
	all := core.PartOf[firewalls](&w.Parts)
	if all.of == nil {
		all.of = map[string]*firewall{}
	}
	return all.of
}

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
		members := map[string]property.Config{}
		for cidr, member := range set.members {
			members[cidr] = maps.Clone(member)
		}
		copied.ipsets[name] = &ipset{set.comment, members}
	}
	firewallsOf(w)[core.VMPath(to.Vmid)] = copied
}

// fileOfCall is that of a call: of the guest or node of its path, else the cluster's. A
// guest's is a file of its number, and nobody asks whether the guest is there
// (load_vmfw_conf in PVE/Firewall.pm).
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
func apiFirewallOptions(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	entry := property.TypedBy("PUT "+c.M.Path, f.options)
	entry["digest"] = listDigest(f.options)
	return entry, nil
}

// apiSetFirewallOptions is PUT …/firewall/options.
func apiSetFirewallOptions(w *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
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
		f.options["enable"] = fmt.Sprint(w.Now.Unix())
	}
	return nil, nil
}

// ruleList are the rules that a call is about: those of the file or of a group.
func ruleList(c *core.Call) (f *firewall, rules *[]property.Config, err error) {
	if f, err = fileOfCall(c); err != nil {
		return nil, nil, err
	}
	if !strings.Contains(c.M.Path, "/firewall/groups/{group}") {
		return f, &f.rules, nil
	}
	g := f.groups[c.In["group"]]
	if g == nil {
		return nil, nil, perl.Fail("no such security group '%s'", c.In["group"])
	}
	return f, &g.rules, nil
}

func showRule(rule property.Config, pos any, digest string) map[string]any {
	entry := property.TypedBy("POST /cluster/firewall/rules", rule)
	entry["pos"], entry["digest"] = pos, digest
	if version := rule["ipversion"]; version != "" {
		entry["ipversion"] = perl.Atoi(version)
	}
	return entry
}

// apiRules is GET …/rules.
func apiRules(_ *core.World, c *core.Call) (any, error) {
	_, rules, err := ruleList(c)
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for n, rule := range *rules {
		list = append(list, showRule(rule, n, listDigest(*rules...)))
	}
	return list, nil
}

// apiAddRule is POST …/rules: at the top, whatever position is given.
func apiAddRule(_ *core.World, c *core.Call) (any, error) {
	f, rules, err := ruleList(c)
	if err != nil {
		return nil, err
	}
	rule := property.Config{}
	setRule(c, rule)
	if err := verifyRule(c, f, rule); err != nil {
		return nil, err
	}
	if c.In["enable"] == "" {
		rule["enable"] = "0"
	}
	*rules = slices.Insert(*rules, 0, rule)
	return nil, nil
}

// ruleAt is the rule of a call, with its list.
func ruleAt(c *core.Call) (f *firewall, rules *[]property.Config, pos int, err error) {
	f, rules, err = ruleList(c)
	if err == nil && c.Req.Method != http.MethodGet {
		err = c.Modified(listDigest(*rules...))
	}
	if pos = c.Num("pos", -1); err == nil && (pos < 0 || pos >= len(*rules)) {
		err = perl.Fail("no rule at position %d", pos)
	}
	return f, rules, pos, err
}

// apiRule is GET …/rules/{pos}. The position comes back as it was asked for: text.
func apiRule(_ *core.World, c *core.Call) (any, error) {
	_, rules, pos, err := ruleAt(c)
	if err != nil {
		return nil, err
	}
	return showRule((*rules)[pos], c.In["pos"], listDigest(*rules...)), nil
}

// apiSetRule is PUT …/rules/{pos}: it changes a rule, or moves it.
func apiSetRule(_ *core.World, c *core.Call) (any, error) {
	f, rules, pos, err := ruleAt(c)
	if err != nil {
		return nil, err
	}
	rule := (*rules)[pos]
	if c.Has("moveto") && c.Num("moveto", 0) != pos {
		to := c.Num("moveto", 0)
		*rules = slices.Delete(*rules, pos, pos+1)
		if to > pos {
			to--
		}
		*rules = slices.Insert(*rules, min(max(to, 0), len(*rules)), rule)
		return nil, nil
	}
	changed := maps.Clone(rule)
	setRule(c, changed)
	if err := dropFromRule(c, changed); err != nil {
		return nil, err
	}
	if err := verifyRule(c, f, changed); err != nil {
		return nil, err
	}
	(*rules)[pos] = changed
	return nil, nil
}

// apiDeleteRule is DELETE …/rules/{pos}.
func apiDeleteRule(_ *core.World, c *core.Call) (any, error) {
	_, rules, pos, err := ruleAt(c)
	if err != nil {
		return nil, err
	}
	*rules = slices.Delete(*rules, pos, pos+1)
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
