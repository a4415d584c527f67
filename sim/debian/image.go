package debian

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// install puts the system on a disk.
func (d *Disk) install(o Options) {
	fs := d.fs
	suite := map[string]string{"12": "bookworm", "13": "trixie"}[o.Suite]
	for _, dir := range []string{"/boot", "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/var/log", "/var/cache", "/var/tmp", "/var/lib/apt/lists"} {
		must(fs.MkdirAll(dir, 0o755))
	}
	for link, target := range map[string]string{"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/var/run": "/run", "/etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "/etc/os-release": "../usr/lib/os-release"} {
		must(fs.Symlink(machine.Cred{}, target, link))
	}
	must(fs.Chmod(machine.Cred{}, "/root", 0o700))
	must(fs.Chmod(machine.Cred{}, "/var/tmp", 0o1777))
	for name := range userland.Programs() {
		d.put("/usr/bin/"+name, machine.Executable(name), 0o755)
	}
	d.put(interfacesFile, loopback, 0o644)
	must(fs.MkdirAll("/etc/network/interfaces.d", 0o755))
	must(fs.MkdirAll("/etc/cloud/cloud.cfg.d", 0o755))
	for name, dir := range systemPrograms() {
		d.put(dir+"/"+name, machine.Executable(name), 0o755)
	}
	for name := range o.Programs {
		must(fs.MkdirAll(path.Dir(name), 0o755))
		d.put(name, machine.Executable(name), 0o755)
	}
	must(fs.Chmod(machine.Cred{}, "/usr/bin/sudo", 0o4755))
	d.put("/usr/sbin/nologin", machine.Executable("nologin"), 0o755)
	must(fs.Remove(machine.Cred{}, "/usr/bin/nologin"))
	for _, name := range []string{"systemd-timesyncd", "systemd-networkd"} {
		d.put("/usr/lib/systemd/"+name, machine.Executable(name), 0o755)
	}
	d.put("/usr/lib/os-release", fmt.Sprintf("PRETTY_NAME=\"Debian GNU/Linux %[1]s (%[2]s)\"\nNAME=\"Debian GNU/Linux\"\nVERSION_ID=\"%[1]s\"\nVERSION=\"%[1]s (%[2]s)\"\nVERSION_CODENAME=%[2]s\nID=debian\n", o.Suite, suite), 0o644)
	d.put("/etc/debian_version", o.Suite+".0\n", 0o644)
	d.put("/etc/hostname", "localhost\n", 0o644)
	d.put("/etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n", 0o644)
	d.put("/etc/resolv.conf", "", 0o644)
	d.put("/etc/shells", "/bin/sh\n/bin/bash\n/usr/bin/bash\n", 0o644)
	d.put("/etc/motd", "\nDebian GNU/Linux comes with ABSOLUTELY NO WARRANTY.\n", 0o644)
	if o.Suite == "12" {
		d.put("/etc/timezone", "Etc/UTC\n", 0o644)
	}
	d.put("/etc/skel/.profile", "# ~/.profile\n", 0o644)
	d.put("/etc/skel/.bashrc", "# ~/.bashrc\n", 0o644)
	for name, offset := range zones() {
		d.put("/usr/share/zoneinfo/"+name, offset+"\n", 0o644)
	}
	must(fs.Symlink(machine.Cred{}, "Etc/UTC", "/usr/share/zoneinfo/UTC")) // as tzdata has it
	d.accountsAtFirst()
	d.put("/etc/sudoers", "Defaults\tenv_reset\nroot\tALL=(ALL:ALL) ALL\n%sudo\tALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n", 0o440)
	d.put("/etc/sudoers.d/README", "#\n# Files here are read by sudo.\n", 0o440)
	must(fs.Chmod(machine.Cred{}, "/etc/sudoers.d", 0o750))
	d.put("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\nKbdInteractiveAuthentication no\nUsePAM yes\nX11Forwarding yes\nPrintMotd no\nSubsystem sftp /usr/lib/openssh/sftp-server\n", 0o644)
	must(fs.MkdirAll("/etc/ssh/sshd_config.d", 0o755))
	must(fs.MkdirAll("/etc/sysctl.d", 0o755))
	must(fs.MkdirAll("/etc/apt/sources.list.d", 0o755))
	must(fs.MkdirAll("/etc/apt/keyrings", 0o755))
	d.put("/etc/apt/sources.list.d/debian.sources", fmt.Sprintf("Types: deb\nURIs: http://deb.debian.org/debian\nSuites: %[1]s %[1]s-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n", suite), 0o644)
	for name, text := range imageUnits() {
		d.put("/usr/lib/systemd/system/"+name, text, 0o644)
	}
	for _, name := range []string{"cron.service", "networking.service", "ssh.service", "systemd-timesyncd.service"} {
		d.link("/etc/systemd/system/multi-user.target.wants/"+name, "/usr/lib/systemd/system/"+name)
	}
	for _, name := range []string{"apt-daily.timer", "fstrim.timer"} {
		d.link("/etc/systemd/system/timers.target.wants/"+name, "/usr/lib/systemd/system/"+name)
	}
	db := database{}
	for _, name := range inImage() {
		db.list = append(db.list, installed{Package: Package{Name: name, Version: version(name), Arch: "amd64"}, status: statusInstalled})
	}
	for _, name := range o.Installed {
		d.installed(&db, name, false)
	}
	db.write(fs)
}

// installed puts a package and what it needs into the image, as if apt had installed it and its services.
func (d *Disk) installed(db *database, name string, auto bool) {
	of, known := debianPackage(name)
	if !known || db.find(name) != nil {
		return
	}
	for _, other := range of.Depends {
		d.installed(db, other, true)
	}
	var list strings.Builder
	for _, file := range slices.Sorted(maps.Keys(of.Files)) {
		list.WriteString(file + "\n")
		perm := uint32(0o644)
		if strings.HasPrefix(of.Files[file], machine.Executable("")[:4]) {
			perm = 0o755
		}
		d.put(file, of.Files[file], perm)
		if unit := path.Base(file); strings.HasSuffix(unit, ".service") {
			d.link("/etc/systemd/system/multi-user.target.wants/"+unit, file)
		}
	}
	d.put(listOf(name), list.String(), 0o644)
	for script, text := range of.Scripts {
		d.put("/var/lib/dpkg/info/"+name+"."+script, text, 0o755)
	}
	db.list = append(db.list, installed{Package: of, status: statusInstalled, auto: auto})
}

func (d *Disk) put(name, text string, perm uint32) { must(d.fs.WriteFile(name, text, perm, 0, 0)) }

func (d *Disk) link(name, target string) {
	must(d.fs.MkdirAll(name[:strings.LastIndexByte(name, '/')], 0o755))
	must(d.fs.Symlink(machine.Cred{}, target, name))
}

// systemPrograms are the programs of this package, and the folders that they are in.
func systemPrograms() map[string]string {
	out := map[string]string{}
	for name := range (&Machine{}).programs() {
		dir := "/usr/bin"
		if slices.Contains([]string{"useradd", "usermod", "userdel", "groupadd", "groupdel", "sshd", "visudo", "cron", "agetty", "ifup", "ifdown", "ifreload", "blkid", "mkfs.ext4", "dumpe2fs", "resize2fs", "mkswap", "swapon", "swapoff", "wipefs"}, name) {
			dir = "/usr/sbin"
		}
		out[name] = dir
	}
	out["apt-helper"] = "/usr/lib/apt"
	delete(out, "ifreload") // of ifupdown2
	return out
}

// inImage are the installable packages of the image.
func inImage() []string {
	return []string{
		"adduser", "apt", "base-files", "base-passwd", "bash", "ca-certificates", "cloud-init", "coreutils", "cron", "dash", "dbus", "debianutils", "diffutils", "dpkg",
		"e2fsprogs", "findutils", "gpgv", "grep", "gzip", "hostname", "ifupdown", "init", "iproute2", "libc6", "login", "mount", "ncurses-base",
		"netbase", "openssh-client", "openssh-server", "openssh-sftp-server", "passwd", "perl-base", "procps", "python3", "sed", "sudo", "systemd", "systemd-sysv", "systemd-timesyncd",
		"tar", "tzdata", "udev", "util-linux", "vim-tiny",
	}
}

// imageUnits are the units of the image.
func imageUnits() map[string]string {
	service := func(text, run string) string {
		return "[Unit]\nDescription=" + text + "\n[Service]\nExecStart=" + run + "\n[Install]\nWantedBy=multi-user.target\n"
	}
	return map[string]string{
		"ssh.service": "[Unit]\nDescription=OpenBSD Secure Shell server\n[Service]\nExecStartPre=/usr/sbin/sshd -t\nExecStart=/usr/sbin/sshd -D\nExecReload=/usr/sbin/sshd -t\n" +
			"ExecReload=/bin/kill -HUP $MAINPID\nType=notify\n[Install]\nWantedBy=multi-user.target\nAlias=sshd.service\n",
		"cron.service":              service("Regular background program processing daemon", "/usr/sbin/cron -f"),
		"systemd-timesyncd.service": service("Network Time Synchronization", "/usr/lib/systemd/systemd-timesyncd"),
		"getty@.service":            "[Unit]\nDescription=Getty on %I\n[Service]\nExecStart=/usr/sbin/agetty\n[Install]\nWantedBy=getty.target\n",
		"systemd-networkd.service":  strings.Replace(service("Network Configuration", "/usr/lib/systemd/systemd-networkd"), "[Service]", "[Service]\nType=notify", 1),
		"networking.service":        strings.Replace(service("Raise network interfaces", "/usr/sbin/ifup -a"), "[Service]", "[Service]\nType=oneshot\nRemainAfterExit=yes", 1),
		"apt-daily.timer":           "[Unit]\nDescription=Daily apt download activities\n[Timer]\nOnCalendar=*-*-* 6,18:00\n[Install]\nWantedBy=timers.target\n",
		"apt-daily.service":         "[Unit]\nDescription=Daily apt download activities\n[Service]\nType=oneshot\nExecStart=/usr/bin/true\n",
		"fstrim.timer":              "[Unit]\nDescription=Discard unused blocks once a week\n[Timer]\nOnCalendar=weekly\n[Install]\nWantedBy=timers.target\n",
		"fstrim.service":            "[Unit]\nDescription=Discard unused blocks\n[Service]\nType=oneshot\nExecStart=/usr/bin/true\n",
	}
}

// zones are some time zones, with the name and the seconds that they are away from UTC in winter.
func zones() map[string]string {
	return map[string]string{
		"Etc/UTC": "UTC 0", "Europe/London": "GMT 0", "Europe/Berlin": "CET 3600", "Europe/Paris": "CET 3600", "Europe/Madrid": "CET 3600", "Europe/Rome": "CET 3600",
		"Europe/Amsterdam": "CET 3600", "Europe/Vienna": "CET 3600", "Europe/Zurich": "CET 3600", "Europe/Stockholm": "CET 3600", "Europe/Warsaw": "CET 3600", "Europe/Helsinki": "EET 7200",
		"Europe/Athens": "EET 7200", "Europe/Moscow": "MSK 10800", "America/New_York": "EST -18000", "America/Chicago": "CST -21600", "America/Denver": "MST -25200",
		"America/Los_Angeles": "PST -28800", "America/Sao_Paulo": "-03 -10800", "Asia/Tokyo": "JST 32400", "Asia/Shanghai": "CST 28800", "Asia/Singapore": "+08 28800", "Asia/Kolkata": "IST 19800",
		"Australia/Sydney": "AEDT 39600", "Pacific/Auckland": "NZDT 46800", "Africa/Johannesburg": "SAST 7200",
	}
}

// parameter is a parameter of the kernel in /proc/sys.
type parameter struct{ value string }

// ReadAt returns the value.
func (p *parameter) ReadAt(_ int, offset int64) []byte {
	text := p.value + "\n"
	if offset >= int64(len(text)) {
		return nil
	}
	return []byte(text[offset:])
}

// Write sets it; where it is a number it takes numbers only.
func (p *parameter) Write(data []byte) error {
	text := strings.TrimSpace(string(data))
	if strings.Trim(p.value, "0123456789- \t") == "" && strings.Trim(text, "0123456789- \t") != "" || text == "" {
		return syscall.EINVAL
	}
	p.value = strings.Join(strings.Fields(text), "\t")
	return nil
}

// parameters are those that a kernel has, with their values at boot.
func parameters() map[string]string {
	return map[string]string{
		"net/ipv4/ip_forward": "0", "net/ipv4/conf/all/forwarding": "0", "net/ipv4/conf/all/accept_redirects": "1", "net/ipv4/conf/default/accept_redirects": "1", "net/ipv4/conf/all/send_redirects": "1",
		"net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/default/rp_filter": "2", "net/ipv4/tcp_syncookies": "1", "net/ipv4/icmp_echo_ignore_broadcasts": "1", "net/ipv4/ip_local_port_range": "32768\t60999",
		"net/ipv4/tcp_rmem": "4096\t131072\t6291456", "net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/all/disable_ipv6": "0", "net/ipv6/conf/default/disable_ipv6": "0", "net/ipv6/conf/all/accept_ra": "1",
		"net/core/somaxconn": "4096", "net/core/rmem_max": "212992", "net/core/wmem_max": "212992", "net/core/default_qdisc": "fq_codel", "net/bridge/bridge-nf-call-iptables": "0",
		"vm/swappiness": "60", "vm/overcommit_memory": "0", "vm/max_map_count": "65530", "vm/dirty_ratio": "20", "vm/dirty_background_ratio": "10",
		"fs/file-max": "9223372036854775807", "fs/inotify/max_user_watches": "65536", "fs/inotify/max_user_instances": "128", "fs/protected_hardlinks": "1",
		"kernel/pid_max": "4194304", "kernel/panic": "0", "kernel/sysrq": "438", "kernel/dmesg_restrict": "1", "kernel/kptr_restrict": "0", "kernel/unprivileged_userns_clone": "1",
		"kernel/osrelease": "6.12.48+deb13-cloud-amd64",
	}
}

// sysctlAtBoot does what systemd-sysctl does: files of /etc/sysctl.d in the order of their names.
func (m parametersOf) sysctlAtBoot() {
	list, err := m.K.FS.ReadDir(machine.Cred{}, "/etc/sysctl.d")
	if err != nil {
		return
	}
	for _, f := range list {
		if strings.HasSuffix(f.Name, ".conf") {
			m.sysctlFile("/etc/sysctl.d/" + f.Name)
		}
	}
}

func (m parametersOf) sysctlFile(name string) {
	text, err := m.K.FS.ReadFile(name)
	if err != nil {
		return
	}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") && !strings.HasPrefix(key, ";") {
			_ = m.setParameter(strings.TrimSpace(key), strings.TrimSpace(value)) // as at a boot, what is wrong is left out
		}
	}
}

func (m parametersOf) setParameter(name, value string) error {
	file := "/proc/sys/" + strings.ReplaceAll(strings.TrimPrefix(name, "-"), ".", "/")
	if i, err := m.K.FS.Stat(machine.Cred{}, file); err != nil || i.Kind != machine.PlainFile {
		return errors.Join(err, syscall.ENOENT)
	}
	return m.K.FS.WriteText(file, value+"\n")
}
