package pvesim

import (
	"crypto/sha1" //nolint:gosec // PVE's digest is SHA-1.
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
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

// text renders the file, for its digest.
func (f *firewall) text() string {
	var b strings.Builder
	section := func(name string, c config) {
		if len(c) > 0 {
			b.WriteString("\n[" + name + "]\n\n")
			writeSection(&b, c, true)
		}
	}
	section("OPTIONS", f.options)
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		section("ALIAS "+name, f.aliases[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.ipsets)) {
		b.WriteString("\n[IPSET " + name + "] # " + f.ipsets[name].comment + "\n\n")
		for _, cidr := range slices.Sorted(maps.Keys(f.ipsets[name].members)) {
			section(cidr, f.ipsets[name].members[cidr])
			b.WriteString(cidr + "\n")
		}
	}
	for n, rule := range f.rules {
		section(fmt.Sprint("RULE ", n), rule)
	}
	for _, name := range slices.Sorted(maps.Keys(f.groups)) {
		b.WriteString("\n[group " + name + "] # " + f.groups[name].comment + "\n")
		for n, rule := range f.groups[name].rules {
			section(fmt.Sprint("RULE ", n), rule)
		}
	}
	return b.String()
}

// copyFirewall gives a clone the rules of its source.
func (w *world) copyFirewall(from, to *guest) {
	f := w.firewalls[vmPath(from.vmid)]
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
	w.firewalls[vmPath(to.vmid)] = copied
}

func (f *firewall) digest() string { return sumOf(f.text()) }

// sumOf is the digest of a text.
func sumOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // As above.
	return hex.EncodeToString(sum[:])
}

// firewall is that of a call: of the guest or node of its path, else the cluster's.
func (c *call) firewall() (*firewall, error) {
	w := c.w
	key := "cluster"
	switch {
	case strings.Contains(c.m.Path, "{vmid}"):
		if _, err := c.guestCall(); err != nil {
			return nil, err
		}
		key = vmPath(c.vmid())
	case c.in["node"] != "":
		key = c.in["node"]
	}
	if w.firewalls[key] == nil {
		w.firewalls[key] = newFirewall()
	}
	f := w.firewalls[key]
	if c.req.method != "GET" {
		if err := c.modified(f.digest()); err != nil {
			return nil, err
		}
		return f, w.needQuorum()
	}
	return f, nil
}

// typedBy shows values in the types that the parameters of another method have.
func typedBy(name string, conf config) map[string]any {
	m := method(name)
	entry := map[string]any{}
	for key, value := range conf {
		entry[key] = value
		if v, ok := m.Param(key); ok && (v.Type == "integer" || v.Type == "boolean") {
			entry[key] = atoi(value)
		}
	}
	return entry
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
	entry["digest"] = f.digest()
	return entry, nil
}

// apiSetFirewallOptions is PUT …/firewall/options.
func apiSetFirewallOptions(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	c.update(f.options, "node", "vmid")
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
	return entry
}

// apiRules is GET …/rules.
func apiRules(_ *world, c *call) (any, error) {
	f, rules, err := c.ruleList()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for n, rule := range *rules {
		list = append(list, showRule(rule, n, f.digest()))
	}
	return list, nil
}

// apiAddRule is POST …/rules: at the top unless a position is given.
func apiAddRule(_ *world, c *call) (any, error) {
	_, rules, err := c.ruleList()
	if err != nil {
		return nil, err
	}
	rule := config{}
	c.updateRule(rule)
	if c.in["enable"] == "" {
		rule["enable"] = "0"
	}
	*rules = slices.Insert(*rules, min(max(c.num("pos", 0), 0), len(*rules)), rule)
	return nil, nil
}

// ruleAt is the rule of a call, with its list.
func (c *call) ruleAt() (f *firewall, rules *[]config, pos int, err error) {
	f, rules, err = c.ruleList()
	if pos = c.num("pos", -1); err == nil && (pos < 0 || pos >= len(*rules)) {
		err = fail("no rule at position %d", pos)
	}
	return f, rules, pos, err
}

// apiRule is GET …/rules/{pos}. The position comes back as it was asked for: text.
func apiRule(_ *world, c *call) (any, error) {
	f, rules, pos, err := c.ruleAt()
	if err != nil {
		return nil, err
	}
	return showRule((*rules)[pos], c.in["pos"], f.digest()), nil
}

// apiSetRule is PUT …/rules/{pos}: it changes a rule, or moves it.
func apiSetRule(_ *world, c *call) (any, error) {
	_, rules, pos, err := c.ruleAt()
	if err != nil {
		return nil, err
	}
	rule := (*rules)[pos]
	if c.has("moveto") {
		to := c.num("moveto", 0)
		*rules = slices.Delete(*rules, pos, pos+1)
		if to > pos {
			to--
		}
		*rules = slices.Insert(*rules, min(max(to, 0), len(*rules)), rule)
		return nil, nil
	}
	c.updateRule(rule)
	return nil, nil
}

// updateRule takes over the options of a call; one that is empty or a dash is taken
// away (copy_rule_data in PVE/Firewall.pm).
func (c *call) updateRule(rule config) {
	c.update(rule, "node", "vmid", "pos", "group")
	maps.DeleteFunc(rule, func(_, value string) bool { return value == "" || value == "-" })
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

// cleanAddress brings an address or network into the form in which it is kept.
func cleanAddress(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String()
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return a.String()
	}
	return text // A range.
}
