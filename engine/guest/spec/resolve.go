package spec

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// defaultPosture is the posture of a spec that names none, if the site has it.
const defaultPosture = "dev"

// Resolve returns the spec of a node, and findings. A node without a spec has an empty one, which withdraws an
// earlier one. It only reads the site, and the same site gives the same spec.
func Resolve(site *model.Site, node *model.Node) (*Spec, diag.List) {
	declared := site.Specs[node.Spec]
	if declared == nil {
		return Empty(node.Name), nil
	}
	r := newResolver(site, declared, node)
	r.resolve(node, true)
	if node.Mode == model.ModePull || node.TakesCommands() {
		r.out.Run = &Run{Trigger: "manual"}
		if d := declared.Run; d != nil {
			r.out.Run = &Run{Trigger: cmp.Or(d.Trigger, "manual"), Interval: int(d.Interval.Seconds())}
		}
		if node.Mode != model.ModePull {
			r.out.Run.Trigger, r.out.Run.Pushed = "webhook", true
		}
	}
	r.out.complete()
	return r.out, append(r.found, r.secrets...)
}

type resolver struct {
	site     *model.Site
	declared *model.Spec
	level    *model.Posture // nil: the site has none for this spec
	out      *Spec
	found    diag.List
	secrets  diag.List // about the values of secrets
	extra    []string  // packages that other settings need
}

func newResolver(site *model.Site, declared *model.Spec, node *model.Node) *resolver {
	r := &resolver{site: site, declared: declared, out: &Spec{Node: node.Name, Name: declared.Name, Sensitive: slices.Clone(declared.Sensitive)}}
	for _, name := range declared.Missing {
		r.secretf("secret %s is not known here", "the spec %s needs its value: name the file of secrets with --secrets", name, declared.Name)
	}
	return r
}

// resolve resolves a spec. Without a node, which is then one of no type, what depends on its disks and type is left out.
func (r *resolver) resolve(node *model.Node, exists bool) {
	r.identity(node)
	r.network(node)
	r.posture()
	r.access(node)
	r.config()
	if exists {
		r.disks(node)
		r.pve(node)
	}
	r.platform()
}

// unknown reports whether a value may be empty because it is that of a secret which is not known here.
func (r *resolver) unknown(value string) bool { return value == "" && len(r.declared.Missing) > 0 }

// secretf is errorf for findings about the value of a secret.
func (r *resolver) secretf(summary, detail string, what any, args ...any) {
	r.secrets = append(r.secrets, diag.Errorf(r.declared.At, fmt.Sprintf(summary, what), detail, args...))
}

// errorf adds a finding: the first argument belongs to the summary, the others to the detail.
func (r *resolver) errorf(summary, detail string, what any, args ...any) {
	r.found = append(r.found, diag.Errorf(r.declared.At, fmt.Sprintf(summary, what), detail, args...))
}

// errorAt adds a finding where an attribute or block of the spec is declared.
func (r *resolver) errorAt(path, summary, detail string, args ...any) {
	r.found = append(r.found, diag.Errorf(r.declared.RangeOf(path), summary, detail, args...))
}

func (r *resolver) identity(node *model.Node) {
	r.out.Identity = &Identity{Hostname: node.Name, Domain: r.site.Domain}
	if i := r.declared.Identity; i != nil {
		r.out.Identity.Hostname = cmp.Or(i.Hostname, node.Name)
		r.out.Identity.Domain = cmp.Or(i.Domain, r.site.Domain)
	}
}

// network returns the configuration that the node gets from outside when it is created, so that the two never differ: the first
// card of the node comes before the spec (drivers/proxmox/resolve). A spec without the block leaves
// the inside as it is, whatever the cards say.
func (r *resolver) network(node *model.Node) {
	declared := r.declared.Network
	if declared == nil {
		return
	}
	n := &Network{IP: declared.IP, Gateway: declared.Gateway, DNS: slices.Clone(declared.DNS)}
	if node.Resource != nil {
		if card, ok := node.Resource.Spec.(interface {
			FirstAddress() (ip, gateway string)
		}); ok {
			ip, gateway := card.FirstAddress()
			n.IP, n.Gateway = cmp.Or(ip, n.IP), cmp.Or(gateway, n.Gateway)
		}
	}
	n.IP = cmp.Or(n.IP, DHCP)
	if len(n.DNS) == 0 {
		n.DNS = slices.Clone(r.site.DNS)
	}
	r.out.Network = n
	switch n.IP {
	case DHCP:
		n.Gateway = ""
		return
	case "manual": // of a container: PVE leaves the card alone, and so do we
		n.IP, n.Gateway = "", ""
		return
	}
	n.Gateway = cmp.Or(n.Gateway, r.site.Gateway)
	if at, err := netip.ParsePrefix(n.IP); err == nil { // what is wrong with it is reported for the card
		n.IP = at.String()
	}
}

func (r *resolver) posture() {
	name := ""
	if r.declared.Access != nil {
		name = r.declared.Access.Posture
	}
	r.level = r.site.Postures[cmp.Or(name, defaultPosture)]
	if r.level == nil {
		return
	}
	r.out.Posture = &posture{Name: r.level.Name}
	if s := r.level.SSH; s != nil {
		r.out.Posture.SSH = &SSH{
			Port: strconv.Itoa(cmp.Or(s.Port, 22)), PermitRootLogin: cmp.Or(s.PermitRootLogin, "prohibit-password"),
			PasswordAuthentication: cmp.Or(s.PasswordAuthentication, "no"),
		}
	}
	if f := r.level.Fail2ban; f != nil && f.Enabled {
		r.out.Posture.Fail2ban = &Fail2ban{}
		// Debian 12 has no auth.log, so the jail reads the journal, for which fail2ban only suggests this package.
		r.extra = append(r.extra, "fail2ban", "python3-systemd")
	}
}

func (r *resolver) access(node *model.Node) {
	r.out.Access = &access{}
	if node.Type != container { // nothing but root is in a new one
		r.out.Access.FirstUser = cmp.Or(r.site.VMUser, "homestak")
	}
	if r.declared.Access == nil {
		return
	}
	r.out.Access.FormerUsers = cmp.Or(r.declared.Access.FormerUsers, "lock")
	for _, u := range r.declared.Access.Users {
		user := User{Name: u.Name, Sudo: SudoNone, Groups: slices.Clone(u.Groups), Shell: cmp.Or(u.Shell, "/bin/bash"), Keys: r.keys(u)}
		switch {
		case u.Name == "root": // needs no rule, and must not get one that takes it away
			user.Sudo, user.Shell = "", u.Shell
		case u.Sudo:
			user.Sudo = SudoPassword
			if r.level != nil && r.level.Sudo != nil && r.level.Sudo.NoPasswd {
				user.Sudo = SudoNoPasswd
			}
			r.extra = append(r.extra, "sudo")
		}
		r.out.Access.Users = append(r.out.Access.Users, user)
	}
}

// keys are the key lines of a user.
func (r *resolver) keys(u model.User) []string {
	var out []string
	for _, k := range r.site.Secrets.KeysOf(u.SSHKeys) {
		if k.Text == "" && k.Secret != "" {
			r.secretf("the value of secret.ssh_keys.%s is not known here", "name a file of secrets that has it with --secrets, or the age identity that decrypts secrets.sops.yaml", k.Secret)
			continue
		}
		out = append(out, r.keyLines(u, k)...)
	}
	slices.Sort(out)
	return slices.CompactFunc(out, func(a, b string) bool { return model.SSHKeyID(a) == model.SSHKeyID(b) })
}

// keyLines are the lines of a key up to the first one that is not a key.
func (r *resolver) keyLines(u model.User, k model.SSHKey) []string {
	lines := k.Lines()
	wrong := slices.IndexFunc(lines, func(l string) bool { return model.SSHKeyID(l) == "" })
	if wrong < 0 {
		return lines
	}
	say := r.secretf
	if k.Secret == "" && strings.ContainsAny(k.Text, " \n") { // the name of a secret has no spaces
		say = r.errorf
	}
	say("ssh key %q is not a public key", "use the line of the .pub file: ssh-ed25519 AAAA… COMMENT", cmp.Or(k.Secret, "ssh_keys of user "+u.Name))
	return lines[:wrong]
}

// packageName matches what Debian allows (Debian Policy, 5.6.1), with an architecture.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?$`)

// unitName matches what systemd allows (systemd.unit(5)), without a folder.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.@\\-]+$`)

func (r *resolver) platform() {
	r.out.Platform = &platform{Services: map[string]string{}}
	packages := slices.Clone(r.site.Packages)
	if r.level != nil {
		packages = append(packages, r.level.Packages...)
	}
	if p := r.declared.Platform; p != nil {
		packages = append(packages, p.Packages...)
		if p.Services != nil {
			r.services(p.Services)
		}
	}
	if r.out.Posture != nil && r.out.Posture.Fail2ban != nil {
		r.out.Platform.Services["fail2ban"] = Enabled
	}
	for _, name := range packages {
		if !packageName.MatchString(name) && !r.unknown(name) {
			r.errorf("%q is not the name of a package", "Debian's names have small letters, digits, plus, minus and dot; a version or release cannot be asked for here", name)
		}
	}
	r.out.Platform.Packages = distinct(append(packages, r.extra...))
}

func (r *resolver) services(s *model.Services) {
	for _, list := range []struct {
		units []string
		state string
	}{{s.Enable, Enabled}, {s.Disable, Disabled}} {
		for _, unit := range list.units {
			unit = strings.TrimSuffix(unit, ".service")
			if r.unknown(unit) {
				continue
			}
			if !unitName.MatchString(unit) {
				r.errorf("%q is not the name of a systemd unit", "write it as systemctl shows it, such as nginx or nginx.service", unit)
				continue
			}
			if was, ok := r.out.Platform.Services[unit]; ok && was != list.state {
				r.errorf("service %q is both enabled and disabled", "keep it in one of the lists of spec %s", unit, r.declared.Name)
			}
			r.out.Platform.Services[unit] = list.state
		}
	}
}

// mode is the default mode of a file: only the owner may read a file made from a secret.
func (r *resolver) mode(path string) string {
	if r.out.IsSensitive("config.file." + path + ".content") {
		return "0600"
	}
	return "0644"
}

// sysctlName is a path below /proc/sys, with dots or slashes.
var sysctlName = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_.@:-]+)+$`)

// zone is a time zone as the machine has it. For a container "host" means the zone of its host, which
// is how PVE makes it: nothing is to be set inside.
func zone(name string) string {
	if name == "host" {
		return ""
	}
	return name
}

func (r *resolver) config() {
	r.out.Config = &config{Timezone: zone(r.site.Timezone)}
	c := r.declared.Config
	if c == nil {
		return
	}
	r.out.Config.Timezone, r.out.Config.Drift = zone(cmp.Or(c.Timezone, r.site.Timezone)), c.Drift
	for _, name := range slices.Sorted(maps.Keys(c.Sysctl)) {
		if !sysctlName.MatchString(name) || strings.Contains(name, "..") || strings.ContainsAny(c.Sysctl[name], "\n\x00") {
			r.errorf("%q is not a kernel parameter", "write it as sysctl shows it, such as net.ipv4.ip_forward, with a value on one line", name)
			continue
		}
		if r.out.Config.Sysctl == nil {
			r.out.Config.Sysctl = map[string]string{}
		}
		r.out.Config.Sysctl[name] = strings.Join(strings.Fields(c.Sysctl[name]), " ")
	}
	for _, f := range c.Files {
		owner, group, _ := strings.Cut(cmp.Or(f.Owner, "root"), ":")
		file := File{
			Path: f.Path, Mode: cmp.Or(f.Mode, r.mode(f.Path)), Owner: owner,
			Group: cmp.Or(f.Group, group, owner), Restart: slices.Clone(f.Restart),
		}
		file.SetContent([]byte(f.Content))
		if f.Source != "" {
			file.SetContent(f.Data)
		}
		r.out.Config.Files = append(r.out.Config.Files, file)
	}
	for _, c := range c.Commands {
		r.out.Config.Commands = append(r.out.Config.Commands, Command{Name: c.Name, Run: c.Run, Unless: c.Unless, Creates: c.Creates})
	}
	for _, p := range c.Repositories {
		if p.Key != "" && !strings.HasPrefix(strings.TrimSpace(p.Key), "-----BEGIN PGP PUBLIC KEY BLOCK-----") {
			r.errorf("the key of repository %q is not a public key", "apt reads an armored block, which begins with -----BEGIN PGP PUBLIC KEY BLOCK-----: convert another form by gpg --enarmor", p.Name)
		}
		r.out.Config.Repositories = append(r.out.Config.Repositories, Repository{
			Name: p.Name, URL: p.URL, Suites: slices.Clone(p.Suites), Components: slices.Clone(p.Components), Key: p.Key,
		})
	}
	if on := c.UnattendedUpgrades; on != nil {
		r.out.Config.Files = append(r.out.Config.Files, upgradesFile(*on))
		if *on {
			r.extra = append(r.extra, "unattended-upgrades")
		}
	}
	sort.Slice(r.out.Config.Files, func(i, j int) bool { return r.out.Config.Files[i].Path < r.out.Config.Files[j].Path })
}

// upgradesFile enables or disables apt's daily upgrade (apt.systemd.daily, which reads these settings). It
// overrides 20auto-upgrades of the package.
func upgradesFile(on bool) File {
	day := "0"
	if on {
		day = "1"
	}
	return File{
		Path: "/etc/apt/apt.conf.d/zz-homestak-gitops", Mode: "0644", Owner: "root", Group: "root",
		Content: "// Written by homestak-gitops.\nAPT::Periodic::Update-Package-Lists \"" + day + "\";\nAPT::Periodic::Unattended-Upgrade \"" + day + "\";\n",
	}
}
