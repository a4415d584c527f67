package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const resolvConf = "/etc/resolv.conf"

// These keep a DHCP client from writing resolv.conf: one function of dhclient-guest.Lines(8), one hook of
// dhcpcd-run-hooks(8).
const (
	dhclientHook     = "/etc/dhcp/dhclient-enter-hooks.d/homestak-gitops"
	dhclientHookText = aspect.Heading + "make_resolv_conf() { :; }\n"
	dhcpcdHook       = "/etc/dhcpcd.enter-hook"
	dhcpcdHookText   = aspect.Heading + "skip_hooks=\"${skip_hooks:-} resolv.conf\"\n"
)

// Managers of /etc/resolv.conf.
const (
	plainFile  = "" // a file that any user may write
	resolved   = "systemd-resolved"
	resolvconf = "resolvconf"
)

const resolverProbe = `_to=$(readlink -f ` + resolvConf + `) || _to=
printf %s "$_to" | row resolv
if [ -f ` + resolvConf + ` ]; then row file ` + resolvConf + ` <` + resolvConf + `; fi
case $_to in /run/systemd/resolve/*) if systemctl is-active --quiet systemd-resolved; then resolvectl --no-pager dns "$_dev" 2>/dev/null | row linkdns; fi ;; esac
if [ -x /etc/network/if-up.d/resolved ]; then row hook </dev/null; fi
if [ -d /etc/dhcp/dhclient-enter-hooks.d ]; then row dhclient </dev/null; fi
if command -v dhcpcd >/dev/null; then row dhcpcd </dev/null; fi`

// readResolver reads the name servers that are asked, and who says which.
func (f *netFound) readResolver(texts map[string]string) {
	to := strings.TrimSpace(texts["resolv"])
	_, hook := texts["hook"]
	switch {
	case strings.HasPrefix(to, "/run/systemd/resolve/"):
		f.resolver = resolved
		_, list, _ := strings.Cut(texts["linkdns"], "):") // Link 2 (eth0): 10.0.0.1 10.0.0.2
		f.dns = strings.Fields(list)
		if f.manager == ifupdown2 || f.manager == ifupdown && !hook {
			f.resolver = "systemd-resolved, which " + f.manager + " says nothing"
		}
	case strings.Contains(to, "/resolvconf/"):
		f.resolver = resolvconf
		f.dns = nameservers(f.files[resolvConf])
		if f.manager == networkd {
			f.resolver = "resolvconf, which systemd-networkd says nothing"
		}
	case to == resolvConf, to == "":
		f.resolver = plainFile
		f.dns = nameservers(f.files[resolvConf])
	default:
		f.resolver = "the program that writes " + to
		f.dns = nameservers(f.files[resolvConf])
	}
}

func nameservers(text string) (out []string) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" {
			out = append(out, fields[1])
		}
	}
	return out
}

// withNameservers is a resolv.conf with other name servers.
func withNameservers(text string, servers []string) string {
	var b strings.Builder
	put := false
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "nameserver" {
			if !put {
				b.WriteString(nameserverLines(servers))
			}
			put = true
			continue
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	if !put {
		b.WriteString(nameserverLines(servers))
	}
	return b.String()
}

func nameserverLines(servers []string) string {
	var b strings.Builder
	for _, s := range servers {
		b.WriteString("nameserver " + s + "\n")
	}
	return b.String()
}

// shownDNS returns those name servers of the machine that are declared, or were.
func (f netFound) shownDNS(want *spec.Network, e *guest.RecordEntry) []string {
	switch {
	case len(want.DNS) == 0 && (e == nil || e.Put["dns"] == ""):
		return nil // whatever they are
	case len(want.DNS) == 0:
		return f.dns
	case !slices.Contains([]string{plainFile, resolved, resolvconf}, f.resolver):
		return []string{fmt.Sprintf("%s (made by %s)", strings.Join(f.dns, " "), f.resolver)}
	case !slices.Equal(f.dns, want.DNS):
		return f.dns
	case f.resolver != plainFile && !slices.Equal(f.keptDNS, want.DNS):
		return append(slices.Clone(f.dns), "(until the next restart)")
	case f.resolver == plainFile && want.IP == spec.DHCP && f.rewrites():
		return append(slices.Clone(f.dns), "(until the DHCP client writes others)")
	}
	return f.dns
}

// rewrites reports whether a DHCP client would replace the name servers.
func (f netFound) rewrites() bool {
	return f.manager != networkd && (f.dhclient && f.files[dhclientHook] != dhclientHookText || f.dhcpcd && f.files[dhcpcdHook] != dhcpcdHookText)
}

// resolverFiles are the files that only name servers need.
func (f netFound) resolverFiles(goal netGoal) []netFile {
	hooks := goal.own && goal.ip == spec.DHCP && f.manager != networkd && f.resolver == plainFile
	var files []netFile
	if f.resolver == plainFile && (len(goal.file) > 0 || goal.noFile) {
		files = append(files, f.replace(resolvConf, withNameservers(f.files[resolvConf], goal.file), goal.noFile))
	}
	for _, h := range []struct {
		path, text string
		client     bool
	}{{dhclientHook, dhclientHookText, f.dhclient}, {dhcpcdHook, dhcpcdHookText, f.dhcpcd}} {
		is, there := f.files[h.path]
		switch {
		case hooks && h.client && (!there || is == h.text):
			files = append(files, f.replace(h.path, h.text, false))
		case !hooks && there && is == h.text:
			files = append(files, f.replace(h.path, "", true))
		}
	}
	return files
}
