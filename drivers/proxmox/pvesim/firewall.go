package pvesim

import (
	//nolint:gosec // PVE's digest is SHA-1.

	"fmt"
	"maps"
	"slices"
	"strings"
)

// firewall is one file of the firewall: the cluster's, a node's or a guest's. It is
// kept and shown; no packet is ever filtered.
type firewall struct {
	options config
	rules   []config
	aliases map[string]config // By name in lower case.
	ipsets  map[string]*ipset
	groups  map[string]*securityGroup // Of the cluster alone.
}

// ipset is a set of addresses, securityGroup a security group: rules that others name.
type (
	ipset struct {
		comment string
		members map[string]config // By address.
	}
	securityGroup struct {
		comment string
		rules   []config
	}
)

func newFirewall() *firewall {
	return &firewall{options: config{}, aliases: map[string]config{}, ipsets: map[string]*ipset{}, groups: map[string]*securityGroup{}}
}

// firewalls are all files, by what they are of: the cluster's, those of nodes by name and
// those of guests by their path.
type firewalls struct{ of map[string]*firewall }

func firewallsOf(w *world) map[string]*firewall {
	all := partOf[firewalls](&w.parts)
	if all.of == nil {
		all.of = map[string]*firewall{}
	}
	return all.of
}

// beginFirewall keeps the files of guests with them.
func beginFirewall(w *world) {
	w.hooks.cloned = append(w.hooks.cloned, w.copyFirewall)
	w.hooks.removed = append(w.hooks.removed, func(g *guest) { delete(firewallsOf(w), vmPath(g.vmid)) })
}

// copyFirewall gives a clone the rules of its source.
func (w *world) copyFirewall(from, to *guest) {
	f := firewallsOf(w)[vmPath(from.vmid)]
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
		members := map[string]config{}
		for cidr, member := range set.members {
			members[cidr] = maps.Clone(member)
		}
		copied.ipsets[name] = &ipset{set.comment, members}
	}
	firewallsOf(w)[vmPath(to.vmid)] = copied
}

// firewall is that of a call: of the guest or node of its path, else the cluster's. A
// guest's is a file of its number, and nobody asks whether the guest is there
// (load_vmfw_conf in PVE/Firewall.pm).
func (c *call) firewall() (*firewall, error) {
	w := c.w
	key := "cluster"
	switch {
	case strings.Contains(c.m.Path, "{vmid}"):
		key = vmPath(c.vmid())
	case c.in["node"] != "":
		key = c.in["node"]
	}
	if firewallsOf(w)[key] == nil {
		firewallsOf(w)[key] = newFirewall()
	}
	if c.req.method != "GET" {
		return firewallsOf(w)[key], w.needQuorum()
	}
	return firewallsOf(w)[key], nil
}

// apiFirewallIndex is GET …/firewall.
func apiFirewallIndex(_ *world, c *call) (any, error) {
	names := []string{"rules", "aliases", "ipset", "refs", "options"}
	switch {
	case c.m.Path == "/cluster/firewall":
		names = append(names, "groups", "macros")
	case !strings.Contains(c.m.Path, "{vmid}"):
		names = []string{"rules", "options", "log"}
	}
	return subdirs("name", names...), nil
}

// apiFirewallOptions is GET …/firewall/options.
func apiFirewallOptions(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	entry := typedBy("PUT "+c.m.Path, f.options)
	entry["digest"] = listDigest(f.options)
	return entry, nil
}

// apiSetFirewallOptions is PUT …/firewall/options.
func apiSetFirewallOptions(w *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	if err := c.modified(listDigest(f.options)); err != nil {
		return nil, err
	}
	for _, option := range c.list("delete") {
		if _, known := c.m.Param(option); !known || option == "delete" || option == "digest" {
			return nil, badParam("delete", "no such option '"+option+"'")
		}
	}
	c.update(f.options, "node", "vmid")
	if c.num("enable", 0) > 1 {
		f.options["enable"] = fmt.Sprint(w.now.Unix())
	}
	return nil, nil
}

// ruleList are the rules that a call is about: those of the file or of a group.
func (c *call) ruleList() (f *firewall, rules *[]config, err error) {
	if f, err = c.firewall(); err != nil {
		return nil, nil, err
	}
	if !strings.Contains(c.m.Path, "/firewall/groups/{group}") {
		return f, &f.rules, nil
	}
	g := f.groups[c.in["group"]]
	if g == nil {
		return nil, nil, fail("no such security group '%s'", c.in["group"])
	}
	return f, &g.rules, nil
}

func showRule(rule config, pos any, digest string) map[string]any {
	entry := typedBy("POST /cluster/firewall/rules", rule)
	entry["pos"], entry["digest"] = pos, digest
	if version := rule["ipversion"]; version != "" {
		entry["ipversion"] = atoi(version)
	}
	return entry
}

// apiRules is GET …/rules.
func apiRules(_ *world, c *call) (any, error) {
	_, rules, err := c.ruleList()
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
func apiAddRule(_ *world, c *call) (any, error) {
	f, rules, err := c.ruleList()
	if err != nil {
		return nil, err
	}
	rule := config{}
	c.setRule(rule)
	if err := c.verifyRule(f, rule); err != nil {
		return nil, err
	}
	if c.in["enable"] == "" {
		rule["enable"] = "0"
	}
	*rules = slices.Insert(*rules, 0, rule)
	return nil, nil
}

// ruleAt is the rule of a call, with its list.
func (c *call) ruleAt() (f *firewall, rules *[]config, pos int, err error) {
	f, rules, err = c.ruleList()
	if err == nil && c.req.method != "GET" {
		err = c.modified(listDigest(*rules...))
	}
	if pos = c.num("pos", -1); err == nil && (pos < 0 || pos >= len(*rules)) {
		err = fail("no rule at position %d", pos)
	}
	return f, rules, pos, err
}

// apiRule is GET …/rules/{pos}. The position comes back as it was asked for: text.
func apiRule(_ *world, c *call) (any, error) {
	_, rules, pos, err := c.ruleAt()
	if err != nil {
		return nil, err
	}
	return showRule((*rules)[pos], c.in["pos"], listDigest(*rules...)), nil
}

// apiSetRule is PUT …/rules/{pos}: it changes a rule, or moves it.
func apiSetRule(_ *world, c *call) (any, error) {
	f, rules, pos, err := c.ruleAt()
	if err != nil {
		return nil, err
	}
	rule := (*rules)[pos]
	if c.has("moveto") && c.num("moveto", 0) != pos {
		to := c.num("moveto", 0)
		*rules = slices.Delete(*rules, pos, pos+1)
		if to > pos {
			to--
		}
		*rules = slices.Insert(*rules, min(max(to, 0), len(*rules)), rule)
		return nil, nil
	}
	changed := maps.Clone(rule)
	c.setRule(changed)
	if err := c.dropFromRule(changed); err != nil {
		return nil, err
	}
	if err := c.verifyRule(f, changed); err != nil {
		return nil, err
	}
	(*rules)[pos] = changed
	return nil, nil
}

// apiDeleteRule is DELETE …/rules/{pos}.
func apiDeleteRule(_ *world, c *call) (any, error) {
	_, rules, pos, err := c.ruleAt()
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
