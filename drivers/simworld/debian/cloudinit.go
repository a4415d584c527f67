package debian

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/simworld/files"
	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// Birth is what cloud-init gets at the first boot, or what Proxmox VE writes into a new container.
type Birth struct {
	Instance   string // another one than at the last boot: all of it is done again
	Hostname   string
	User       string   // made with sudo without a password; "" or root: keys are those of root
	Keys       []string // lines of authorized_keys
	Domain     string
	DNS        []string
	RootLogins bool // a container, where root is who logs in
}

// instanceFile keeps who the machine was at its last boot.
const instanceFile = "/var/lib/cloud/data/instance-id"

// keylessFile is on a machine that was born without keys.
const keylessFile = "/var/lib/cloud/data/no-keys"

// Begin boots a disk with what it gets at birth. On a disk that knows the instance only the
// network is set up again.
func (d *Disk) Begin(b Birth) *Machine {
	known, _ := d.fs.ReadFile(instanceFile)
	var resolv strings.Builder
	for _, ip := range b.DNS {
		resolv.WriteString("nameserver " + ip + "\n")
	}
	if b.Domain != "" {
		resolv.WriteString("search " + b.Domain + "\n")
	}
	must(d.fs.WriteFile("/etc/resolv.conf", resolv.String(), 0o644, 0, 0))
	if strings.TrimSpace(known) == b.Instance && b.Instance != "" {
		return d.Boot()
	}
	m := &Machine{disk: d, K: kernel.New(d.fs, d.clock, nil)}
	must(d.fs.WriteFile(instanceFile, b.Instance+"\n", 0o644, 0, 0))
	for _, suffix := range []string{"", ".pub"} {
		if _, err := d.fs.Stat(files.Cred{}, hostKeyFile+suffix); err == nil {
			must(d.fs.Remove(files.Cred{}, hostKeyFile+suffix))
		}
	}
	server{m}.makeHostKey()
	if b.Hostname != "" {
		full := b.Hostname
		if b.Domain != "" {
			full = b.Hostname + "." + b.Domain + " " + b.Hostname
		}
		must(d.fs.WriteFile("/etc/hostname", b.Hostname+"\n", 0o644, 0, 0))
		must(d.fs.WriteFile("/etc/hosts", "127.0.1.1 "+full+"\n127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n", 0o644, 0, 0))
	}
	m.firstUser(b)
	return d.Boot()
}

// firstUser makes who logs in at first.
func (m *Machine) firstUser(b Birth) {
	name := first(b.User, "root")
	if name != "root" && m.table("passwd").find(name) == nil {
		users, all := m.table("passwd"), m.table("group")
		uid := itoa(users.free())
		gid := uid
		if all.byNumber(gid) != nil {
			gid = itoa(all.free())
		}
		m.write("group", append(all, []string{name, "x", gid, ""}))
		m.write("shadow", append(m.table("shadow"), []string{name, "!", "20000", "0", "99999", "7", "", "", ""}))
		m.write("passwd", append(users, []string{name, "x", uid, gid, "Debian", "/home/" + name, "/bin/bash"}))
		accounts{m}.makeHome("/home/"+name, uid, gid)
		must(m.K.FS.WriteFile("/etc/sudoers.d/90-cloud-init-users", "# Created by cloud-init\n\n# User rules for "+name+"\n"+name+" ALL=(ALL) NOPASSWD:ALL\n", 0o440, 0, 0))
	}
	u, there := m.User(name)
	if strings.TrimSpace(strings.Join(b.Keys, "")) == "" {
		must(m.K.FS.WriteFile(keylessFile, "", 0o644, 0, 0))
		return
	}
	if !there {
		return
	}
	dir := u.Home + "/.ssh"
	must(m.K.FS.MkdirAll(dir, 0o700))
	must(m.K.FS.Chmod(files.Cred{}, dir, 0o700))
	must(m.K.FS.Chown(files.Cred{}, dir, u.Cred.UID, u.Cred.GID, true))
	old, _ := m.K.FS.ReadFile(dir + "/authorized_keys")
	text := old
	for _, key := range b.Keys {
		if key = strings.TrimSpace(key); key != "" && !strings.Contains(text, key) {
			text += key + "\n"
		}
	}
	must(m.K.FS.WriteFile(dir+"/authorized_keys", text, 0o600, u.Cred.UID, u.Cred.GID))
}

func cloudInitProgram(p *kernel.Process) int {
	p.Printf("status: done\n")
	return 0
}
