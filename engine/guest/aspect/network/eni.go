package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// eniMain is the file of ifupdown (interfaces(5)); others are included by source lines, as Debian and
// cloud-init have them.
const eniMain = "/etc/network/interfaces"

// eniProbe reads the files of ifupdown.
const eniProbe = `if command -v ifup >/dev/null && [ -f ` + eniMain + ` ]; then
  { if [ -d /usr/share/ifupdown2 ]; then dpkg-query -W -f '${Version}' ifupdown2 2>/dev/null || echo unknown; fi; } | row ifupdown
  row eni ` + eniMain + ` <` + eniMain + `
  sed -n 's/^[[:space:]]*\(source\|source-directory\)[[:space:]]\{1,\}/\1 /p' ` + eniMain + ` | while read -r _how _what; do
    case $_what in /*) ;; *) _what=/etc/network/$_what ;; esac
    if [ "$_how" = source-directory ]; then _what=$_what/*; fi
    for _f in $_what; do
      if [ "$_how" = source-directory ]; then case ${_f##*/} in *[!A-Za-z0-9_-]*) continue ;; esac; fi
      if [ -f "$_f" ]; then row eni "$_f" <"$_f"; fi
    done
  done
fi`

// eniStanza is the IPv4 stanza of an interface.
type eniStanza struct {
	file       string
	text       string // its lines
	start, end int    // where they are in the file
}

// readENI finds the IPv4 stanzas of the interface.
func (f *netFound) readENI() []eniStanza {
	var out []eniStanza
	for _, name := range f.eni {
		out = append(out, stanzasOf(f.dev, name, f.files[name])...)
	}
	return out
}

// stanzasOf finds the IPv4 stanzas of an interface in a file.
func stanzasOf(dev, name, text string) []eniStanza {
	var out []eniStanza
	at, start := 0, -1
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		begins := len(fields) > 0 && (slices.Contains([]string{"iface", "mapping", "auto", "source", "source-directory", "no-auto-down", "no-scripts", "rename", "template", "vlan"}, fields[0]) || strings.HasPrefix(fields[0], "allow-"))
		if begins && start >= 0 {
			out = append(out, cutStanza(name, text, start, at))
			start = -1
		}
		if begins && fields[0] == "iface" && len(fields) > 1 && fields[1] == dev && (len(fields) == 2 || fields[2] != "inet6") {
			start = at
		}
		at += len(line)
	}
	if start >= 0 {
		out = append(out, cutStanza(name, text, start, at))
	}
	return out
}

// cutStanza leaves what stands behind the last line of a stanza to the next one: empty lines and comments.
func cutStanza(name, text string, start, end int) eniStanza {
	for {
		trimmed := strings.TrimRight(text[start:end], "\n")
		last := trimmed[strings.LastIndexByte(trimmed, '\n')+1:]
		if last == trimmed || strings.TrimSpace(last) != "" && !strings.HasPrefix(last, "#") {
			end = start + len(trimmed)
			break
		}
		end = start + len(trimmed) - len(last)
	}
	if end < len(text) && text[end] == '\n' {
		end++
	}
	return eniStanza{file: name, text: text[start:end], start: start, end: end}
}

// options are the settings of the stanza: each line as words.
func (s eniStanza) options() [][]string {
	var out [][]string
	for line := range strings.Lines(strings.ReplaceAll(s.text, "\\\n", " ")) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			out = append(out, fields)
		}
	}
	return out
}

// config is the configuration of the stanza.
func (s eniStanza) config() (netConfig, []string) {
	var c netConfig
	var dns []string
	method, address, mask := "static", "", ""
	for i, o := range s.options() {
		switch {
		case i == 0:
			if len(o) > 3 {
				method = o[3]
			}
		case len(o) < 2:
		case o[0] == "address" && address == "":
			address = o[1]
		case o[0] == "netmask":
			mask = o[1]
		case o[0] == "gateway":
			c.gateway = o[1]
		case o[0] == "dns-nameservers" || o[0] == "dns-nameserver":
			dns = append(dns, o[1:]...)
		}
	}
	switch method {
	case spec.DHCP:
		c.ip = spec.DHCP
	case "static":
		c.ip = withMask(address, mask)
	default:
		c.ip = method // manual, ppp, …
	}
	return c, dns
}

// auto reports whether ifupdown brings the interface up at boot, and not only on hotplug.
func (f netFound) auto() bool {
	for _, name := range f.eni {
		for line := range strings.Lines(f.files[name]) {
			if fields := strings.Fields(line); len(fields) > 1 && (fields[0] == "auto" || fields[0] == "allow-auto") && slices.Contains(fields[1:], f.dev) {
				return true
			}
		}
	}
	return false
}

// checkBridge says why a bridge would lose ports if its address changed. version is that of ifupdown2; "" for
// ifupdown.
func (f netFound) checkBridge(version string) error {
	switch {
	case !f.bridge || strings.Contains(version, "pmx") || strings.Contains(version, "pve"): // which leaves guests on it
		return nil
	case version == "":
		return fmt.Errorf("%s is a bridge of ifupdown, which takes it apart when its address changes: install ifupdown2", f.dev)
	}
	var own []string
	for _, o := range f.stanza.options() {
		if o[0] == "bridge-ports" || o[0] == "bridge_ports" {
			own = o[1:]
		}
	}
	for _, p := range f.ports {
		if !slices.Contains(own, p) {
			return fmt.Errorf("%s is a bridge with the port %s, which ifupdown2 does not know and would remove when the address changes: add it to bridge-ports, or take network out of the spec", f.dev, p)
		}
	}
	return nil
}

// withMask writes an address with its prefix length; that of its class if nothing says it, as
// ifupdown has it, is not worth code: the address is shown as it stands.
func withMask(address, mask string) string {
	if strings.Contains(address, "/") || mask == "" {
		return address
	}
	if n, err := strconv.Atoi(mask); err == nil {
		return address + "/" + strconv.Itoa(n)
	}
	ip, err := netip.ParseAddr(mask)
	if err != nil || !ip.Is4() {
		return address
	}
	bits := 0
	for _, b := range ip.As4() {
		for ; b&0x80 != 0; b <<= 1 {
			bits++
		}
	}
	return address + "/" + strconv.Itoa(bits)
}

// eniOwn are the options that an address consists of, and those that only DHCP has. The rest of a
// stanza stays: ports of a bridge, commands, the MTU.
func eniOwn(option string, goal netGoal) bool {
	switch option {
	case "address", "netmask", "gateway", "broadcast", "network", "pointopoint", "dns-nameservers", "dns-nameserver":
		return true
	case "hostname", "leasehours", "leasetime", "vendor", "client":
		return goal.ip != spec.DHCP
	}
	return false
}

const eniNote = "# homestak-gitops sets the address: edit the site instead"

// eniText is the stanza with another address.
func (s eniStanza) with(goal netGoal) string {
	var b strings.Builder
	joined := strings.ReplaceAll(s.text, "\\\n", " ")
	first, address := true, true
	for line := range strings.Lines(joined) {
		fields := strings.Fields(line)
		switch {
		case first:
			method := "static"
			if goal.ip == spec.DHCP {
				method = spec.DHCP
			}
			head := append([]string{"iface", fields[1], "inet", method}, fields[min(len(fields), 4):]...)
			b.WriteString(strings.Join(head, " ") + "\n\t" + eniNote + "\n")
			if goal.ip != spec.DHCP {
				b.WriteString("\taddress " + goal.ip + "\n")
				if goal.gateway != "" {
					b.WriteString("\tgateway " + goal.gateway + "\n")
				}
			}
			if len(goal.dns) > 0 {
				b.WriteString("\tdns-nameservers " + strings.Join(goal.dns, " ") + "\n")
			}
			first = false
		case len(fields) > 0 && fields[0] == "address" && !address: // a further one
			b.WriteString(line)
		case len(fields) > 0 && eniOwn(fields[0], goal):
			address = address && fields[0] != "address"
		case strings.TrimSpace(line) == eniNote:
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

// withStanza is the file of the stanza of an interface with what shall be there.
func (f netFound) withStanza(s eniStanza, dev string, goal netGoal, e *guest.RecordEntry) netFile {
	text, stanza := f.files[s.file], ""
	if goal.back {
		switch {
		case e.Found["card"] == dev:
			stanza = e.Found["below"]
		case e.Item == dev:
			stanza = e.Found["stanza"]
		}
	}
	if stanza == "" {
		stanza = s.with(goal)
	}
	if s.end < len(text) && !strings.HasSuffix(stanza, "\n") {
		stanza += "\n"
	}
	return f.replace(s.file, text[:s.start]+stanza+text[s.end:], false)
}

// beforeBridge is the file in which the aspect of Proxmox VE's bridge keeps what interfaces(5) was before it made one. The
// card gets its addresses back by that file, so a change of the address is made there, too.
const beforeBridge = guest.RecordFolder + "/found/interfaces-before-bridge"

// below is the stanza there of the card that is in the bridge, and the name of the card; "" if there is none.
func (f netFound) below() (eniStanza, string) {
	for _, port := range f.ports {
		if found := stanzasOf(port, beforeBridge, f.files[beforeBridge]); len(found) == 1 {
			return found[0], port
		}
	}
	return eniStanza{}, ""
}

// belowFile is that file with what shall be there; nothing where no bridge was made.
func (f netFound) belowFile(goal netGoal, e *guest.RecordEntry) []netFile {
	s, card := f.below()
	if card == "" {
		return nil
	}
	return []netFile{f.withStanza(s, card, goal, e)}
}

// bridgeOf is the entry of the bridge that we made; nil if there is none.
func bridgeOf(q *aspect.Query) *guest.RecordEntry { return q.Record.Get("pvebridge", eniMain) }

// bridgeGoes reports whether the interface is a bridge that is withdrawn. The address is changed once it is gone.
func (f netFound) bridgeGoes(q *aspect.Query) bool {
	e := bridgeOf(q)
	return q.Want.Config.PVE.Bridge == "" && e != nil && f.bridge && e.Put["name"] == f.dev
}

// bridgeEntry is the entry of the bridge for a file that we edit: its checksum detects edits of others.
func bridgeEntry(q *aspect.Query, file netFile) []guest.RecordEntry {
	e := bridgeOf(q)
	if e == nil || file.path != eniMain || e.Put["sha256"] != guest.ContentSum(file.before) {
		return nil
	}
	out := *e
	out.Put = maps.Clone(e.Put)
	out.Put["sha256"] = guest.ContentSum(file.after)
	return []guest.RecordEntry{out}
}

// eniCommands take the interface down by the old files and up by the new ones. Background processes, such as a DHCP
// client, must not hold the lock. ifupdown2 changes only differences and leaves bridges together.
func (f netFound) eniCommands(file netFile) (down, up, check string) {
	if f.manager == ifupdown2 {
		up = "ifreload -a >&2 9>&- || die " + guest.Quote("ifreload fails") + "\n"
		if !f.auto() { // ifreload leaves it alone
			up += "ifup " + f.name() + " >&2 9>&- || die " + guest.Quote("ifup "+f.dev+" fails") + "\n"
		}
		return "", up, ""
	}
	var all strings.Builder
	for _, name := range f.eni {
		text := f.files[name]
		if name == file.path {
			text = file.after
		}
		for line := range strings.Lines(text + "\n") {
			if fields := strings.Fields(line); len(fields) == 0 || !strings.HasPrefix(fields[0], "source") {
				all.WriteString(line)
			}
		}
	}
	const whole = "/run/homestak-gitops.interfaces"
	down = "ifdown " + f.name() + " >&2 9>&- || :\nip -4 addr flush dev " + f.name() + " scope global || :\n"
	up = "ifup " + f.name() + " >&2 9>&- || die " + guest.Quote("ifup "+f.dev+" fails") + "\n"
	check = guest.Lines(guest.PutFile(whole, all.String(), "0600", "root", "root"),
		"_said=$(ifup --no-act --force -i "+whole+" -- "+f.name()+" 2>&1) || { rm -f "+whole+"; die \"ifupdown refuses the settings: $_said\"; }",
		"rm -f "+whole)
	return down, up, check
}
