package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const (
	interfacesFile = "/etc/network/interfaces"
	bridgeFound    = beforeBridge
)

// bridge is the bridge of a machine that becomes a host of Proxmox VE: it gets the card of
// the default route as its port, and the addresses of that card, as the installer of Proxmox
// VE does it. A bridge that is there is left as it is.
var bridge = aspect.Of[bridgeState]{
	Name: "pvebridge", Doc: "The bridge of a host of Proxmox VE.",
	Paths: []string{"config.pve.bridge"},
	Probe: func(q *aspect.Query) string {
		name := bridgeName(q)
		if name == "" {
			return ":"
		}
		return guest.Lines(
			"if [ -d "+device(name)+"/bridge ]; then ls "+device(name)+"/brif | row ports; fi",
			`{ ip -o route show default || ip -o -6 route show default; } 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1 | row card`,
			"if [ -f "+interfacesFile+" ]; then row interfaces <"+interfacesFile+"; fi")
	},
	Parse: func(_ *aspect.Query, rows [][]string) (bridgeState, error) {
		var f bridgeState
		for _, r := range rows {
			switch r[0] {
			case "ports":
				f.up, f.ports = true, strings.Fields(r[1])
			case "card":
				f.card = strings.TrimSpace(r[1])
			case "interfaces":
				f.text, f.there = r[1], true
			}
		}
		return f, nil
	},
	Fill: func(q *aspect.Query, f bridgeState, have *spec.Spec) {
		name := bridgeName(q)
		switch kept := f.declares(name); {
		case name == "":
		case q.Want.Config.PVE.Bridge == "" && f.gone(name): // what was there before is still kept
			have.Config.PVE.Bridge = name + " (gone, still recorded)"
		case f.up && kept:
			have.Config.PVE.Bridge = name
		case f.up:
			have.Config.PVE.Bridge = name + " (until the next restart)"
		case kept:
			have.Config.PVE.Bridge = name + " (down)"
		}
	},
	Steps: func(q *aspect.Query, f bridgeState) []aspect.Step {
		name, want := bridgeName(q), q.Want.Config.PVE.Bridge
		e := q.Record.Get("pvebridge", bridgeItem)
		if want == "" {
			return []aspect.Step{f.withdraw(name, e)}
		}
		s := aspect.Step{Stage: aspect.StageSSHD, Text: "make bridge " + name + " over " + f.card + ", with its addresses"}
		text := f.bridged(name)
		switch {
		case f.declares(name):
			text, s.Text = f.text, "bring up bridge "+name
		case f.card == "":
			s.Script = "die 'this machine has no default route, so the card of the bridge is not known'\n"
			return []aspect.Step{s}
		case text == "":
			s.Script = "die " + guest.Quote(fmt.Sprintf("%s does not set up %s, the card of the default route (netplan, systemd-networkd or NetworkManager may), and a host of Proxmox VE needs it there: write its lines there first", interfacesFile, f.card)) + "\n"
			return []aspect.Step{s}
		}
		entry := guest.RecordEntry{Aspect: "pvebridge", Item: bridgeItem, Identity: "name", Put: map[string]string{"name": name, "sha256": guest.ContentSum(text)}}
		if e != nil {
			entry.Found = e.Found
		}
		s.Keep = []guest.RecordEntry{entry}
		s.Needs = "command -v ifreload >/dev/null"
		s.Ask, s.Restore = f.unchanged(), f.restore(name)
		keep := "put " + bridgeFound + " 0600 root root <" + interfacesFile
		if f.declares(name) { // what was there before is kept already
			keep = "if [ ! -f " + bridgeFound + " ]; then " + keep + "; fi"
		}
		s.Script = guest.Lines(
			"command -v ifreload >/dev/null || die 'a bridge needs ifupdown2, which replaces ifupdown: name it in packages'",
			"[ -d "+guest.RecordFolder+"/found ] || mkdir -m 0700 "+guest.RecordFolder+"/found",
			keep)
		// Background processes, such as a DHCP client, must not hold the lock.
		s.Change = guest.Lines(
			guest.PutFile(interfacesFile, text, "0644", "root", "root"),
			"ifreload -a >&2 9>&- || die 'the network does not take the bridge'",
			"[ -d "+device(name)+"/bridge ] || die "+guest.Quote("ifreload made no bridge "+name))
		s.Check = "{ ip -o route show default; ip -o -6 route show default; } | grep -qF " + guest.Quote(" dev "+name+" ") + " || die " + guest.Quote("the default route does not go over bridge "+name) + "\n"
		return []aspect.Step{s}
	},
}

// bridgeItem is the entry of the record; there is one bridge.
const bridgeItem = interfacesFile

// bridgeName is the bridge that is wanted, else the one that we made.
func bridgeName(q *aspect.Query) string {
	if e := q.Record.Get("pvebridge", bridgeItem); q.Want.Config.PVE.Bridge == "" && e != nil {
		return e.Put["name"]
	}
	return q.Want.Config.PVE.Bridge
}

type bridgeState struct {
	up    bool
	ports []string
	card  string // of the default route
	text  string // of the interfaces file
	there bool
}

// unchanged fails if the file is not as it was read. It comes before restore is armed, which writes what was read.
func (f bridgeState) unchanged() string {
	return guest.FileUnchanged(interfacesFile, guest.ContentSum(f.text), f.there) + "\n"
}

// restore puts the network back as it was. The bridge is taken down first by the program that
// made it: as its port, the card has no IPv6.
func (f bridgeState) restore(name string) string {
	put := guest.PutFile(interfacesFile, f.text, "0644", "root", "root")
	if f.up {
		return guest.Lines(put, "ifreload -a 9>&- || :")
	}
	return guest.Lines(
		"ifdown "+guest.Quote(name)+" 2>/dev/null || :", "ip link delete "+guest.Quote(name)+" 2>/dev/null || :", put,
		"ifreload -a 9>&- || :", "ifup "+guest.Quote(f.card)+" 9>&- || :")
}

// withdraw gives the card its addresses back.
func (f bridgeState) withdraw(name string, e *guest.RecordEntry) aspect.Step {
	s := aspect.Step{
		Stage: aspect.StageSSHD, Text: "remove bridge " + name + ", its card gets the addresses back", Drop: []guest.RecordKey{e.Key()},
		Restore: f.restore(name), Finish: "drop " + bridgeFound + "\n",
	}
	switch others := slices.DeleteFunc(slices.Clone(f.ports), func(p string) bool { return strings.Contains(f.text, "bridge-ports "+p+"\n") }); {
	case f.gone(name): // by hand, or by an attempt that was cut off before it was confirmed, or while it finished
		s.Text, s.Ask, s.Script = "forget bridge "+name+", which is gone", f.unchanged(), ":\n"
	case len(others) > 0:
		s.Restore, s.Script = "", "die "+guest.Quote("bridge "+name+" has the cards of guests as ports: "+strings.Join(others, ", ")+". Stop them first, or keep bridge in the spec")+"\n"
	case guest.ContentSum(f.text) != e.Put["sha256"]:
		s.Restore, s.Script = "", "die "+guest.Quote(interfacesFile+" was edited after bridge "+name+" was made in it: take the bridge out by hand, and the entry "+bridgeItem+" out of "+guest.RecordFile)+"\n"
	default:
		s.Ask = f.unchanged()
		s.Script = "[ -f " + bridgeFound + " ] || die 'what " + interfacesFile + " was before is not in " + bridgeFound + " any more'\n"
		s.Change = guest.Lines(
			"_ports=$(ls "+device(name)+"/brif 2>/dev/null || :)",
			"ifdown "+guest.Quote(name)+" 2>/dev/null || :", "ip link delete "+guest.Quote(name)+" 2>/dev/null || :",
			"put "+interfacesFile+" 0644 root root <"+bridgeFound,
			`{ ifreload -a && for _p in $_ports; do ifup "$_p" || exit 1; done; } >&2 9>&- || die 'the network does not take its old settings'`)
		s.Check = "[ ! -e " + device(name) + " ] || die " + guest.Quote("bridge "+name+" is still there") + "\n"
	}
	return s
}

// device is the folder of a network interface in sysfs, as a word of the shell.
func device(name string) string { return guest.Quote("/sys/class/net/" + name) }

// gone reports whether the bridge neither is there nor comes with the next restart.
func (f bridgeState) gone(name string) bool { return !f.up && !f.declares(name) }

// declares reports whether the file sets up the bridge.
func (f bridgeState) declares(name string) bool {
	for line := range strings.Lines(f.text) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "iface" && fields[1] == name {
			return true
		}
	}
	return false
}

// bridged is the file with the bridge in the place of the card; "" if it does not set up the
// card (interfaces(5), interfaces.5 of ifupdown2, and pve-common, PVE/INotify.pm, for the form).
func (f bridgeState) bridged(name string) string {
	var out strings.Builder
	first := true // the first stanza of the card gets the ports
	for line := range strings.Lines(f.text) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 2 && (fields[0] == "auto" || fields[0] == "allow-hotplug") && slices.Contains(fields[1:], f.card):
			rest := slices.DeleteFunc(slices.Clone(fields[1:]), func(n string) bool { return n == f.card })
			if len(rest) > 0 {
				out.WriteString(fields[0] + " " + strings.Join(rest, " ") + "\n")
			}
			continue
		case len(fields) >= 4 && fields[0] == "iface" && fields[1] == f.card:
			if first {
				out.WriteString("iface " + f.card + " inet manual\n\nauto " + name + "\n")
			}
			out.WriteString("iface " + name + " " + strings.Join(fields[2:], " ") + "\n")
			if first {
				fmt.Fprintf(&out, "\tbridge-ports %s\n\tbridge-stp off\n\tbridge-fd 0\n", f.card)
			}
			first = false
			continue
		}
		out.WriteString(line + "\n")
	}
	if first {
		return ""
	}
	return out.String()
}
