// Package resolve completes what the files declare of a guest by its preset, its spec and the defaults
// of the site, and checks it against what Proxmox VE takes.
package resolve

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/proxmox/attribute"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Guest completes what the files declare of a guest of a kind, and checks it; see model.Kind.Resolve.
func Guest(kind string) func(*model.Resource, model.Scope) []model.Problem {
	return func(r *model.Resource, in model.Scope) []model.Problem {
		g := &resolver{in: in, kind: kind}
		r.Private = &guest.Resolution{}
		switch want := guest.TargetOf(r).(type) {
		case guest.VMTarget:
			(&vmResolver{want, g}).complete()
		case guest.CTTarget:
			(&ctResolver{want, g}).complete()
		}
		return g.problems
	}
}

// resolver is what resolving a VM and a container have in common: what the
// site says beside the node, and the rules for what both have.
type resolver struct {
	in       model.Scope
	kind     string
	problems []model.Problem
}

func (r *resolver) errorf(path, summary, detail string, args ...any) {
	r.problems = append(r.problems, model.Problem{Path: path, Severity: diag.Error, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
}

func (r *resolver) warnf(path, summary, detail string, args ...any) {
	r.problems = append(r.problems, model.Problem{Path: path, Severity: diag.Warning, Summary: summary, Detail: fmt.Sprintf(detail, args...)})
}

// spec is that of the node; nil if it has none.
func (r *resolver) spec() *model.Spec {
	if r.in.Node == nil {
		return nil
	}
	return r.in.Site.Specs[r.in.Node.Spec]
}

// sized gives the size that preset and node give together, and checks it.
func (r *resolver) sized(preset string, cores, memory, disk int) (allCores, allMemory, rootDisk int) {
	if p := r.in.Site.Presets[preset]; p != nil {
		cores, memory, disk = cmp.Or(cores, p.Cores), cmp.Or(memory, p.Memory), cmp.Or(disk, p.Disk)
	}
	missing := []string{}
	if cores == 0 {
		missing = append(missing, "cores")
	}
	if memory == 0 {
		missing = append(missing, "memory")
	}
	if len(missing) > 0 && preset == "" {
		r.errorf("", "node without size", "it has no %s: name a preset, or set them", strings.Join(missing, " and no "))
	}
	if cores < 0 || cores > 8192 {
		r.errorf("cores", "cores out of range", "%d is not between 1 and 8192", cores)
	}
	if memory != 0 && memory < 16 {
		r.errorf("memory", "memory out of range", "%d MiB is less than the 16 MiB that PVE allows; memory is in MiB", memory)
	}
	return cores, memory, disk
}

// bridge is where cards go that name none.
func (r *resolver) bridge() string {
	bridge := cmp.Or(r.in.Site.Bridge, "vmbr0")
	if h := r.in.Host; h != nil && h.Bridge != "" {
		bridge = h.Bridge
	}
	return bridge
}

// storage is where disks go that name none.
func (r *resolver) storage() string {
	if h := r.in.Host; h != nil && h.Storage != nil && h.Storage.Disks != "" {
		return h.Storage.Disks
	}
	return "local-lvm"
}

// card checks what identifies a network card, and gives its MAC in PVE's form.
func (r *resolver) card(path string, vlan int, mac string) string {
	mac = strings.ToUpper(mac)
	if vlan < 0 || vlan > 4094 {
		r.errorf(path+".vlan", "VLAN tag out of range", "%d is not between 1 and 4094", vlan)
	}
	if mac != "" && !macText.MatchString(mac) {
		r.errorf(path+".mac", fmt.Sprintf("%q is no MAC address of a single card", mac), "write six bytes such as BC:24:11:00:00:01; the second digit must be even")
	}
	return mac
}

// first completes the address of the first card, which is the spec's, else by dhcp; to
// one that is no word of these leads the site's gateway.
func (r *resolver) first(ip, gateway string, words ...string) (fullIP, fullGateway string) {
	if spec := r.spec(); spec != nil && spec.Network != nil {
		ip, gateway = cmp.Or(ip, spec.Network.IP), cmp.Or(gateway, spec.Network.Gateway)
	}
	if ip = cmp.Or(ip, "dhcp"); !slices.Contains(words, ip) {
		gateway = cmp.Or(gateway, r.in.Site.Gateway)
	}
	return ip, gateway
}

// static checks an address and the gateway to it; words are what may stand for an
// address. It gives both in their shortest form.
func (r *resolver) static(path, suffix, ip, gateway string, words ...string) (shortIP, shortGateway string) {
	if ip == "" || slices.Contains(words, ip) {
		switch {
		case gateway != "" && ip == "":
			r.errorf(path+".gateway"+suffix, "gateway without a static address", "set ip%s to an address, or remove the gateway", suffix)
		case gateway != "":
			r.errorf(path+".gateway"+suffix, "gateway without a static address", "with %q the gateway comes from elsewhere: remove it, or set an address", ip)
		}
		return ip, gateway
	}
	prefix, err := netip.ParsePrefix(ip)
	if err != nil || prefix.Addr().Is6() != (suffix == "6") {
		example := map[string]string{"": "10.0.12.5/24", "6": "fd00::5/64"}[suffix]
		r.errorf(path+".ip"+suffix, fmt.Sprintf("%q is not an address with prefix length", ip), "write an address such as %s, or one of %s", example, strings.Join(words, ", "))
		return ip, gateway
	}
	if gateway == "" {
		return prefix.String(), ""
	}
	gw, err := netip.ParseAddr(gateway)
	switch {
	case err != nil:
		r.errorf(path+".gateway"+suffix, fmt.Sprintf("%q is not an address", gateway), "write the address alone, without prefix length")
	case gw.Is6() != prefix.Addr().Is6():
		r.errorf(path+".gateway"+suffix, fmt.Sprintf("%q is no %s address", gateway, map[string]string{"": "IPv4", "6": "IPv6"}[suffix]),
			"gateway is for ip, gateway6 for ip6")
	case !prefix.Contains(gw) && !gw.IsLinkLocalUnicast():
		r.errorf(path+".ip"+suffix, fmt.Sprintf("gateway %s is not in the network of %s", gw, ip), "a gateway must be reachable directly: check the prefix length, or set gateway%s on the nic", suffix)
	default:
		gateway = gw.String()
	}
	return prefix.String(), gateway
}

// names are the name servers and the domain by spec, else by site.
func (r *resolver) names() (dns []string, domain string) {
	dns, domain = r.in.Site.DNS, r.in.Site.Domain
	if spec := r.spec(); spec != nil {
		if spec.Network != nil && len(spec.Network.DNS) > 0 {
			dns = spec.Network.DNS
		}
		if spec.Identity != nil {
			domain = cmp.Or(spec.Identity.Domain, domain)
		}
	}
	return slices.Clone(dns), domain
}

// sshKeys are all keys of the site, or those that the spec names for a user.
func (r *resolver) sshKeys(user string) []string {
	all := map[string]string{}
	if r.in.Site.Secrets != nil {
		all = r.in.Site.Secrets.Values["ssh_keys"]
	}
	var named *[]string
	if spec := r.spec(); spec != nil && spec.Access != nil {
		for _, u := range spec.Access.Users {
			if u.Name == user {
				named = u.SSHKeys
			}
		}
	}
	out := []string{}
	if named == nil {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !isPrivateKey(all[name]) { // one that is kept there for logging in to a host is nobody's to have
				out = append(out, r.publicKeys(name, all[name])...)
			}
		}
	} else {
		for _, name := range *named {
			k := name
			if v, ok := all[name]; ok {
				k = v
			} else {
				name = "ssh_keys"
			}
			out = append(out, r.publicKeys(name, k)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// publicKeys takes a text apart into public keys. PVE refuses a request in which one
// line is none, and a private key must not even get into one. What the secrets hold is
// the site's business: it is told once, and not at each guest that gets all keys.
func (r *resolver) publicKeys(name, value string) []string {
	kept := false
	if r.in.Site.Secrets != nil {
		_, kept = r.in.Site.Secrets.Values["ssh_keys"][name]
	}
	wrong := func(summary, end string) {
		how := "write the one line of the .pub file: ssh-ed25519 AAAA… and who it is" + end
		if kept {
			how = "in the section ssh_keys of the secrets, " + how
		}
		r.problems = append(r.problems, model.Problem{Severity: diag.Error, Site: kept, Summary: summary, Detail: how})
	}
	if isPrivateKey(value) {
		wrong(fmt.Sprintf("ssh key %q is a private key", name), "; the private key stays with its user")
		return nil
	}
	lines := property.KeyLines(value)
	for _, l := range lines {
		if !isPublicKey(l) {
			wrong(fmt.Sprintf("ssh key %q is not a public key", name), "")
			return nil
		}
	}
	return lines
}

func isPrivateKey(s string) bool { return strings.Contains(s, "PRIVATE KEY-----") }

// isPublicKey reports whether a line of authorized_keys holds a type and the base64 of
// a key that begins with the same type (RFC 4253, section 6.6); options may stand in front.
func isPublicKey(line string) bool {
	fields := strings.Fields(line)
	for i := range max(len(fields)-1, 0) {
		blob, err := base64.StdEncoding.DecodeString(fields[i+1])
		if err == nil && len(blob) > 4+len(fields[i]) && string(blob[4:4+len(fields[i])]) == fields[i] {
			return true
		}
	}
	return false
}

// tagged gives the tags with ours, in the order and form in which PVE keeps them: lower
// case, sorted, each once (pve-guest-common, PVE/GuestHelpers.pm, get_unique_tags). One
// that is declared otherwise is written as PVE keeps it, with a warning: a host may be
// set to keep upper case, and the text of the files would then say another tag than the
// guest has.
func (r *resolver) tagged(declared []string) []string {
	tags := []string{owner.PVETag}
	for i, t := range declared {
		kept := strings.ToLower(t)
		switch {
		case !tagText.MatchString(kept):
			r.errorf("tags", fmt.Sprintf("%q is not a tag", t), "a tag has letters, digits, and _ - + . behind the first character")
			continue
		case kept != t:
			r.warnf("tags", fmt.Sprintf("tag %q is kept as %q", t, kept), "PVE keeps tags in lower case: write %q", kept)
		case slices.ContainsFunc(declared[:i], func(other string) bool { return strings.ToLower(other) == t }):
			r.warnf("tags", fmt.Sprintf("tag %q is there twice", t), "PVE keeps each tag once: remove one of them")
		}
		tags = append(tags, kept)
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// conduct checks power, restart, startup and notes.
func (r *resolver) conduct(power, restart, notes string, st *guest.Startup) {
	for path, c := range map[string]struct {
		value string
		known []string
	}{
		"power":   {power, []string{"running", "stopped"}},
		"restart": {restart, []string{"never", "allowed"}},
	} {
		if !slices.Contains(c.known, c.value) {
			r.errorf(path, fmt.Sprintf("%s = %q is not possible", path, c.value), "%s", diag.DidYouMean(c.value, c.known))
		}
	}
	if st != nil {
		for path, n := range map[string]*int{"order": st.Order, "up": st.Up, "down": st.Down} {
			if n != nil && *n < 0 {
				r.errorf("startup."+path, fmt.Sprintf("startup.%s = %d is not possible", path, *n), "it is a count: 0 or more")
			}
		}
	}
	if strings.Contains(notes, owner.Prefix) {
		r.errorf("description", "description holds an ownership tag", "the line that starts with %q is added by the program", owner.Prefix)
	}
	if len(notes) > 6000 {
		r.errorf("description", "description too long", "PVE keeps %d characters, and the ownership tag needs some: at most 6000", owner.MaxDescription)
	}
}

// owned writes down what the files decide of the ownership tag of a guest that is made of
// something, and gives its terms. longest holds identities of their greatest length.
func (r *resolver) owned(g guest.Target, from string, longest owner.Tag) (terms string) {
	c := g.Common()
	down := 0
	if c.Startup != nil && c.Startup.Down != nil {
		down = *c.Startup.Down
	}
	m := owner.Of(r.in, r.kind, from, down)
	m.Removes = g.Volumes().Removes()
	g.Resolved().OwnerTag, terms = m, m.Terms()
	m.UUID, m.Seed, m.MAC, m.Keys, m.CreationVMID = longest.UUID, longest.Seed, longest.MAC, longest.Keys, 999_999_999
	m.Slots, m.Options = g.Slots(view.Config{}, nil), slices.Sorted(maps.Keys(g.Declared()))
	r.fits(c.Description, m)
	return terms
}

// fits checks that notes and mark have room in a description.
func (r *resolver) fits(notes string, m owner.Tag) {
	if n := utf8.RuneCountInString(owner.Describe(notes, m)); n > owner.MaxDescription {
		r.errorf("description", "description too long", "with the ownership tag it has %d characters, PVE keeps %d: shorten it", n, owner.MaxDescription)
	}
}

// checkAttributes holds what the files declare against the API table, but for what was found
// to be wrong before.
func (r *resolver) checkAttributes(as attribute.Table, spec any, k *options.Keys) {
	before := r.problems
	for _, no := range as.Refused(spec, k.Refusal) {
		if !slices.ContainsFunc(before, func(p model.Problem) bool { return p.Path == no.Name || strings.HasPrefix(p.Path, no.Name+".") }) {
			r.errorf(no.Name, fmt.Sprintf("PVE refuses %s = %q", no.Name, no.Text), "%s", no.Why)
		}
	}
}

// limits checks what a card of VMs and of containers is limited to, and gives its trunk
// in the one form. Containers have no ranges in theirs (pve-container, PVE/LXC/Config.pm).
func (r *resolver) limits(path string, rate float64, trunks []string, ranges bool) []string {
	if rate < 0 {
		r.errorf(path+".rate", "rate out of range", "%s MB/s is less than none", guest.RateText(rate))
	}
	var list []property.VLANs
	for _, t := range trunks {
		v, ok := property.ParseVLANs(t)
		switch {
		case !ok && ranges:
			r.errorf(path+".trunks", fmt.Sprintf("%q is no VLAN and no range of them", t), "write a VLAN tag between 1 and %d, or a range such as 10-20", property.MaxVLAN)
		case !ok:
			r.errorf(path+".trunks", fmt.Sprintf("%q is no VLAN", t), "write a VLAN tag between 1 and %d", property.MaxVLAN)
		case !ranges && v.First != v.Last:
			r.errorf(path+".trunks", fmt.Sprintf("range %q in the trunk of a container", t), "PVE takes single VLAN tags there: list them one by one")
		default:
			list = append(list, v)
		}
	}
	return property.SortVLANs(list, ranges)
}
