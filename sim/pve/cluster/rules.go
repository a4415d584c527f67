package cluster

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// What PVE checks of rules (verify_rule in PVE/Firewall.pm), and the digests: each list
// of a firewall has its own (copy_list_with_digest), so that a change of the options
// leaves that of the rules alone.

// listDigest is that of a list of entries.
func listDigest(entries ...perl.Config) string {
	var b strings.Builder
	for _, entry := range entries {
		for _, key := range slices.Sorted(maps.Keys(entry)) {
			b.WriteString(key + ":" + entry[key] + "\n")
		}
	}
	return perl.SumOf(b.String())
}

// aliasList are the aliases in their order, memberList the addresses of a set, and nameList
// the names of sets or groups with their comments.
func (f *firewall) aliasList() (list []perl.Config) {
	for _, name := range slices.Sorted(maps.Keys(f.aliases)) {
		list = append(list, f.aliases[name])
	}
	return list
}

func nameList(key string, all map[string]*named) (list []perl.Config) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		entry := perl.Config{key: name}
		if comment := all[name].comment; comment != "" {
			entry["comment"] = comment
		}
		list = append(list, entry)
	}
	return list
}

func (s *named) memberList() (list []perl.Config) {
	for _, cidr := range slices.Sorted(maps.Keys(s.members)) {
		entry := maps.Clone(s.members[cidr])
		entry["cidr"] = cidr
		list = append(list, entry)
	}
	return list
}

var (
	guestDevice  = regexp.MustCompile(`^net\d+$`)
	setReference = regexp.MustCompile(`^\+(guest/|dc/)?([A-Za-z][A-Za-z0-9\-_]+)$`)
	aliasName    = regexp.MustCompile(`^(guest/|dc/)?([A-Za-z][A-Za-z0-9\-_]+)$`)
	numbers      = regexp.MustCompile(`^[0-9/]+$`)
)

// withPorts are the protocols that know ports, protocols some of those of /etc/protocols.
var (
	withPorts = strings.Fields("tcp 6 udp 17 dccp 33 sctp 132 udplite 136")
	protocols = strings.Fields("ip icmp igmp ggp ipencap st tcp egp igp pup udp hmp xns-idp rdp iso-tp4 dccp xtp ddp idpr-cmtp ipv6 ipv6-route " +
		"ipv6-frag idrp rsvp gre esp ah skip ipv6-icmp icmpv6 ipv6-nonxt ipv6-opts rspf vmtp eigrp ospf ax.25 ipip etherip encap pim ipcomp vrrp " +
		"l2tp isis sctp fc mobility-header udplite mpls-in-ip manet hip shim6 wesp rohc ethernet")
	icmpTypes = strings.Fields("any echo-reply destination-unreachable network-unreachable host-unreachable protocol-unreachable port-unreachable " +
		"fragmentation-needed source-route-failed network-unknown host-unknown network-prohibited host-prohibited TOS-network-unreachable " +
		"TOS-host-unreachable communication-prohibited host-precedence-violation precedence-cutoff source-quench redirect network-redirect " +
		"host-redirect TOS-network-redirect TOS-host-redirect echo-request router-advertisement router-solicitation time-exceeded " +
		"ttl-zero-during-transit ttl-zero-during-reassembly parameter-problem ip-header-bad required-option-missing timestamp-request " +
		"timestamp-reply address-mask-request address-mask-reply")
	icmp6Types = strings.Fields("destination-unreachable no-route communication-prohibited beyond-scope address-unreachable port-unreachable " +
		"failed-policy reject-route packet-too-big time-exceeded ttl-zero-during-transit ttl-zero-during-reassembly parameter-problem bad-header " +
		"unknown-header-type unknown-option echo-request echo-reply router-solicitation router-advertisement neighbor-solicitation " +
		"neighbour-solicitation neighbor-advertisement neighbour-advertisement redirect")
)

// setRule takes over what a call says of a rule; an empty value takes a key away.
func setRule(c *core.Call, rule perl.Config) {
	for key, value := range c.In {
		switch {
		case slices.Contains([]string{"node", "vmid", "pos", "group", "digest", "delete", "moveto"}, key):
		case value == "" || value == "-":
			delete(rule, key)
		default:
			rule[key] = value
		}
	}
}

// ruleTypes are the kinds of rules that each kind of list may have
// ($rule_env_direction_lookup).
var ruleTypes = map[string][]string{
	"ct": {"in", "out", "group"}, "vm": {"in", "out", "group"}, "group": {"in", "out", "forward"},
	"cluster": {"in", "out", "forward", "group"}, "host": {"in", "out", "forward", "group"},
}

// ruleEnv is the kind of list that a call is about.
func ruleEnv(c *core.Call) string {
	switch path := c.M.Path; {
	case strings.Contains(path, "/groups/{group}"):
		return "group"
	case strings.Contains(path, "/lxc/{vmid}"):
		return "ct"
	case strings.Contains(path, "/qemu/{vmid}"):
		return "vm"
	case strings.HasPrefix(path, "/nodes/{node}"):
		return "host"
	default:
		return "cluster"
	}
}

// verifyRule fails for a rule that PVE does not take, and brings its macro into the
// form of the list of macros.
func verifyRule(c *core.Call, f *firewall, rule perl.Config) error {
	env := ruleEnv(c)
	switch kind, action := rule["type"], rule["action"]; {
	case kind == "":
		return perl.BadParam("type", "missing property")
	case action == "":
		return perl.BadParam("action", "missing property")
	case !slices.Contains(ruleTypes[env], kind):
		return perl.BadParam("type", "invalid rule type '"+kind+"' for rule_env '"+env+"'")
	case kind == "forward" && action == "REJECT":
		return perl.BadParam("action", "cannot define REJECT rules on forward chain")
	case kind != "group" && !slices.Contains([]string{"ACCEPT", "DROP", "REJECT"}, action):
		return perl.BadParam("action", "unknown action '"+action+"'")
	}
	if iface := rule["iface"]; iface != "" && env == "group" {
		return perl.BadParam("type", "parameter -i not allowed for this rule type")
	} else if iface != "" && (env == "vm" || env == "ct") && !guestDevice.MatchString(iface) {
		return perl.BadParam("iface", `value does not match the regex pattern 'net\d+'`)
	}
	if macro := rule["macro"]; macro != "" {
		i := slices.IndexFunc(macroNames, func(name string) bool { return strings.EqualFold(name, macro) })
		if i < 0 {
			return perl.BadParam("macro", "unknown macro '"+macro+"'")
		}
		rule["macro"] = macroNames[i]
	}
	if err := verifyPorts(rule); err != nil {
		return err
	}
	for _, key := range []string{"source", "dest"} {
		if err := verifyAddress(c, f, key, rule[key]); err != nil {
			return err
		}
	}
	delete(rule, "ipversion")
	return setVersion(c, f, rule)
}

// setVersion notes which IP a rule is about, if it tells; it is part of what is shown.
func setVersion(c *core.Call, f *firewall, rule perl.Config) error {
	set := func(key, version string) error {
		if version == "" {
			return nil
		}
		if rule["ipversion"] != "" && rule["ipversion"] != version {
			return perl.BadParam(key, "detected mixed ipv4/ipv6 addresses in rule")
		}
		rule["ipversion"] = version
		return nil
	}
	if err := set("proto", map[string]string{"icmp": "4", "icmpv6": "6", "ipv6-icmp": "6"}[rule["proto"]]); err != nil {
		return err
	}
	for _, key := range []string{"source", "dest"} {
		value := rule[key]
		if m := aliasName.FindStringSubmatch(value); m != nil {
			for _, f := range []*firewall{firewallsOf(c.W)["cluster"], f} {
				if f != nil && f.aliases[strings.ToLower(m[2])] != nil {
					value = f.aliases[strings.ToLower(m[2])]["cidr"]
				}
			}
		}
		version := "4"
		if value == "" || strings.HasPrefix(value, "+") {
			version = ""
		} else if strings.Contains(value, ":") {
			version = "6"
		}
		if err := set(key, version); err != nil {
			return err
		}
	}
	return nil
}

// verifyPorts checks protocol, ports and type of ICMP against each other.
func verifyPorts(rule perl.Config) error {
	proto, icmp := rule["proto"], rule["icmp-type"]
	_, err := strconv.ParseUint(proto, 10, 8)
	isICMP := slices.Contains([]string{"icmp", "icmpv6", "ipv6-icmp"}, proto)
	ports := slices.Contains(withPorts, proto)
	switch {
	case proto != "" && err != nil && !slices.Contains(protocols, proto):
		return perl.BadParam("proto", "invalid format - unknown protocol '"+proto+"'\n")
	case rule["dport"] != "" && proto == "":
		return perl.BadParam("proto", "missing property - 'dport' requires this property")
	case rule["dport"] != "" && !ports && !isICMP:
		return perl.BadParam("dport", "protocol '"+proto+"' does not support ports")
	case icmp != "" && !numbers.MatchString(icmp) && !slices.Contains(icmpTypes, icmp) && !slices.Contains(icmp6Types, icmp):
		return perl.BadParam("icmp-type", "invalid format - invalid icmp-type value '"+icmp+"'\n")
	case icmp != "" && !isICMP:
		return perl.BadParam("proto", "missing property - 'icmp-type' requires this property")
	case icmp != "" && rule["dport"] != "":
		return perl.BadParam("icmp-type", "'icmp-type' cannot be specified together with 'dport'")
	case icmp != "" && !numbers.MatchString(icmp) && !slices.Contains(map[bool][]string{true: icmpTypes, false: icmp6Types}[proto == "icmp"], icmp):
		return perl.BadParam("icmp-type", fmt.Sprintf("invalid icmp-type '%s' for proto '%s'", icmp, proto))
	case rule["sport"] != "" && proto == "":
		return perl.BadParam("proto", "missing property - 'sport' requires this property")
	case rule["sport"] != "" && !ports:
		return perl.BadParam("sport", "protocol '"+proto+"' does not support ports")
	}
	return nil
}

// verifyAddress checks that the set or alias that a rule names is there, in the
// firewall of the rule or in that of the cluster.
func verifyAddress(c *core.Call, f *firewall, key, value string) error {
	where := []*firewall{f}
	if cluster := firewallsOf(c.W)["cluster"]; cluster != nil {
		where = append(where, cluster)
	}
	if strings.HasPrefix(value, "+") {
		m := setReference.FindStringSubmatch(value)
		if m == nil {
			return perl.BadParam(key, "invalid ipset name '"+value+"'")
		}
		if !slices.ContainsFunc(where, func(f *firewall) bool { return f.ipsets[m[2]] != nil }) {
			return perl.BadParam(key, "no such ipset '"+m[2]+"'")
		}
		return nil
	}
	m := aliasName.FindStringSubmatch(value)
	if m != nil && !slices.ContainsFunc(where, func(f *firewall) bool { return f.aliases[strings.ToLower(m[2])] != nil }) {
		return perl.BadParam(key, "no such alias '"+value+"'")
	}
	return nil
}

// dropFromRule takes away what a call deletes of a rule.
func dropFromRule(c *core.Call, rule perl.Config) error {
	for _, key := range c.List("delete") {
		_, known := perl.Method("POST /cluster/firewall/rules").Param(key)
		switch {
		case !known || key == "pos" || key == "digest":
			return perl.BadParam("delete", "no such property ('"+key+"')")
		case key == "type" || key == "action":
			return perl.BadParam("delete", "unable to delete required property '"+key+"'")
		}
		delete(rule, key)
	}
	return nil
}

// macroNames are the macros that rules may name ($pve_fw_macros).
var macroNames = strings.Fields("Amanda Auth BGP BitTorrent BitTorrent32 CVS Ceph Citrix DAAP DCC DHCPfwd DHCPv6 DNS Distcc FTP Finger GNUnet GRE Git HKP " +
	"HTTP HTTPS ICPV2 ICQ IMAP IMAPS IPIP IPsec IPsecah IPsecnat IRC Jetdirect L2TP LDAP LDAPS MDNS MSNP MSSQL Mail Munin MySQL NNTP NNTPS NTP " +
	"NeighborDiscovery OSPF OpenVPN PBS PCA PMG POP3 POP3S PPtP Ping PostgreSQL Printer RDP RIP RNDC Razor Rdate Rsync SANE SMB SMBswat SMTP SMTPS SNMP " +
	"SPAMD SPICEproxy SSH SVN SixXS Squid Submission Syslog TFTP Telnet Telnets Time Trcrt VNC VNCL Web Webcache Webmin Whois")
