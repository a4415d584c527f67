package debian

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// Birth is the input of cloud-init at the first boot, or what Proxmox VE writes into a new container.
type Birth struct {
	Instance   string // if it differs from the last boot, all of it is done again; "": unknown
	Hostname   string
	User       string   // made with sudo without a password; "" or root: keys are those of root
	Keys       []string // lines of authorized_keys
	Domain     string
	DNS        []string
	Network    Network
	Disks      []machine.Volume // beside that of the root, in the order of their devices
	RootLogins bool             // a container, where root is who logs in

	// Discs are in the CD drives. One that is a seed of NoCloud has the last word.
	Discs [][]byte
}

// Network is the configuration of a card at the first boot, and the network behind it.
type Network struct {
	userland.LAN

	Address string // dhcp, or an address with its prefix length; "": the machine has no card
	Gateway string
}

// lan is the network of the card: unless declared, the subnets of its address and of a lease, each with a router.
func (n Network) lan() userland.LAN {
	out := n.LAN
	if n.Address == "" || len(out.Routers) > 0 {
		return out
	}
	if static, err := netip.ParsePrefix(n.Address); err == nil {
		gateway, err := netip.ParseAddr(n.Gateway)
		if err != nil {
			gateway = static.Masked().Addr().Next()
		}
		out.Routers = append(out.Routers, netip.PrefixFrom(gateway, static.Bits()))
	}
	if n.Lease.IsValid() {
		out.Routers = append(out.Routers, netip.PrefixFrom(n.Lease.Masked().Addr().Next(), n.Lease.Bits()))
	}
	return out
}

// Network managers: in a container ifupdown, as Proxmox VE writes it, and with ifupdown2 installed; else
// systemd-networkd, as cloud-init does.
const (
	interfacesFile = "/etc/network/interfaces"
	loopback       = "auto lo\niface lo inet loopback\n"
	networkFile    = "/etc/systemd/network/10-cloud-init-" + userland.Card + ".network"
)

// attach gives a machine its hardware.
func (d *Disk) attach(b Birth) {
	d.lan = b.Network.lan()
	for i, v := range b.Disks {
		name := fmt.Sprintf("sd%c", 'b'+i)
		if old := d.fs.Volumes.All()[name]; old.Serial == v.Serial {
			size := v.Bytes
			v = old // with what is on it
			v.Bytes = size
		}
		d.fs.Volumes.Set(name, v)
	}
}

// setUp configures the network: at each boot the name servers, and a card as far as its first boot, or Proxmox VE,
// does it. It does nothing if cloud-init may not touch the network.
func (d *Disk) setUp(b Birth, fresh bool) {
	list, _ := d.fs.ReadDir(machine.Cred{}, "/etc/cloud/cloud.cfg.d")
	for _, f := range list {
		if text, _ := d.fs.ReadFile("/etc/cloud/cloud.cfg.d/" + f.Name); strings.Contains(text, "config: disabled") && !d.container {
			return
		}
	}
	var resolv strings.Builder
	for _, ip := range b.DNS {
		resolv.WriteString("nameserver " + ip + "\n")
	}
	if b.Domain != "" {
		resolv.WriteString("search " + b.Domain + "\n")
	}
	d.put("/etc/resolv.conf", resolv.String(), 0o644)
	n := b.Network
	_, err := d.fs.Stat(machine.Cred{}, "/usr/sbin/ifreload")
	ifupdown := d.container || err == nil // which cloud-init prefers where ifupdown2 is installed
	switch {
	case n.Address == "" || !d.container && !fresh:
	case ifupdown && n.Address == "dhcp":
		d.put(interfacesFile, loopback+"\nauto eth0\niface eth0 inet dhcp\n", 0o644)
	case ifupdown:
		d.put(interfacesFile, loopback+"\nauto eth0\niface eth0 inet static\n\taddress "+n.Address+"\n"+setting("\tgateway ", n.Gateway), 0o644)
	default:
		text := "[Match]\nName=" + userland.Card + "\n\n[Network]\n"
		if n.Address == "dhcp" {
			text += "DHCP=ipv4\n"
		} else {
			text += "Address=" + n.Address + "\n" + setting("Gateway=", n.Gateway)
		}
		d.put(networkFile, text, 0o644)
		const unit = "systemd-networkd.service"
		if _, err := d.fs.Stat(machine.Cred{}, "/etc/systemd/system/multi-user.target.wants/"+unit); err != nil {
			d.link("/etc/systemd/system/multi-user.target.wants/"+unit, "/usr/lib/systemd/system/"+unit)
		}
	}
}

// setting is a line of a file; none for a value that is empty.
func setting(name, value string) string {
	if value == "" {
		return ""
	}
	return name + value + "\n"
}

// instanceFile keeps who the machine was at its last boot.
const instanceFile = "/var/lib/cloud/data/instance-id"

// keylessFile is on a machine that was born without keys.
const keylessFile = "/var/lib/cloud/data/no-keys"

// Begin boots a disk with what it gets at birth. On a disk that knows the instance only the
// network is set up again.
func (d *Disk) Begin(b Birth) *Machine {
	known, _ := d.fs.ReadFile(instanceFile)
	s, err := readSeed(b.Discs)
	if s != nil {
		b = s.birth(b)
	}
	d.attach(b)
	if b.Instance == "" && strings.TrimSpace(known) != "" {
		return d.Boot()
	}
	b.Instance = cmp.Or(b.Instance, "iid-datasource-none")
	d.setUp(b, strings.TrimSpace(known) != b.Instance)
	if strings.TrimSpace(known) == b.Instance {
		return d.Boot()
	}
	m := &Machine{disk: d, K: machine.NewKernel(d.fs, d.clock, nil)}
	must(d.fs.WriteFile(instanceFile, b.Instance+"\n", 0o644, 0, 0))
	for _, suffix := range []string{"", ".pub"} {
		if _, err := d.fs.Stat(machine.Cred{}, hostKeyFile+suffix); err == nil {
			must(d.fs.Remove(machine.Cred{}, hostKeyFile+suffix))
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
	if err != nil {
		m.logCloudInit("the seed cannot be read: " + err.Error())
	}
	if s == nil {
		return d.Boot()
	}
	for _, what := range s.unknown {
		m.logCloudInit("not simulated: " + what)
	}
	for _, f := range s.user.WriteFiles {
		m.writeFile(f)
	}
	up := d.Boot()
	up.busy.Go(func() { up.finalStage(s) })
	return up
}

// cloudInitLog is the file to which cloud-init writes errors.
const cloudInitLog = "/var/log/cloud-init.log"

func (m *Machine) logCloudInit(line string) {
	old, _ := m.K.FS.ReadFile(cloudInitLog)
	must(m.K.FS.WriteFile(cloudInitLog, old+line+"\n", 0o640, 0, 0))
}

// writeFile is the module write_files of cloud-init.
func (m *Machine) writeFile(f writeFile) {
	perm := uint64(0o644)
	if f.Permissions != "" {
		var err error
		if perm, err = strconv.ParseUint(f.Permissions, 8, 12); err != nil {
			m.logCloudInit("write_files: " + f.Path + ": permissions are not a mode: " + f.Permissions)
			return
		}
	}
	owner, _, _ := strings.Cut(cmp.Or(f.Owner, "root"), ":")
	u, there := m.User(owner)
	if !there || !strings.HasPrefix(f.Path, "/") {
		m.logCloudInit("write_files: " + f.Path + ": there is no user " + owner + ", or the path is relative")
		return
	}
	must(m.K.FS.MkdirAll(path.Dir(f.Path), 0o755))
	must(m.K.FS.WriteFile(f.Path, f.Content, uint32(perm), u.Cred.UID, u.Cred.GID)) //nolint:gosec // twelve bits
}

// finalStage runs what the seed says on the machine that is up, as one script, as cloud-init does.
func (m *Machine) finalStage(s *seed) {
	const dir = "/var/lib/cloud/instance/scripts"
	must(m.K.FS.MkdirAll(dir, 0o755))
	var output strings.Builder
	for i, text := range append([]string{"#!/bin/sh\n" + s.script()}, s.scripts...) {
		name := fmt.Sprintf("%s/part-%03d", dir, i)
		must(m.K.FS.WriteFile(name, text, 0o700, 0, 0))
		start := m.Root(name)
		start.In, start.Out, start.Err = strings.NewReader(""), &output, &output
		p, err := m.K.Start(start)
		if err != nil {
			return // the machine halts
		}
		if code := p.Wait(); code != 0 {
			fmt.Fprintf(&output, "%s failed with exit code %d\n", name, code)
		}
	}
	must(m.K.FS.WriteFile("/var/log/cloud-init-output.log", output.String(), 0o640, 0, 0))
}

// firstUser makes who logs in at first.
func (m *Machine) firstUser(b Birth) {
	name := cmp.Or(b.User, "root")
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
	must(m.K.FS.Chmod(machine.Cred{}, dir, 0o700))
	must(m.K.FS.Chown(machine.Cred{}, dir, u.Cred.UID, u.Cred.GID, true))
	old, _ := m.K.FS.ReadFile(dir + "/authorized_keys")
	text := old
	for _, key := range b.Keys {
		if key = strings.TrimSpace(key); key != "" && !strings.Contains(text, key) {
			text += key + "\n"
		}
	}
	must(m.K.FS.WriteFile(dir+"/authorized_keys", text, 0o600, u.Cred.UID, u.Cred.GID))
}

func cloudInitProgram(p *machine.Process) int {
	p.Printf("status: done\n")
	return 0
}
