package core

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Systems run inside of guests, for hosts whose guests shall be more than an address. It is
// called while the host waits for it, and does not ask the host in turn.
type Systems interface {
	// Boot says that a guest was switched on. The content of its disk by this key stays while it is off.
	Boot(m Machine)
	// Halt says that it is off.
	Halt(key string)
	// Copy makes what is on the disk of one key what is on that of another, now.
	Copy(from, to string)
	// Remove forgets what is on a disk, and those whose key begins with the same and "@".
	Remove(key string)
	// Programs are those of a guest that runs; nil if nothing simulated runs in it.
	Programs(key string) Programs
}

// Programs is a guest agent's way into its guest.
type Programs interface {
	// Start begins a program; wait is called in a goroutine of its own until it has ended, and is nil if the
	// program does not exist.
	Start(command []string, input string) (wait func() Execution)
	// Read reads a file, and Write replaces one.
	Read(file string) (content string, there bool)
	Write(file, content string) error
}

// Machine is a guest as its system sees itself when it boots.
type Machine struct {
	Key   string // of its disk
	Kind  string // qemu or lxc
	Image string // what its disk was made from, by name and address
	Up    time.Time

	Hostname, User string
	Keys           []string // lines of authorized_keys
	DNS            []string
	Domain         string
	Cloud          string   // another one than before: cloud-init begins again; "" without a drive of PVE's for it
	Discs          [][]byte // uploaded discs in its CD drives; immutable

	Address, Gateway string       // of its first network card: dhcp, or an address with its prefix length; "" for none
	Lease            netip.Prefix // what DHCP gives that card
	Cards            int
	Disks            []disk // those with a serial number
}

// disk is one of the disks of a guest.
type disk struct {
	Serial string
	Bytes  int64
}

// Birth has the parameters of a container's creation that its configuration does not keep.
type Birth struct{ Template, Keys string }

// Key is by which Systems knows the disk of a guest.
func (g *Guest) Key() string { return fmt.Sprint(g.Vmid) }

// SnapshotKey is by which it knows a snapshot.
func (g *Guest) SnapshotKey(name string) string { return g.Key() + "@" + name }

// AsMachine describes a guest that boots.
func (g *Guest) AsMachine(w *World) Machine {
	m := Machine{
		Key: g.Key(), Kind: g.Kind, Up: g.Run.Booted, Hostname: g.Conf["hostname"], DNS: strings.Fields(g.Conf["nameserver"]), Domain: g.Conf["searchdomain"],
		Image: g.Birth.Template, Keys: strings.Split(g.Birth.Keys, "\n"), Cloud: "ct",
	}
	nic := perl.CTProperty("net0", g.Conf["net0"])
	if g.Kind == "qemu" {
		nic = perl.ParseProperty("ipconfig0", g.Conf["ipconfig0"])
		if g.Conf["net0"] != "" && nic["ip"] == "" && nic["ip6"] == "" {
			nic = map[string]string{"ip": "dhcp"} // as cloud images do by themselves
		}
	}
	m.Cards = len(g.Conf.IndexedKeys("net"))
	m.Address, m.Gateway, m.Lease = strings.TrimPrefix(nic["ip"], "manual"), nic["gw"], g.Leased(w, 0)
	if g.Kind == "lxc" {
		return m
	}
	m.Hostname, m.User = cmp.Or(g.Conf["name"], fmt.Sprintf("VM%d", g.Vmid)), g.Conf["ciuser"]
	keys, err := url.QueryUnescape(strings.ReplaceAll(g.Conf["sshkeys"], "+", "%2B"))
	if err == nil {
		m.Keys = strings.Split(keys, "\n")
	}
	var known []string
	for _, key := range g.Conf.DriveNames() {
		d := perl.ParseDrive(key, g.Conf[key])
		if v := w.Volume(g.Node, d.File); v != nil && v.Image != "" && m.Image == "" {
			m.Image = v.Image
		} else if v != nil && d.Cdrom() && v.Disc != nil {
			m.Discs = append(m.Discs, v.Disc)
		}
		if serial := d.Opts["serial"]; serial != "" && !d.Cdrom() {
			if v := w.Volume(g.Node, d.File); v != nil {
				m.Disks = append(m.Disks, disk{serial, v.Size})
			}
		}
		if d.Cloudinit() {
			for _, one := range []string{"name", "ciuser", "sshkeys", "cicustom", "nameserver", "searchdomain", "ipconfig0"} {
				known = append(known, g.Conf[one])
			}
		}
	}
	m.Cloud = strings.Join(known, "\n")
	return m
}

// Leased is the address that DHCP gives the n-th interface of a guest.
func (g *Guest) Leased(w *World, n int) netip.Prefix {
	h := Sample{Vmid: g.Vmid}.Hash(int64(n) + w.Cfg.Seed)
	return netip.MustParsePrefix(fmt.Sprintf("%s.%d.%d/16", w.Cfg.Leases, h>>8&255, 2+h%250))
}
