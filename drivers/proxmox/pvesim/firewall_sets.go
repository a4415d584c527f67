package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// apiAliases is GET …/aliases.
func apiAliases(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		list = append(list, f.showAlias(f.aliases[name], true))
	}
	return list, nil
}

func (f *firewall) showAlias(alias config, digest bool) map[string]any {
	version := 4
	if strings.Contains(alias["cidr"], ":") {
		version = 6
	}
	entry := map[string]any{"ipversion": version}
	for key, value := range alias {
		entry[key] = value
	}
	if digest {
		entry["digest"] = listDigest(f.aliasList()...)
	}
	return entry
}

// apiAddAlias is POST …/aliases.
func apiAddAlias(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(c.in["name"])
	if f.aliases[name] != nil {
		return nil, badParam("name", "alias '"+c.in["name"]+"' already exists")
	}
	alias := config{"name": c.in["name"]}
	f.aliases[name] = alias
	c.setAlias(alias)
	return nil, nil
}

func (c *call) setAlias(alias config) {
	if c.has("comment") {
		alias["comment"] = c.in["comment"]
	}
	if c.has("cidr") {
		alias["cidr"] = cleanAddress(c.in["cidr"])
	}
}

// aliasAt is the alias of a call.
func (c *call) aliasAt() (*firewall, config, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, nil, err
	}
	if c.req.method != "GET" {
		if err := c.modified(listDigest(f.aliasList()...)); err != nil {
			return nil, nil, err
		}
	}
	alias := f.aliases[strings.ToLower(c.in["name"])]
	if alias == nil && c.req.method != "DELETE" {
		return nil, nil, badParam("name", "no such alias '"+c.in["name"]+"'")
	}
	return f, alias, nil
}

func apiAlias(_ *world, c *call) (any, error) {
	f, alias, err := c.aliasAt()
	if err != nil {
		return nil, err
	}
	return f.showAlias(alias, true), nil
}

func apiSetAlias(_ *world, c *call) (any, error) {
	f, alias, err := c.aliasAt()
	if err != nil {
		return nil, err
	}
	if to := c.in["rename"]; to != "" && !strings.EqualFold(to, c.in["name"]) {
		if f.aliases[strings.ToLower(to)] != nil {
			return nil, badParam("name", "alias '"+to+"' already exists")
		}
		delete(f.aliases, strings.ToLower(c.in["name"]))
		alias["name"] = to
		f.aliases[strings.ToLower(to)] = alias
	}
	c.setAlias(alias)
	return nil, nil
}

// apiDeleteAlias is DELETE …/aliases/{name}; one that is not there is no mistake.
func apiDeleteAlias(_ *world, c *call) (any, error) {
	f, _, err := c.aliasAt()
	if err == nil {
		delete(f.aliases, strings.ToLower(c.in["name"]))
	}
	return nil, err
}

// apiIPSets is GET …/ipset.
func apiIPSets(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(f.ipsets)) {
		entry := map[string]any{"name": name, "digest": listDigest(f.setList()...)}
		if comment := f.ipsets[name].comment; comment != "" {
			entry["comment"] = comment
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiAddIPSet is POST …/ipset: a new set, or another name for one.
func apiAddIPSet(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	name, old := c.in["name"], c.in["rename"]
	if err := c.modified(listDigest(f.setList()...)); err != nil {
		return nil, err
	}
	switch {
	case old != "" && f.ipsets[old] == nil:
		return nil, badParam("rename", "IPSet '"+old+"' does not exist")
	case old == "" && f.ipsets[name] != nil, old != "" && old != name && f.ipsets[name] != nil:
		return nil, badParam("name", "IPSet '"+name+"' already exists")
	case old != "":
		set := f.ipsets[old]
		delete(f.ipsets, old)
		f.ipsets[name] = set
	default:
		f.ipsets[name] = &ipset{members: map[string]config{}}
	}
	if c.has("comment") {
		f.ipsets[name].comment = c.in["comment"]
	}
	return nil, nil
}

// ipsetAt is the set of a call.
func (c *call) ipsetAt() (*firewall, *ipset, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, nil, err
	}
	if set := f.ipsets[c.in["name"]]; set != nil {
		return f, set, nil
	}
	return nil, nil, fail("no such IPSet '%s'", c.in["name"])
}

func apiIPSet(_ *world, c *call) (any, error) {
	_, set, err := c.ipsetAt()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, cidr := range slices.Sorted(maps.Keys(set.members)) {
		list = append(list, showMember(cidr, set.members[cidr], listDigest(set.memberList()...)))
	}
	return list, nil
}

func showMember(cidr string, member config, digest string) map[string]any {
	entry := map[string]any{"cidr": cidr, "digest": digest}
	if member["nomatch"] == "1" {
		entry["nomatch"] = 1
	}
	if member["comment"] != "" {
		entry["comment"] = member["comment"]
	}
	return entry
}

// apiDeleteIPSet is DELETE …/ipset/{name}: an empty one, or with force any.
func apiDeleteIPSet(_ *world, c *call) (any, error) {
	f, set, err := c.ipsetAt()
	if err != nil {
		return nil, err
	}
	if len(set.members) > 0 && !c.flag("force") {
		return nil, fail("IPSet '%s' is not empty", c.in["name"])
	}
	delete(f.ipsets, c.in["name"])
	return nil, nil
}

func apiAddMember(_ *world, c *call) (any, error) {
	f, set, err := c.ipsetAt()
	if err != nil {
		return nil, err
	}
	cidr := cleanAddress(c.in["cidr"])
	if m := aliasName.FindStringSubmatch(cidr); m != nil && c.verifyAddress(f, "cidr", cidr) != nil {
		return nil, fail("no such alias '%s'", strings.ToLower(m[2]))
	}
	switch {
	case set.members[cidr] != nil:
		return nil, badParam("cidr", "address '"+cidr+"' already exists")
	case strings.HasSuffix(cidr, "/0"):
		return nil, badParam("cidr", "a zero prefix is not allowed in ipset entries")
	}
	member := config{}
	c.update(member, "node", "vmid", "name", "cidr")
	set.members[cidr] = member
	return nil, nil
}

// memberAt is the address of a call in its set.
func (c *call) memberAt() (*ipset, string, error) {
	_, set, err := c.ipsetAt()
	if err == nil && c.req.method != "GET" {
		err = c.modified(listDigest(set.memberList()...))
	}
	if err != nil {
		return nil, "", err
	}
	cidr := cleanAddress(c.in["cidr"])
	if set.members[cidr] == nil {
		return nil, "", badParam("cidr", "no such IP/Network")
	}
	return set, cidr, nil
}

func apiMember(_ *world, c *call) (any, error) {
	set, cidr, err := c.memberAt()
	if err != nil {
		return nil, err
	}
	return showMember(cidr, set.members[cidr], listDigest(set.memberList()...)), nil
}

func apiSetMember(_ *world, c *call) (any, error) {
	set, cidr, err := c.memberAt()
	if err == nil {
		c.update(set.members[cidr], "node", "vmid", "name", "cidr")
	}
	return nil, err
}

func apiDeleteMember(_ *world, c *call) (any, error) {
	set, cidr, err := c.memberAt()
	if err == nil {
		delete(set.members, cidr)
	}
	return nil, err
}

// apiRefs is GET …/refs: what rules can name.
func apiRefs(w *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	scopes := map[string]*firewall{"guest": f, "dc": w.firewalls["cluster"]}
	if c.m.Path == "/cluster/firewall/refs" {
		scopes = map[string]*firewall{"dc": f}
	}
	for _, scope := range slices.Sorted(maps.Keys(scopes)) {
		list = append(list, scopes[scope].refs(scope, c.in["type"])...)
	}
	return list, nil
}

func (f *firewall) refs(scope, kind string) []map[string]any {
	list := []map[string]any{}
	if f == nil {
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(f.ipsets)) {
		if kind == "" || kind == "ipset" {
			list = append(list, map[string]any{"type": "ipset", "name": name, "ref": "+" + scope + "/" + name, "scope": scope, "comment": f.ipsets[name].comment})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		if alias := f.aliases[name]; kind == "" || kind == "alias" {
			list = append(list, map[string]any{"type": "alias", "name": alias["name"], "ref": scope + "/" + name, "scope": scope, "comment": alias["comment"]})
		}
	}
	return list
}

// apiSecurityGroups is GET /cluster/firewall/groups.
func apiSecurityGroups(_ *world, c *call) (any, error) {
	f, err := c.firewall()
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
func apiAddSecurityGroup(_ *world, c *call) (any, error) {
	f, err := c.firewall()
	if err != nil {
		return nil, err
	}
	name, old := c.in["group"], c.in["rename"]
	if err := c.modified(listDigest(f.groupList()...)); err != nil {
		return nil, err
	}
	g := f.groups[old]
	switch {
	case old != "" && g == nil:
		return nil, badParam("rename", "Security group '"+old+"' does not exist")
	case old != name && f.groups[name] != nil:
		return nil, badParam("group", "Security group '"+name+"' already exists")
	case old == "":
		g = &securityGroup{}
	}
	delete(f.groups, old)
	f.groups[name] = g
	if c.has("comment") {
		g.comment = c.in["comment"]
	}
	return nil, nil
}

// apiDeleteSecurityGroup is DELETE /cluster/firewall/groups/{group}.
func apiDeleteSecurityGroup(_ *world, c *call) (any, error) {
	f, rules, err := c.ruleList()
	if err != nil {
		return nil, err
	}
	if len(*rules) > 0 {
		return nil, fail("Security group '%s' is not empty", c.in["group"])
	}
	delete(f.groups, c.in["group"])
	return nil, nil
}

// firewallRoutes are the calls about a firewall, behind the path of what it guards.
// The API table says which of them are there for which.
var firewallRoutes = map[string]handler{
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
