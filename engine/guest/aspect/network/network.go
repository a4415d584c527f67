// Package network configures the address of a machine, its gateway and name servers. Read network.go, then eni.go
// or networkd.go, which configure the interface.
package network

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// All lists the aspects, in the order of the probe.
func All() []aspect.Aspect { return []aspect.Aspect{address.Aspect()} }

// address is that of the machine, by whatever configures its interface: ifupdown, ifupdown2 (eni.go)
// or systemd-networkd, also for netplan and cloud-init (networkd.go). dns.go is
// the name servers.
var address = aspect.Of[netFound]{
	Name: "network", Doc: "The address of the machine, its gateway and name servers.",
	Paths: []string{"network"},
	Probe: func(q *aspect.Query) string {
		if q.Want.Network == nil && len(q.Record.Items("network")) == 0 {
			return ":"
		}
		return guest.Lines(
			`command -v ip >/dev/null || { say "the program ip is missing: install iproute2"; exit 3; }`,
			// The one that was configured before. It is read there, since a probe that depends on the record costs a second one.
			`_dev=$(sed -n '/"aspect": "network"/{n;s/.*"item": "\(.*\)".*/\1/p}' `+guest.RecordFile+` 2>/dev/null | while read -r _d; do if [ -e "/sys/class/net/$_d" ] && [ ! -e "/sys/class/net/$_d/master" ]; then echo "$_d"; break; fi; done)`,
			`[ -n "$_dev" ] || _dev=$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)`,
			`if [ -z "$_dev" ]; then`,
			`  set --`,
			`  for _d in /sys/class/net/*; do`,
			`    _n=${_d##*/}`,
			`    if [ "$(cat "$_d/type")" != 1 ] || [ -e "$_d/master" ] || grep -q '^DEVTYPE=' "$_d/uevent"; then continue; fi`,
			`    if [ -e "$_d/device" ] || ip -o link show dev "$_n" type veth 2>/dev/null | grep -q .; then set -- "$@" "$_n"; fi`, // that of a container is a veth
			`  done`,
			`  if [ $# -ne 1 ]; then say "there is no default route, and which of these interfaces is meant is not known: ${*:-none}"; exit 3; fi`,
			`  _dev=$1`,
			`fi`,
			`printf %s "$_dev" | row dev`,
			`if [ -d "/sys/class/net/$_dev/bridge" ]; then ls "/sys/class/net/$_dev/brif" | row bridge; fi`,
			`ip -4 -o addr show dev "$_dev" scope global | row addr`,
			`ip -4 route show default dev "$_dev" | row route`,
			eniProbe, networkdProbe, resolverProbe,
			`_st=$(systemctl is-active --quiet NetworkManager 2>/dev/null && nmcli -g GENERAL.STATE device show "$_dev" 2>/dev/null) || :`,
			`printf %s "$_st" | row manager`,
			`if [ -d `+cloudFolder+` ]; then row cloud </dev/null; fi`,
			`for _f in `+guest.QuoteWords([]string{networkdFile, cloudFile, dhclientHook, dhcpcdHook, beforeBridge})+`; do if [ -f "$_f" ]; then row file "$_f" <"$_f"; fi; done`)
	},
	Parse: parseNetwork,
	Fill: func(q *aspect.Query, f netFound, have *spec.Spec) {
		if f.dev == "" {
			return
		}
		want, e := q.Want.Network, f.recorded(q)
		if want == nil && e == nil {
			return // what was set is gone with its interface
		}
		n := &spec.Network{IP: f.ip, Gateway: f.gateway, DNS: f.dns}
		have.Network = n
		if want == nil { // all of it is to be withdrawn
			n.IP = cmp.Or(n.IP, "none")
			return
		}
		if want.IP == "" {
			n.IP, n.Gateway = "", ""
		} else {
			n.IP = later(f.ip, f.kept.ip)
			if e != nil && f.cloud && f.files[cloudFile] == "" && n.IP == want.IP {
				n.IP += " (cloud-init may change it)"
			}
		}
		if _, static := want.Static(); static {
			n.Gateway = later(f.gateway, f.kept.gateway)
		} else {
			n.Gateway = want.Gateway
		}
		n.DNS = f.shownDNS(want, e)
	},
	Steps: func(q *aspect.Query, f netFound) []aspect.Step {
		if f.dev == "" {
			return nil
		}
		want, e := q.Want.Network, f.recorded(q)
		if want == nil && e == nil || f.bridgeGoes(q) {
			return nil
		}
		goal, s := f.goal(want, e), aspect.Step{Stage: aspect.StageIdentity}
		if want != nil {
			s.Text = "set " + f.dev + " to " + goal.String()
			entry := f.entry(e, goal)
			s.Keep, s.After = []guest.RecordEntry{both(e, entry)}, []guest.RecordEntry{entry}
		} else {
			s.Text = "set " + f.dev + " back to the state found: " + goal.String()
		}
		for _, item := range q.Record.Items("network") {
			if want == nil || item != f.item(e) { // another one is an interface that is gone
				s.Drop = append(s.Drop, guest.RecordKey{Aspect: "network", Item: item})
			}
		}
		if at, err := netip.ParsePrefix(goal.ip); err == nil {
			s.Address = at.Addr()
		}
		files := f.resolverFiles(goal)
		if f.cloud {
			files = append(files, f.replace(cloudFile, cloudText, goal.back))
		}
		var down, up, check string
		switch {
		case goal.ip == "": // name servers only
		case f.manager == networkd:
			files = append(files, f.networkdFiles(goal, e))
			up = guest.Lines("networkctl reload >&2 && networkctl reconfigure -- " + f.name() + " >&2 || die " + guest.Quote("systemd-networkd does not configure "+f.dev))
		default:
			eni := f.withStanza(f.stanza, f.dev, goal, e)
			files = append(append(files, eni), f.belowFile(goal, e)...)
			s.After = append(s.After, bridgeEntry(q, eni)...)
			down, up, check = f.eniCommands(eni)
		}
		for _, file := range files {
			s.Ask += guest.FileUnchanged(file.path, guest.ContentSum(file.before), file.there) + "\n"
		}
		s.Ask += check
		s.Script = ":\n"
		s.Change = down + puts(files) + up + f.verify(goal)
		s.Restore = restoreNetwork(files, down, up)
		s.Check = f.gatewayAnswers()
		return []aspect.Step{s}
	},
}

// Managers of an interface.
const (
	ifupdown  = "ifupdown"
	ifupdown2 = "ifupdown2"
	networkd  = "systemd-networkd"
)

// cloudFile keeps cloud-init from writing the configuration of the network again when it takes the
// machine for a new one (docs.cloud-init.io, Disabling network configuration).
const (
	cloudFolder = "/etc/cloud/cloud.cfg.d"
	cloudFile   = cloudFolder + "/99-homestak-gitops-network.cfg"
	cloudText   = aspect.Heading + "network:\n  config: disabled\n"
)

// netConfig is an address: dhcp, or one with its prefix length and gateway.
type netConfig struct{ ip, gateway string }

// netGoal is the desired configuration of an interface.
type netGoal struct {
	netConfig          // an empty ip: the address is not managed
	dns       []string // that its configuration names; none: those of DHCP
	file      []string // lines of resolv.conf if it is unmanaged; none: it stays
	noFile    bool     // resolv.conf did not exist
	own       bool     // the name servers are those of the spec
	back      bool     // it is the state found
}

// goal is the wanted configuration, with the parts to keep of the present one.
func (f netFound) goal(want *spec.Network, e *guest.RecordEntry) netGoal {
	var g netGoal
	if want == nil {
		g.netConfig, g.back = netConfig{ip: e.Found["ip"], gateway: e.Found["gateway"]}, true
	} else {
		g.netConfig = netConfig{ip: want.IP, gateway: want.Gateway}
		g.own = len(want.DNS) > 0
	}
	found := f.dns
	if e != nil {
		found = strings.Fields(e.Found["dns"])
	}
	switch {
	case g.own:
		g.dns, g.file = want.DNS, want.DNS
	case g.ip != spec.DHCP:
		g.dns = found
	}
	if !g.own && e != nil && e.Put["dns"] != "" {
		g.file, g.noFile = found, e.Found["resolv"] == "none"
	}
	return g
}

func (c netConfig) String() string {
	if c.gateway != "" && c.ip != spec.DHCP {
		return c.ip + ", gateway " + c.gateway
	}
	return c.ip
}

func (g netGoal) String() string {
	text := g.netConfig.String()
	if g.own {
		text = strings.TrimPrefix(text+", name servers "+strings.Join(g.dns, " "), ", ")
	}
	return text
}

// netFound is an interface: what it has now, and what its files say.
type netFound struct {
	dev     string
	bridge  bool
	ports   []string // of the bridge
	addrs   []netAddr
	ip      string // dhcp or an address; "" for none
	gateway string
	dns     []string

	manager string
	kept    netConfig // what the files say
	keptDNS []string

	stanza   eniStanza // of ifupdown
	eni      []string  // its files, in their order
	unit     string    // the text of the .network file in use, with its drop-ins
	files    map[string]string
	resolver string // who makes /etc/resolv.conf
	cloud    bool   // cloud-init is installed
	dhclient bool
	dhcpcd   bool
}

type netAddr struct {
	prefix  string
	dynamic bool // it ends with a lease
}

// name is the interface as a word of a script.
func (f netFound) name() string { return guest.Quote(f.dev) }

func parseNetwork(_ *aspect.Query, rows [][]string) (netFound, error) {
	f := netFound{files: map[string]string{}}
	texts := map[string]string{}
	for _, r := range rows {
		switch {
		case r[0] == "eni" && len(r) == 3:
			f.eni = append(f.eni, r[1])
			f.files[r[1]] = r[2]
		case r[0] == "file" && len(r) == 3:
			f.files[r[1]] = r[2]
		case r[0] == "unit" && len(r) == 3:
			f.unit += "\n" + r[2]
		default:
			texts[r[0]] = r[1]
		}
	}
	if f.dev = strings.TrimSpace(texts["dev"]); f.dev == "" {
		return f, nil
	}
	_, f.bridge = texts["bridge"]
	f.ports = strings.Fields(texts["bridge"])
	_, f.cloud = texts["cloud"]
	_, f.dhclient = texts["dhclient"]
	_, f.dhcpcd = texts["dhcpcd"]
	if err := f.findManager(texts); err != nil {
		return f, err
	}
	f.readRunning(texts)
	f.readResolver(texts)
	return f, nil
}

// findManager finds out who configures the interface. Exactly one has to.
func (f *netFound) findManager(texts map[string]string) error {
	stanzas := f.readENI()
	_, hasENI := texts["ifupdown"]
	byENI := hasENI && len(stanzas) > 0
	byNetworkd := networkdHas(texts["networkd"])
	byNM := texts["manager"] != "" && !strings.HasPrefix(texts["manager"], "10 ") // 10 is unmanaged (nmcli(1))
	switch {
	case byNM:
		return fmt.Errorf("NetworkManager configures %s, and only ifupdown and systemd-networkd are supported: let one of them configure it, or take network out of the spec", f.dev)
	case byENI && byNetworkd:
		return fmt.Errorf("both ifupdown (%s) and systemd-networkd configure %s: leave it to one of them", stanzas[0].file, f.dev)
	case byENI && len(stanzas) > 1:
		return fmt.Errorf("%s has %d IPv4 stanzas in %s and %s: one is needed", f.dev, len(stanzas), stanzas[0].file, stanzas[1].file)
	case byENI:
		f.manager, f.stanza = ifupdown, stanzas[0]
		version := strings.TrimSpace(texts["ifupdown"])
		if version != "" {
			f.manager = ifupdown2
		}
		if err := f.checkBridge(version); err != nil {
			return err
		}
		f.kept, f.keptDNS = f.stanza.config()
	case byNetworkd:
		f.manager = networkd
		f.kept, f.keptDNS = unitConfig(f.unit)
	default:
		return fmt.Errorf("neither ifupdown nor systemd-networkd configures %s: let one of them configure it, or take network out of the spec", f.dev)
	}
	return nil
}

// readRunning reads what the kernel has.
func (f *netFound) readRunning(texts map[string]string) {
	for line := range strings.Lines(texts["addr"]) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "inet"); i >= 0 && i+1 < len(fields) {
			f.addrs = append(f.addrs, netAddr{fields[i+1], slices.Contains(fields, "dynamic")})
		}
	}
	for line := range strings.Lines(texts["route"]) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "via"); i >= 0 && i+1 < len(fields) && f.gateway == "" {
			f.gateway = fields[i+1]
		}
	}
	switch {
	case len(f.addrs) == 0:
	case f.kept.ip == spec.DHCP, f.addrs[0].dynamic:
		f.ip = spec.DHCP
	default:
		f.ip = f.addrs[0].prefix
		for _, a := range f.addrs { // others beside it are none of our business
			if a.prefix == f.kept.ip {
				f.ip = a.prefix
			}
		}
	}
	if f.ip == spec.DHCP && f.kept.ip == spec.DHCP {
		f.kept.gateway = f.gateway // the lease has it
	}
}

// later shows a value together with the one that comes with the next restart of the machine.
func later(now, kept string) string {
	switch {
	case now == kept:
		return now
	case kept == "":
		return now + " (until the next restart)"
	default:
		return cmp.Or(now, "none") + " (" + kept + " after the next restart)"
	}
}

// recorded is the entry of the interface; of a bridge also that of a port of it, which had the address before the
// bridge was made, and of a card that of the bridge that it was in.
func (f netFound) recorded(q *aspect.Query) *guest.RecordEntry {
	if e := q.Record.Get("network", f.dev); e != nil {
		return e
	}
	for _, item := range q.Record.Items("network") {
		if e := q.Record.Get("network", item); slices.Contains(f.ports, item) || e.Found["card"] == f.dev {
			return e
		}
	}
	return nil
}

// item names the entry of the interface. Of a bridge it stays that of the card that had the address before.
func (f netFound) item(e *guest.RecordEntry) string {
	if e != nil && slices.Contains(f.ports, e.Item) {
		return e.Item
	}
	return f.dev
}

// entry returns what is needed to restore the interface.
func (f netFound) entry(e *guest.RecordEntry, goal netGoal) guest.RecordEntry {
	out := guest.RecordEntry{Aspect: "network", Item: f.item(e), Identity: "interface", Put: map[string]string{"manager": f.manager}}
	if goal.own {
		out.Put["dns"] = strings.Join(goal.dns, " ")
	}
	if e != nil {
		out.Found = e.Found
		return out
	}
	out.Found = map[string]string{"ip": cmp.Or(f.kept.ip, f.ip), "gateway": f.kept.gateway, "dns": strings.Join(f.dns, " ")}
	if _, there := f.files[resolvConf]; !there {
		out.Found["resolv"] = "none"
	}
	if f.manager == networkd {
		out.Found["unit"] = f.unit
	} else {
		out.Found["stanza"] = f.stanza.text
	}
	if below, card := f.below(); card != "" {
		out.Found["card"], out.Found["below"] = card, below.text
	}
	return out
}

// both is an entry before it is known whether the step holds: what was put there before may be restored.
func both(before *guest.RecordEntry, entry guest.RecordEntry) guest.RecordEntry {
	if before != nil {
		put := maps.Clone(before.Put)
		maps.Copy(put, entry.Put)
		entry.Put = put
	}
	return entry
}

// netFile is a file that a step replaces.
type netFile struct {
	path          string
	before, after string
	there, stays  bool // before, and after
}

// replace makes a file have this text, or takes it away.
func (f netFound) replace(path, text string, remove bool) netFile {
	before, there := f.files[path]
	return netFile{path: path, before: before, there: there, after: text, stays: !remove}
}

func puts(files []netFile) string {
	var lines []string
	for _, file := range files {
		switch {
		case !file.stays && !file.there, file.stays && file.there && file.before == file.after:
		case !file.stays:
			lines = append(lines, "drop "+file.path)
		default:
			lines = append(lines, "mkdir -p "+path.Dir(file.path), guest.PrintBytes(file.after)+" | put "+file.path+" \"$(stat -c %a "+file.path+" 2>/dev/null || echo 0644)\" root root")
		}
	}
	return guest.Lines(append(lines, ":")...)
}

// restoreNetwork restores the files, and the interface by them. It tries all of them even if one fails.
func restoreNetwork(files []netFile, down, up string) string {
	var b strings.Builder
	b.WriteString(down)
	for _, file := range files {
		back := netFile{path: file.path, before: "-", after: file.before, there: true, stays: file.there}
		b.WriteString("( " + strings.TrimSpace(puts([]netFile{back})) + " ) || :\n")
	}
	if up != "" {
		b.WriteString("( " + strings.TrimSpace(up) + " ) || :\n")
	}
	return b.String()
}

// verify waits until the interface has the desired configuration.
func (f netFound) verify(goal netGoal) string {
	holds := "ip -4 -o addr show dev " + f.name() + " scope global"
	switch goal.ip {
	case "":
		return ""
	case spec.DHCP: // another address than before, or one with a lease
		holds += " | sed -e '/169\\.254\\./d' -e '/ dynamic /b'"
		var old []string
		for _, a := range f.addrs {
			if !a.dynamic {
				old = append(old, " -e "+guest.Quote("\\,inet "+a.prefix+" ,d"))
			}
		}
		holds += strings.Join(old, "") + " | grep inet"
	default:
		holds += " | grep -F " + guest.Quote("inet "+goal.ip+" ")
		if goal.gateway != "" {
			holds += " && ip -4 route show default dev " + f.name() + " | grep -F " + guest.Quote("via "+goal.gateway+" ")
		}
	}
	return guest.Lines("_n=0", "until { "+holds+"; } >/dev/null; do",
		"  _n=$((_n + 1)); [ $_n -lt 200 ] || die "+guest.Quote(f.dev+" did not get "+goal.netConfig.String()+" within 40 s"),
		"  sleep 0.2", "done")
}

// gatewayAnswers fails if the gateway does not respond to ARP: a packet to an unused port triggers the request.
func (f netFound) gatewayAnswers() string {
	return guest.Lines(
		"_gw=$(ip -4 route show default dev "+f.name()+" | sed -n 's/.*via \\([^ ]*\\).*/\\1/p' | head -n 1)",
		`[ -n "$_gw" ] || exit 0`,
		`ip neigh flush to "$_gw" dev `+f.name()+` || :`,
		`_n=0`,
		`until { bash -c 'echo >/dev/udp/'"$_gw"'/9'; ip -4 neigh show "$_gw" dev `+f.name()+` | grep -q lladdr; } 2>/dev/null; do`,
		`  _n=$((_n + 1)); [ $_n -lt 50 ] || die "the gateway $_gw does not answer"`,
		`  sleep 0.2`, `done`)
}
