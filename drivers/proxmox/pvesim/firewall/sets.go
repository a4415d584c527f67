package firewall

import (
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiAliases is GET …/aliases.
func apiAliases(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
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
func (f *firewall) showAlias(alias property.Config, digest bool) map[string]any {
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
func apiAddAlias(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(c.In["name"])
	if f.aliases[name] != nil {
		return nil, perl.BadParam("name", "alias '"+c.In["name"]+"' already exists")
	}
	f.aliases[name] = alias(c, c.In["name"])
	return nil, nil
}

// alias is what a call says of an alias. A change says all of it: a comment that is not
// said again is gone (register_update_alias in PVE/API2/Firewall/Aliases.pm).
func alias(c *core.Call, name string) property.Config {
	alias := property.Config{"name": name, "cidr": cleanAddress(c.In["cidr"])}
	if comment := c.In["comment"]; perl.IsTrue(comment) && strings.TrimSpace(comment) != "" {
		alias["comment"] = strings.TrimSpace(comment)
	}
	return alias
}

// aliasAt is the alias of a call.
func aliasAt(c *core.Call) (*firewall, property.Config, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, nil, err
	}
	if c.Req.Method != http.MethodGet {
		if err := c.Modified(listDigest(f.aliasList()...)); err != nil {
			return nil, nil, err
		}
	}
	alias := f.aliases[strings.ToLower(c.In["name"])]
	if alias == nil && c.Req.Method != http.MethodDelete {
		return nil, nil, perl.BadParam("name", "no such alias")
	}
	return f, alias, nil
}

func apiAlias(_ *core.World, c *core.Call) (any, error) {
	f, alias, err := aliasAt(c)
	if err != nil {
		return nil, err
	}
	return f.showAlias(alias, false), nil
}

func apiSetAlias(_ *core.World, c *core.Call) (any, error) {
	f, _, err := aliasAt(c)
	if err != nil {
		return nil, err
	}
	name := c.In["name"]
	if to := c.In["rename"]; to != "" && !strings.EqualFold(to, name) {
		if f.aliases[strings.ToLower(to)] != nil {
			return nil, perl.BadParam("name", "alias '"+to+"' already exists")
		}
		delete(f.aliases, strings.ToLower(name))
		name = to
	}
	f.aliases[strings.ToLower(name)] = alias(c, name)
	return nil, nil
}

// apiDeleteAlias is DELETE …/aliases/{name}; one that is not there is no mistake.
func apiDeleteAlias(_ *core.World, c *core.Call) (any, error) {
	f, _, err := aliasAt(c)
	if err == nil {
		delete(f.aliases, strings.ToLower(c.In["name"]))
	}
	return nil, err
}

// apiIPSets is GET …/ipset.
func apiIPSets(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
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
func apiAddIPSet(_ *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	name, old := c.In["name"], c.In["rename"]
	kept := strings.ToLower(name) // The names of the file are read in lower case.
	if old == "" {
		if f.ipsets[name] != nil {
			return nil, perl.BadParam("name", "IPSet '"+name+"' already exists")
		}
		if f.ipsets[kept] == nil {
			f.ipsets[kept] = &ipset{members: map[string]property.Config{}, comment: comment(c.In["comment"])}
		}
		return nil, nil
	}
	if err := c.Modified(listDigest(f.setList()...)); err != nil {
		return nil, err
	}
	set := f.ipsets[old]
	switch {
	case set == nil:
		return nil, perl.BadParam("name", "IPSet '"+old+"' does not exist")
	case f.ipsets[name] != nil && name != old:
		return nil, perl.BadParam("name", "IPSet '"+name+"' does already exist")
	}
	delete(f.ipsets, old)
	f.ipsets[kept] = set
	if c.Has("comment") {
		set.comment = comment(c.In["comment"])
	}
	return nil, nil
}

// comment is a comment behind a line of the file, as it is read again.
func comment(text string) string {
	if !perl.IsTrue(text) {
		return ""
	}
	return strings.TrimSpace(text)
}

// ipsetAt is the set of a call.
func ipsetAt(c *core.Call) (*firewall, *ipset, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, nil, err
	}
	if set := f.ipsets[c.In["name"]]; set != nil {
		return f, set, nil
	}
	return nil, nil, perl.Fail("no such IPSet '%s'", c.In["name"])
}

func apiIPSet(_ *core.World, c *core.Call) (any, error) {
	_, set, err := ipsetAt(c)
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, cidr := range slices.Sorted(maps.Keys(set.members)) {
		list = append(list, showMember(cidr, set.members[cidr], listDigest(set.memberList()...)))
	}
	return list, nil
}

func showMember(cidr string, member property.Config, digest string) map[string]any {
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
func apiDeleteIPSet(_ *core.World, c *core.Call) (any, error) {
	f, set, err := ipsetAt(c)
	if err != nil {
		return nil, err
	}
	if len(set.members) > 0 && !c.Flag("force") {
		return nil, perl.Fail("IPSet '%s' is not empty", c.In["name"])
	}
	delete(f.ipsets, c.In["name"])
	return nil, nil
}

func apiAddMember(_ *core.World, c *core.Call) (any, error) {
	f, set, err := ipsetAt(c)
	if err != nil {
		return nil, err
	}
	cidr := c.In["cidr"]
	if m := aliasName.FindStringSubmatch(cidr); m == nil {
		cidr = cleanAddress(network(cidr))
	} else if !hasAlias(c.W, f, m[1], m[2]) {
		return nil, perl.Fail("no such alias '%s'", m[2])
	}
	switch {
	case set.members[cidr] != nil:
		return nil, perl.BadParam("cidr", "address '"+cidr+"' already exists")
	case wholeNetwork.MatchString(cidr):
		return nil, perl.BadParam("cidr", "a zero prefix is not allowed in ipset entries")
	}
	set.members[cidr] = member(c)
	return nil, nil
}

var wholeNetwork = regexp.MustCompile(`/0+$`)

// hasAlias says whether the firewall of a guest, or that of the cluster, has an alias; the
// scope may leave out one of them (resolve_alias in PVE/Firewall.pm).
func hasAlias(w *core.World, f *firewall, scope, name string) bool {
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
func member(c *core.Call) property.Config {
	member := property.Config{}
	if c.Flag("nomatch") {
		member["nomatch"] = "1"
	}
	if text := comment(c.In["comment"]); text != "" {
		member["comment"] = text
	}
	return member
}

// memberAt is the address of a call in its set, as the set has it. One that is not there
// is no mistake of who deletes it.
func memberAt(c *core.Call) (*ipset, string, error) {
	_, set, err := ipsetAt(c)
	if err == nil && c.Req.Method != http.MethodGet {
		err = c.Modified(listDigest(set.memberList()...))
	}
	if err != nil {
		return nil, "", err
	}
	cidr := c.In["cidr"]
	if set.members[cidr] == nil && c.Req.Method != http.MethodDelete {
		return nil, "", perl.BadParam("cidr", "no such IP/Network")
	}
	return set, cidr, nil
}

func apiMember(_ *core.World, c *core.Call) (any, error) {
	set, cidr, err := memberAt(c)
	if err != nil {
		return nil, err
	}
	return showMember(cidr, set.members[cidr], listDigest(set.memberList()...)), nil
}

func apiSetMember(_ *core.World, c *core.Call) (any, error) {
	set, cidr, err := memberAt(c)
	if err == nil {
		set.members[cidr] = member(c)
	}
	return nil, err
}

func apiDeleteMember(_ *core.World, c *core.Call) (any, error) {
	set, cidr, err := memberAt(c)
	if err == nil {
		delete(set.members, cidr)
	}
	return nil, err
}

// apiRefs is GET …/refs: what rules can name.
func apiRefs(w *core.World, c *core.Call) (any, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return nil, err
	}
	cluster := firewallsOf(w)["cluster"]
	list := cluster.refs("dc", c.In["type"])
	if f != cluster {
		list = append(list, f.refs("guest", c.In["type"])...)
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
