package cluster

import (
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiAliases is GET …/aliases.
func apiAliases(_ *core.World, _ *core.Call, f *firewall) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		list = append(list, f.showAlias(f.aliases[name], true))
	}
	return list, nil
}

// showAlias shows an alias, in a list with the digest of the list.
func (f *firewall) showAlias(alias perl.Config, digest bool) map[string]any {
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
func apiAddAlias(_ *core.World, c *core.Call, f *firewall) (any, error) {
	name := strings.ToLower(c.In["name"])
	if f.aliases[name] != nil {
		return nil, perl.BadParam("name", "alias '"+c.In["name"]+"' already exists")
	}
	f.aliases[name] = alias(c, c.In["name"])
	return nil, nil
}

// alias returns an alias as a call describes it. A change says all of it: a comment that is not
// said again is gone (register_update_alias in PVE/API2/Firewall/Aliases.pm).
func alias(c *core.Call, name string) perl.Config {
	alias := perl.Config{"name": name, "cidr": cleanAddress(c.In["cidr"])}
	if comment := c.In["comment"]; perl.IsTrue(comment) && strings.TrimSpace(comment) != "" {
		alias["comment"] = strings.TrimSpace(comment)
	}
	return alias
}

// aliasOfCall finds the firewall of an alias, which must be there for who does not delete it.
func aliasOfCall(c *core.Call) (*firewall, error) {
	f, err := fileOfCall(c)
	if err == nil && c.Req.Method != http.MethodGet {
		err = c.Modified(listDigest(f.aliasList()...))
	}
	if err == nil && f.aliases[strings.ToLower(c.In["name"])] == nil && c.Req.Method != http.MethodDelete {
		err = perl.BadParam("name", "no such alias")
	}
	return f, err
}

func apiAlias(_ *core.World, c *core.Call, f *firewall) (any, error) {
	return f.showAlias(f.aliases[strings.ToLower(c.In["name"])], false), nil
}

func apiSetAlias(_ *core.World, c *core.Call, f *firewall) (any, error) {
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

// apiDeleteAlias is DELETE …/aliases/{name}; a missing one is not an error.
func apiDeleteAlias(_ *core.World, c *core.Call, f *firewall) (any, error) {
	delete(f.aliases, strings.ToLower(c.In["name"]))
	return nil, nil
}

// apiIPSets is GET …/ipset, apiSecurityGroups GET /cluster/firewall/groups.
func apiIPSets(_ *core.World, _ *core.Call, f *firewall) (any, error) {
	return showNames("name", f.ipsets), nil
}

func apiSecurityGroups(_ *core.World, _ *core.Call, f *firewall) (any, error) {
	return showNames("group", f.groups), nil
}

// KeepIPSet keeps a set of the cluster that another host had.
func KeepIPSet(w *core.World, name, comment string, members map[string]perl.Config) {
	if firewallsOf(w)["cluster"] == nil {
		firewallsOf(w)["cluster"] = newFirewall()
	}
	firewallsOf(w)["cluster"].ipsets[name] = &named{comment: comment, members: members}
}

func showNames(key string, all map[string]*named) []map[string]any {
	list, names := []map[string]any{}, nameList(key, all)
	for _, name := range names {
		list = append(list, name.Section(map[string]any{"digest": listDigest(names...)}))
	}
	return list
}

// apiAddIPSet is POST …/ipset, apiAddSecurityGroup POST /cluster/firewall/groups: a new one,
// or another name for one.
func apiAddIPSet(_ *core.World, c *core.Call, f *firewall) (any, error) {
	_, err := addName(c, "name", "IPSet", f.ipsets)
	return nil, err
}

func apiAddSecurityGroup(_ *core.World, c *core.Call, f *firewall) (any, error) {
	old, err := addName(c, "group", "Security group", f.groups)
	if err != nil || old == "" {
		return nil, err
	}
	for _, f := range firewallsOf(c.W) { // Rules that name it follow.
		for _, rule := range f.rules {
			if rule["type"] == "group" && rule["action"] == old {
				rule["action"] = c.In["group"]
			}
		}
	}
	return nil, nil
}

// addName adds what rules name, or renames it; then old is the name it had.
func addName(c *core.Call, key, title string, all map[string]*named) (old string, err error) {
	name, old := c.In[key], c.In["rename"]
	kept := strings.ToLower(name) // The names of the file are read in lower case.
	if old == "" {
		if all[name] != nil {
			return "", perl.BadParam(key, title+" '"+name+"' already exists")
		}
		if all[kept] == nil {
			all[kept] = &named{members: map[string]perl.Config{}, comment: comment(c.In["comment"])}
		}
		return "", nil
	}
	if err := c.Modified(listDigest(nameList(key, all)...)); err != nil {
		return "", err
	}
	found := all[old]
	switch {
	case found == nil:
		return "", perl.BadParam(key, title+" '"+old+"' does not exist")
	case all[name] != nil && name != old:
		return "", perl.BadParam(key, title+" '"+name+"' does already exist")
	}
	delete(all, old)
	all[kept] = found
	if c.Has("comment") {
		found.comment = comment(c.In["comment"])
	}
	return old, nil
}

// apiDeleteSecurityGroup is DELETE /cluster/firewall/groups/{group}.
func apiDeleteSecurityGroup(_ *core.World, c *core.Call, l ruleList) (any, error) {
	if len(*l.rules) > 0 {
		return nil, perl.Fail("Security group '%s' is not empty", c.In["group"])
	}
	delete(l.file.groups, c.In["group"])
	return nil, nil
}

// comment is a comment behind a line of the file, as it is read again.
func comment(text string) string {
	if !perl.IsTrue(text) {
		return ""
	}
	return strings.TrimSpace(text)
}

// member is a set of addresses with its firewall, and perhaps one of the addresses.
type member struct {
	file *firewall
	set  *named
	cidr string
}

func (m member) digest() string { return listDigest(m.set.memberList()...) }

// setOfCall finds the set of a call.
func setOfCall(c *core.Call) (member, error) {
	f, err := fileOfCall(c)
	if err != nil {
		return member{}, err
	}
	if set := f.ipsets[c.In["name"]]; set != nil {
		return member{file: f, set: set}, nil
	}
	return member{}, perl.Fail("no such IPSet '%s'", c.In["name"])
}

// memberOfCall finds the address of a call in its set. Deleting a missing one is not an error.
func memberOfCall(c *core.Call) (member, error) {
	m, err := setOfCall(c)
	if err == nil && c.Req.Method != http.MethodGet {
		err = c.Modified(m.digest())
	}
	if m.cidr = c.In["cidr"]; err == nil && m.set.members[m.cidr] == nil && c.Req.Method != http.MethodDelete {
		err = perl.BadParam("cidr", "no such IP/Network")
	}
	return m, err
}

func apiIPSet(_ *core.World, _ *core.Call, m member) (any, error) {
	list := []map[string]any{}
	for _, cidr := range slices.Sorted(maps.Keys(m.set.members)) {
		list = append(list, showMember(cidr, m.set.members[cidr], m.digest()))
	}
	return list, nil
}

func showMember(cidr string, member perl.Config, digest string) map[string]any {
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
func apiDeleteIPSet(_ *core.World, c *core.Call, m member) (any, error) {
	if len(m.set.members) > 0 && !c.Flag("force") {
		return nil, perl.Fail("IPSet '%s' is not empty", c.In["name"])
	}
	delete(m.file.ipsets, c.In["name"])
	return nil, nil
}

func apiAddMember(_ *core.World, c *core.Call, m member) (any, error) {
	cidr := c.In["cidr"]
	if parts := aliasName.FindStringSubmatch(cidr); parts == nil {
		cidr = cleanAddress(network(cidr))
	} else if !hasAlias(c.W, m.file, parts[1], parts[2]) {
		return nil, perl.Fail("no such alias '%s'", parts[2])
	}
	switch {
	case m.set.members[cidr] != nil:
		return nil, perl.BadParam("cidr", "address '"+cidr+"' already exists")
	case wholeNetwork.MatchString(cidr):
		return nil, perl.BadParam("cidr", "a zero prefix is not allowed in ipset entries")
	}
	m.set.members[cidr] = said(c)
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

// said is the entry of an address in a set, with all values of a call.
func said(c *core.Call) perl.Config {
	member := perl.Config{}
	if c.Flag("nomatch") {
		member["nomatch"] = "1"
	}
	if text := comment(c.In["comment"]); text != "" {
		member["comment"] = text
	}
	return member
}

func apiMember(_ *core.World, _ *core.Call, m member) (any, error) {
	return showMember(m.cidr, m.set.members[m.cidr], m.digest()), nil
}

func apiSetMember(_ *core.World, c *core.Call, m member) (any, error) {
	m.set.members[m.cidr] = said(c)
	return nil, nil
}

func apiDeleteMember(_ *core.World, _ *core.Call, m member) (any, error) {
	delete(m.set.members, m.cidr)
	return nil, nil
}

// apiRefs is GET …/refs: what rules can name.
func apiRefs(_ *core.World, c *core.Call, f *firewall) (any, error) {
	cluster := firewallsOf(c.W)["cluster"]
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
