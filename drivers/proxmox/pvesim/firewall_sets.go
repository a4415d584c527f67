package pvesim

import (
	"maps"
	"net/netip"
	"regexp"
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

// showAlias shows an alias, in a list with the digest of the list.
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
	f.aliases[name] = c.alias(c.in["name"])
	return nil, nil
}

// alias is what a call says of an alias. A change says all of it: a comment that is not
// said again is gone (register_update_alias in PVE/API2/Firewall/Aliases.pm).
func (c *call) alias(name string) config {
	alias := config{"name": name, "cidr": cleanAddress(c.in["cidr"])}
	if comment := c.in["comment"]; isTrue(comment) && strings.TrimSpace(comment) != "" {
		alias["comment"] = strings.TrimSpace(comment)
	}
	return alias
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
		return nil, nil, badParam("name", "no such alias")
	}
	return f, alias, nil
}

func apiAlias(_ *world, c *call) (any, error) {
	f, alias, err := c.aliasAt()
	if err != nil {
		return nil, err
	}
	return f.showAlias(alias, false), nil
}

func apiSetAlias(_ *world, c *call) (any, error) {
	f, _, err := c.aliasAt()
	if err != nil {
		return nil, err
	}
	name := c.in["name"]
	if to := c.in["rename"]; to != "" && !strings.EqualFold(to, name) {
		if f.aliases[strings.ToLower(to)] != nil {
			return nil, badParam("name", "alias '"+to+"' already exists")
		}
		delete(f.aliases, strings.ToLower(name))
		name = to
	}
	f.aliases[strings.ToLower(name)] = c.alias(name)
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
	kept := strings.ToLower(name) // The names of the file are read in lower case.
	if old == "" {
		if f.ipsets[name] != nil {
			return nil, badParam("name", "IPSet '"+name+"' already exists")
		}
		if f.ipsets[kept] == nil {
			f.ipsets[kept] = &ipset{members: map[string]config{}, comment: comment(c.in["comment"])}
		}
		return nil, nil
	}
	if err := c.modified(listDigest(f.setList()...)); err != nil {
		return nil, err
	}
	set := f.ipsets[old]
	switch {
	case set == nil:
		return nil, badParam("name", "IPSet '"+old+"' does not exist")
	case f.ipsets[name] != nil && name != old:
		return nil, badParam("name", "IPSet '"+name+"' does already exist")
	}
	delete(f.ipsets, old)
	f.ipsets[kept] = set
	if c.has("comment") {
		set.comment = comment(c.in["comment"])
	}
	return nil, nil
}

// comment is a comment behind a line of the file, as it is read again.
func comment(text string) string {
	if !isTrue(text) {
		return ""
	}
	return strings.TrimSpace(text)
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
	cidr := c.in["cidr"]
	if m := aliasName.FindStringSubmatch(cidr); m == nil {
		cidr = cleanAddress(network(cidr))
	} else if !c.w.hasAlias(f, m[1], m[2]) {
		return nil, fail("no such alias '%s'", m[2])
	}
	switch {
	case set.members[cidr] != nil:
		return nil, badParam("cidr", "address '"+cidr+"' already exists")
	case wholeNetwork.MatchString(cidr):
		return nil, badParam("cidr", "a zero prefix is not allowed in ipset entries")
	}
	set.members[cidr] = c.member()
	return nil, nil
}

var wholeNetwork = regexp.MustCompile(`/0+$`)

// hasAlias says whether the firewall of a guest, or that of the cluster, has an alias; the
// scope may leave out one of them (resolve_alias in PVE/Firewall.pm).
func (w *world) hasAlias(f *firewall, scope, name string) bool {
	cluster := firewallsOf(w)["cluster"]
	name = strings.ToLower(name)
	own := scope != "dc/" && f != cluster && f.aliases[name] != nil
	return own || scope != "guest/" && cluster != nil && cluster.aliases[name] != nil
}

// network is the address of a network without the bits that are of a host in it (clean_cidr
// in PVE/Firewall.pm).
func network(text string) string {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return text
	}
	return prefix.Masked().String()
}

// member is what a call says of an address of a set: all of it.
func (c *call) member() config {
	member := config{}
	if c.flag("nomatch") {
		member["nomatch"] = "1"
	}
	if text := comment(c.in["comment"]); text != "" {
		member["comment"] = text
	}
	return member
}

// memberAt is the address of a call in its set, as the set has it. One that is not there
// is no mistake of who deletes it.
func (c *call) memberAt() (*ipset, string, error) {
	_, set, err := c.ipsetAt()
	if err == nil && c.req.method != "GET" {
		err = c.modified(listDigest(set.memberList()...))
	}
	if err != nil {
		return nil, "", err
	}
	cidr := c.in["cidr"]
	if set.members[cidr] == nil && c.req.method != "DELETE" {
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
		set.members[cidr] = c.member()
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
	cluster := firewallsOf(w)["cluster"]
	list := cluster.refs("dc", c.in["type"])
	if f != cluster {
		list = append(list, f.refs("guest", c.in["type"])...)
	}
	return list, nil
}

// refs are the sets and aliases of a firewall as rules name them (collect_refs in
// PVE/Firewall/Helpers.pm).
func (f *firewall) refs(scope, kind string) []map[string]any {
	list := []map[string]any{}
	if f == nil {
		return list
	}
	add := func(kind, name, ref, comment string) {
		entry := map[string]any{"type": kind, "name": name, "ref": ref, "scope": scope}
		if comment != "" {
			entry["comment"] = comment
		}
		list = append(list, entry)
	}
	for _, name := range slices.Sorted(maps.Keys(f.ipsets)) {
		if kind == "" || kind == "ipset" {
			add("ipset", name, "+"+name, f.ipsets[name].comment)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		if kind == "" || kind == "alias" {
			add("alias", name, name, f.aliases[name]["comment"])
		}
	}
	return list
}
