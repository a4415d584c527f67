package debian

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// The repository of Debian, as far as it is simulated: popular names, each with a version that is derived from the
// name. Other declared repositories have every package.

// popular are packages without anything in them but a program of their name.
//
//nolint:misspell // mosquitto is a package
const popular = `
	acl adminer ansible apache2-utils apparmor apt-listchanges apt-transport-https aptitude arping at atop attr autoconf automake avahi-daemon bash-completion bat bc bind9-dnsutils bind9-host
	bmon borgbackup bpytop bridge-utils btop btrfs-progs build-essential bzip2 ca-certificates-java caddy certbot chrony cifs-utils clamav cloud-guest-utils cmake cockpit collectd-core conntrack
	containerd coturn cryptsetup cups curl debootstrap dialog direnv dnsmasq dnsutils docker.io dosfstools dovecot-core dstat duf ed ethtool etckeeper exim4 exfatprogs fail2ban fd-find ffmpeg file
	fish freeradius fzf g++ gcc gdb gdisk genisoimage gettext git git-lfs glances gnupg gnupg2 golang-go gparted gpg grafana haproxy hdparm htop httpie hwinfo iftop imagemagick incus inetutils-telnet
	intel-microcode iotop iperf iperf3 ipset iptables iputils-ping isc-dhcp-client isc-dhcp-server ifupdown2 jq keepalived kmod kpartx lftp less lldpd lm-sensors locales logrotate lshw lsof ltrace lvm2 lynx lz4 lzop
	mailutils make man-db mariadb-client mariadb-server mc mdadm memcached memtester meson minicom monit mosh mosquitto moreutils mtr mtr-tiny multipath-tools mutt nano ncdu ncurses-term neovim net-tools netcat-openbsd netcat-traditional nfs-common
	nfs-kernel-server nftables nginx nginx-light nload nmap nodejs npm ntpdate ntpsec numactl nvme-cli open-iscsi open-vm-tools openjdk-17-jre openssl openvpn openvswitch-switch p7zip p7zip-full parted patch pciutils perl php php-fpm pigz
	pipx pkg-config podman polkitd postfix postgresql postgresql-client powertop prometheus prometheus-node-exporter proxmox-ve psmisc pv pwgen python3-apt python3-dev python3-pip python3-requests python3-systemd python3-venv python3-yaml
	qemu-guest-agent qemu-utils quota rabbitmq-server rclone redis redis-server restic ripgrep rkhunter rpcbind rrdtool rsync rsyslog ruby runc samba screen sed sg3-utils shellcheck skopeo smartmontools smbclient snmp snmpd socat software-properties-common
	sqlite3 squid ssh-import-id sshfs sshpass strace stress-ng stunnel4 subversion sysbench sysstat systemd-container systemd-resolved systemd-zram-generator tar tcpdump telnet thin-provisioning-tools time tmux traceroute tree tshark ubuntu-keyring
	ufw unattended-upgrades unbound unrar-free unzip usbutils uuid-runtime valgrind vim vim-nox vlan wakeonlan wget whois wireguard wireguard-tools xfsprogs xz-utils yq zabbix-agent zfsutils-linux zip zlib1g-dev zram-tools zsh zstd`

// daemons are packages whose unit runs as soon as they are installed, and its name.
func daemons() map[string]string {
	out := map[string]string{"docker.io": "docker", "nfs-kernel-server": "nfs-server", "postgresql": "postgresql", "redis": "redis-server", "snmpd": "snmpd", "openssh-server": "ssh", "wireguard": ""}
	for _, name := range []string{
		"avahi-daemon", "caddy", "chrony", "cockpit", "collectd-core", "containerd", "cups", "dnsmasq", "exim4", "fail2ban", "freeradius", "grafana", "haproxy", "keepalived", "lldpd", "mariadb-server",
		"memcached", "monit", "mosquitto", //nolint:misspell // a package
		"nginx", "nginx-light", "open-iscsi", "openvpn", "postfix", "prometheus", "prometheus-node-exporter", "qemu-guest-agent", "rabbitmq-server", "redis-server", "rpcbind", "rsyslog", "smartmontools",
		"squid", "systemd-resolved", "unattended-upgrades", "unbound", "zabbix-agent",
	} {
		if out[name] == "" {
			out[name] = strings.TrimSuffix(name, "-light")
		}
	}
	return out
}

// needs returns the dependencies of some packages.
func needs() map[string][]string {
	return map[string][]string{
		"fail2ban": {"python3-systemd"}, "nginx": {"nginx-common"}, "nginx-light": {"nginx-common"}, "git": {"git-man", "less"}, "htop": {"libnl-3-200"}, "curl": {"libcurl4"},
		"jq": {"libjq1"}, "vim": {"vim-runtime"}, "mariadb-server": {"mariadb-client"}, "redis": {"redis-server"}, "docker.io": {"containerd", "runc"}, "postfix": {"ssl-cert"},
		"proxmox-ve": {"pve-manager"}, "tcpdump": {"libpcap0.8"}, "strace": {"libunwind8"}, "tmux": {"libevent-core"},
	}
}

// debianPackage is a package of Debian; false if it has none of that name.
func debianPackage(name string) (Package, bool) {
	known := slices.Contains(strings.Fields(popular), name) || slices.Contains(inImage(), name)
	for _, list := range needs() {
		known = known || slices.Contains(list, name)
	}
	if !known {
		return Package{}, false
	}
	p := Package{Name: name, Version: version(name), Arch: "amd64", Depends: needs()[name], Files: map[string]string{"/usr/share/doc/" + name + "/copyright": "simulated\n"}, Scripts: map[string]string{}}
	program := "true"
	units := []string{}
	if unit := daemons()[name]; unit != "" {
		program = "daemon"
		units = []string{unit}
	}
	if name == "pve-manager" {
		program, units = "daemon", []string{"pveproxy", "pvedaemon", "pvestatd"}
	}
	binary := "/usr/bin/" + name
	if !strings.HasPrefix(name, "lib") {
		p.Files[binary] = machine.Executable(program)
	}
	if name == "fail2ban" {
		p.Files["/etc/fail2ban/jail.conf"], p.Files["/etc/fail2ban/jail.d/defaults-debian.conf"] = "[DEFAULT]\n", "[sshd]\nenabled = true\n"
		p.Conffiles = []string{"/etc/fail2ban/jail.conf", "/etc/fail2ban/jail.d/defaults-debian.conf"}
	}
	if name == "ifupdown2" {
		p.Files = map[string]string{"/usr/sbin/ifreload": machine.Executable("ifreload"), "/usr/share/ifupdown2/policy.d/vlan.json": "{}\n"}
	}
	for _, unit := range units {
		p.Files["/usr/lib/systemd/system/"+unit+".service"] = "[Unit]\nDescription=" + name + "\n[Service]\nExecStart=" + binary + "\n[Install]\nWantedBy=multi-user.target\n"
	}
	if len(units) > 0 { // as debhelper writes them
		all := strings.Join(units, " ")
		p.Scripts["postinst"] = "#!/bin/sh\nset -e\nif [ \"$1\" = configure ]; then systemctl daemon-reload; systemctl enable --now --quiet " + all + "; fi\n"
		p.Scripts["prerm"] = "#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then systemctl disable --now --quiet " + all + "; fi\n"
		p.Scripts["postrm"] = "#!/bin/sh\nset -e\nsystemctl daemon-reload\n"
	}
	return p, true
}

// version is made from a name, so that it is the same on every machine.
func version(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	n := h.Sum32()
	return fmt.Sprintf("%d.%d.%d-%d", 1+n%9, n/9%20, n/180%10, 1+n/1800%4)
}

// source is one entry of apt's list of sources.
type source struct {
	url, key   string
	suites     []string
	components []string
}

func (s source) listFile() string {
	name := strings.NewReplacer("://", "_", "/", "_", ":", "_").Replace(strings.TrimSuffix(s.url, "/"))
	return "/var/lib/apt/lists/" + name + "_" + strings.Join(slices.Concat(s.suites, s.components), "_") + "_Packages"
}

// debian reports whether a source is that of the distribution.
func (s source) debian() bool {
	return strings.Contains(s.url, "debian.org") || strings.Contains(s.url, "proxmox.com")
}

func (m packages) sources(only string) []source {
	names := []string{"/etc/apt/sources.list"}
	list, _ := m.K.FS.ReadDir(machine.Cred{}, "/etc/apt/sources.list.d")
	for _, f := range list {
		names = append(names, "/etc/apt/sources.list.d/"+f.Name)
	}
	if only != "" {
		names = []string{only}
	}
	var out []source
	for _, name := range names {
		if strings.HasSuffix(name, ".sources") {
			for _, p := range paragraphs(m.K.FS, name) {
				if p["URIs"] != "" && p["Enabled"] != "no" {
					out = append(out, source{url: strings.Fields(p["URIs"])[0], key: p["Signed-By"], suites: strings.Fields(p["Suites"]), components: strings.Fields(p["Components"])})
				}
			}
			continue
		}
		text, _ := m.K.FS.ReadFile(name)
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) > 1 && f[0] == "deb" && strings.HasPrefix(f[1], "[") {
				for len(f) > 2 && !strings.HasSuffix(f[1], "]") {
					f = slices.Delete(f, 1, 2)
				}
				f = slices.Delete(f, 1, 2)
			}
			if len(f) > 2 && f[0] == "deb" {
				out = append(out, source{url: f[1], suites: f[2:3]})
			}
		}
	}
	return out
}

// available finds a package in the lists that apt has.
func (m packages) available(name string) (Package, bool) {
	plain, _, _ := strings.Cut(name, ":")
	others := false
	fromDebian := false
	from := map[string]bool{}
	for _, s := range m.sources("") {
		if _, err := m.K.FS.Stat(machine.Cred{}, s.listFile()); err != nil {
			continue
		}
		url := strings.TrimSuffix(s.url, "/")
		from[url] = true
		for _, c := range s.components {
			from[url+" "+c] = true
		}
		fromDebian = fromDebian || s.debian()
		others = others || !s.debian()
	}
	for _, p := range m.disk.more {
		if p.Name == plain && (p.Source == "" && len(from) > 0 || from[strings.TrimSpace(p.Source+" "+p.Component)]) {
			return complete(p), true
		}
	}
	if p, ok := debianPackage(plain); ok {
		return p, fromDebian
	}
	if others && validPackage(plain) && len(m.disk.more) == 0 { // other repositories may have it
		return complete(Package{Name: plain, Files: map[string]string{"/usr/share/doc/" + plain + "/copyright": "simulated\n"}}), true
	}
	return Package{}, false
}

func validPackage(name string) bool {
	return len(name) > 1 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

func complete(p Package) Package {
	p.Version, p.Arch = cmp.Or(p.Version, "1.0"), cmp.Or(p.Arch, "all")
	return p
}

func (m packages) aptGet(p *machine.Process, o userland.Options) int {
	words, simulate, uris, only := o.Args, o.Has("s"), o.Has("print-uris"), ""
	for _, setting := range o.All("o") { // what else is set makes no difference here
		if value, ok := strings.CutPrefix(setting, "Dir::Etc::sourcelist="); ok {
			only = value
		}
	}
	if !simulate && !uris {
		if p.Cred.UID != 0 {
			fmt.Fprintf(p.Err(), "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\n")
			return 100
		}
		lock, err := p.Open("/var/lib/dpkg/lock-frontend", 0x42, 0o640)
		if err != nil {
			return 100
		}
		defer p.K.Close(lock)
		if !p.Lock(lock, 2*time.Minute) {
			fmt.Fprintf(p.Err(), "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process\n")
			return 100
		}
	}
	switch {
	case uris:
		return m.printURIs(p, words, only)
	case words[0] == "install" && !simulate && !m.names() && m.fetches(words[1:]):
		return m.unresolved(p)
	}
	switch words[0] {
	case "update":
		return m.aptUpdate(p, only)
	case "install":
		return m.aptInstall(p, words[1:], simulate)
	case "remove", "purge":
		return m.aptRemove(p, words[1:], simulate)
	case "autoremove":
		return m.remove(p, readDatabase(m.K.FS).unneeded(), simulate)
	}
	fmt.Fprintf(p.Err(), "E: Invalid operation %s\n", words[0])
	return 100
}

func (m packages) aptUpdate(p *machine.Process, only string) int {
	for n, s := range m.sources(only) {
		if s.key != "" && strings.HasSuffix(s.key, ".asc") {
			if text, err := m.K.FS.ReadFile(s.key); err != nil || !strings.Contains(text, "PGP PUBLIC KEY") {
				fmt.Fprintf(p.Err(), "Err:%d %s InRelease\nE: The repository '%[2]s' is not signed.\n", n+1, s.url)
				return 100
			}
		}
		if !strings.HasPrefix(s.url, "http://") && !strings.HasPrefix(s.url, "https://") && !strings.HasPrefix(s.url, "file:") {
			fmt.Fprintf(p.Err(), "E: The method driver for %s could not be found.\n", s.url)
			return 100
		}
		if strings.Contains(s.url, "enterprise.proxmox.com") {
			fmt.Fprintf(p.Err(), "Err:%d %s InRelease\n  401  Unauthorized\nE: The repository '%[2]s' is not signed.\n", n+1, s.url)
			return 100
		}
		if !m.names() {
			fmt.Fprintf(p.Err(), "Err:%d %s InRelease\n  Temporary failure resolving '%s'\nE: Failed to fetch %[2]s\n", n+1, s.url, s.host())
			return 100
		}
		p.Printf("Get:%d %s InRelease\n", n+1, s.url)
		must(m.K.FS.WriteFile(s.listFile(), "Origin: simulated\n", 0o644, 0, 0))
	}
	p.Printf("Reading package lists...\n")
	return 0
}

// plan lists what has to come with packages, what is needed first.
func (m packages) plan(d *database, names []string) (list []Package, missing string) {
	seen := map[string]bool{}
	var add func(name string) string
	add = func(name string) string {
		if seen[name] || d.has(name) {
			return ""
		}
		seen[name] = true
		p, ok := m.available(name)
		if !ok {
			return name
		}
		for _, need := range p.Depends {
			if missing := add(need); missing != "" {
				return missing
			}
		}
		list = append(list, p)
		return ""
	}
	for _, name := range names {
		if missing := add(name); missing != "" {
			return nil, missing
		}
	}
	return list, ""
}

func (m packages) aptInstall(p *machine.Process, names []string, simulate bool) int {
	d := readDatabase(m.K.FS)
	var plain []string
	for _, name := range names {
		n, _, _ := strings.Cut(name, ":")
		plain = append(plain, n)
	}
	list, missing := m.plan(d, plain)
	if missing != "" {
		fmt.Fprintf(p.Err(), "E: Unable to locate package %s\n", missing)
		return 100
	}
	if simulate {
		for _, one := range list {
			p.Printf("Inst %s (%s simulated [%s])\n", one.Name, one.Version, one.Arch)
		}
		for _, one := range list {
			p.Printf("Conf %s (%s simulated [%s])\n", one.Name, one.Version, one.Arch)
		}
		return 0
	}
	for _, one := range list {
		if p.Dead() {
			return 100
		}
		p.Printf("Setting up %s (%s) ...\n", one.Name, one.Version)
		if !m.unpack(p, d, one, !slices.Contains(plain, one.Name)) {
			fmt.Fprintf(p.Err(), "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
			return 100
		}
	}
	for _, name := range plain {
		if one := d.find(name); one != nil {
			one.auto = false
		}
	}
	d.write(m.K.FS)
	return m.afterDpkg(p)
}

// dependents are installed packages that need one of these, and those that need them in turn.
func (d *database) dependents(names []string) []string {
	out := slices.Clone(names)
	for i := 0; i < len(out); i++ {
		for _, one := range d.list {
			if one.status == statusInstalled && slices.Contains(one.Depends, out[i]) && !slices.Contains(out, one.Name) {
				out = append(out, one.Name)
			}
		}
	}
	slices.Reverse(out)
	return out
}

// unneeded are automatic packages that no manually installed one depends on.
func (d *database) unneeded() []string {
	needed := map[string]bool{}
	var keep func(name string)
	keep = func(name string) {
		one := d.find(name)
		if one == nil || one.status != statusInstalled || needed[name] {
			return
		}
		needed[name] = true
		for _, dep := range one.Depends {
			keep(dep)
		}
	}
	for _, one := range d.list {
		if one.status == statusInstalled && !one.auto {
			keep(one.Name)
		}
	}
	var out []string
	for _, one := range d.list {
		if one.status == statusInstalled && !needed[one.Name] {
			out = append(out, one.Name)
		}
	}
	return d.dependents(out)
}

func (m packages) aptRemove(p *machine.Process, names []string, simulate bool) int {
	d := readDatabase(m.K.FS)
	var list []string
	for _, name := range names {
		one := d.find(name)
		if one == nil {
			if _, ok := m.available(name); !ok {
				fmt.Fprintf(p.Err(), "E: Unable to locate package %s\n", name)
				return 100
			}
			continue
		}
		if one.status != statusConfig {
			list = append(list, one.Name)
		}
	}
	return m.remove(p, d.dependents(list), simulate)
}

func (m packages) remove(p *machine.Process, list []string, simulate bool) int {
	d := readDatabase(m.K.FS)
	for _, name := range list {
		if simulate {
			p.Printf("Remv %s [%s]\n", name, d.find(name).Version)
			continue
		}
		p.Printf("Removing %s ...\n", name)
		if !m.erase(p, d, name) {
			fmt.Fprintf(p.Err(), "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
			return 100
		}
	}
	return m.afterDpkg(p)
}

func (m packages) aptCache(p *machine.Process, o userland.Options) int {
	rest := o.Args
	d := readDatabase(m.K.FS)
	code := 0
	for _, name := range rest[1:] {
		plain, _, _ := strings.Cut(name, ":")
		one, there := m.available(plain)
		have := d.find(plain)
		switch rest[0] {
		case "policy":
			if !there && have == nil {
				continue
			}
			on, candidate := "(none)", "(none)"
			if have != nil && have.status == statusInstalled {
				on, candidate = have.Version, have.Version
			}
			if there {
				candidate = one.Version
			}
			p.Printf("%s:\n  Installed: %s\n  Candidate: %s\n", plain, on, candidate)
		case "show":
			if have != nil && !there && have.status == statusInstalled {
				one, there = have.Package, true
			}
			if !there {
				fmt.Fprintf(p.Err(), "E: No packages found\n")
				code = 100
				continue
			}
			p.Printf("Package: %s\nVersion: %s\nArchitecture: %s\nDepends: %s\n\n", one.Name, one.Version, one.Arch, strings.Join(one.Depends, ", "))
		default:
			fmt.Fprintf(p.Err(), "E: Invalid operation %s\n", rest[0])
			return 100
		}
	}
	return code
}

func (m packages) aptSelections(p *machine.Process, o userland.Options) int {
	rest := o.Args
	d := readDatabase(m.K.FS)
	switch rest[0] {
	case "showmanual", "showauto":
		for _, one := range d.list {
			if one.status == statusInstalled && one.auto == (rest[0] == "showauto") && (len(rest) == 1 || slices.Contains(rest[1:], one.Name)) {
				p.Printf("%s\n", one.Name)
			}
		}
		return 0
	case "auto", "manual":
	default:
		fmt.Fprintf(p.Err(), "E: Invalid operation %s\n", rest[0])
		return 100
	}
	code := 0
	changed := map[string]bool{}
	for _, name := range rest[1:] {
		one := d.find(name)
		if one == nil || one.status == statusConfig {
			fmt.Fprintf(p.Err(), "E: Unable to locate package %s\n", name)
			code = 100
			continue
		}
		changed[one.Name] = one.auto != (rest[0] == "auto")
		one.auto = rest[0] == "auto"
	}
	if slices.Contains(slices.Collect(maps.Values(changed)), true) {
		d.write(m.K.FS)
	}
	return code
}
