// Package sim is the whole simulation: the hosts of a site (hosts.go), and the programs in their guests
// (guests.go).
package sim

// A guest that was created from an image or a template of Debian boots a simulated Debian, applies its cloud-init
// configuration, and is reached by SSH and by the guest agent. Other guests have an address that does not respond.
// A guest from an image of Proxmox VE is a simulated host itself, whose guests boot, at any depth.
//
// A host of package pve gets Guests as its Systems. hypervisor.go is the Proxmox VE of a guest, pveum.go its
// program of that name, and key.go the login key of the simulation's user.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Guests are the systems of the guests of one host. The zero value has none yet. Safe for concurrent use.
type Guests struct {
	// Clock is that of the host, if it is not that of this machine.
	Clock machine.Clock
	// Packages are in the repository of every guest in addition to those of Debian.
	Packages []debian.Package
	// Installed are on every guest beside what Debian has, by the files that they are run by.
	Installed map[string]debian.Program
	// Network is that of the guests; nil: one without other machines.
	Network *Network
	// Inner configures the Proxmox VE in a guest; its names, addresses and guests are its own.
	Inner pve.Config

	// mu is for a moment only, but for a guest that boots or halts: requests to the host, connections
	// and commands come side by side.
	mu    sync.Mutex
	disks map[string]*disk
	on    map[string]*running // by key

	booting sync.WaitGroup // guests that boot by themselves
}

// disk is that of a guest.
type disk struct {
	*debian.Disk

	pve *hypervisor // nil: it has no Proxmox VE, or that did not run yet
}

// running is a guest that was switched on. It boots on first use, or at once with a disc in it, whose content may
// act. So does a host, which has guests.
type running struct {
	asked   pve.Machine
	machine *debian.Machine // nil before
	off     chan struct{}   // closed when it is switched off
}

// Boot is as core.Systems wants it.
func (g *Guests) Boot(m pve.Machine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on == nil {
		g.on, g.disks = map[string]*running{}, map[string]*disk{}
	}
	if suite(m.Image) == "" && g.disks[m.Key] == nil {
		return
	}
	r := &running{asked: m, off: make(chan struct{})}
	g.on[m.Key] = r
	if len(m.Discs) > 0 || isPVE(m.Image) {
		g.booting.Go(func() { g.bootBySelf(r) })
	}
}

// bootBySelf boots a guest when its time has come.
func (g *Guests) bootBySelf(r *running) {
	t := g.Clock.Timer(r.asked.Up.Sub(g.Clock.Now()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.off:
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on[r.asked.Key] == r && r.machine == nil {
		r.machine = g.boot(r.asked)
	}
}

// Halt is as core.Systems wants it.
func (g *Guests) Halt(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.on[key]
	if r == nil {
		return
	}
	close(r.off)
	if r.machine != nil {
		r.machine.Halt()
		if pve := g.disks[key].pve; pve != nil {
			pve.off()
		}
	}
	delete(g.on, key)
}

// Copy is as core.Systems wants it. The copy of a Proxmox VE has no guests, since one is not copied.
func (g *Guests) Copy(from, to string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.disks[from]; d != nil {
		g.disks[to] = &disk{Disk: d.Clone()}
	} else {
		delete(g.disks, to)
	}
}

// Remove is as core.Systems wants it.
func (g *Guests) Remove(key string) {
	g.Halt(key)
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.disks, func(k string, _ *disk) bool { return k == key || strings.HasPrefix(k, key+"@") })
}

// Programs is as core.Systems wants it.
func (g *Guests) Programs(key string) pve.Programs {
	m := g.Machine(key)
	if m == nil {
		return nil
	}
	return programs{m}
}

// Close halts all guests, and waits for what runs in them.
func (g *Guests) Close() {
	g.mu.Lock()
	keys := slices.Collect(maps.Keys(g.on))
	g.mu.Unlock()
	for _, key := range keys {
		g.Halt(key)
	}
	g.booting.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.disks {
		if d.pve != nil {
			d.pve.guests.Close()
		}
	}
}

var (
	debianSuite = regexp.MustCompile(`(?i)debian-?(12|13)|bookworm|trixie`)
	pveVersion  = regexp.MustCompile(`(?i)(?:pve|proxmox)(?:-ve)?[-_]?(\d*)`)
)

// isPVE reports whether an image is one of Proxmox VE, judging by its name or address.
func isPVE(image string) bool { return pveVersion.MatchString(image) }

// RunsDebian reports whether a guest boots into a simulated Debian, by the names and addresses of what it is
// made from.
func RunsDebian(origin string) bool { return suite(origin) != "" }

// suite is the release of Debian that an image has by its name or address; "" if it has another system.
func suite(image string) string {
	if found := pveVersion.FindStringSubmatch(image); found != nil {
		if found[1] == "8" {
			return "12"
		}
		return "13"
	}
	found := debianSuite.FindStringSubmatch(image)
	switch {
	case found == nil:
		return ""
	case found[1] != "":
		return found[1]
	case strings.EqualFold(found[0], "bookworm"):
		return "12"
	}
	return "13"
}

// Machine returns the machine that runs in a guest; nil if nothing simulated does, or if it is still to boot.
func (g *Guests) Machine(key string) *debian.Machine {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.on[key]
	if r == nil || g.Clock.Now().Before(r.asked.Up) {
		return nil
	}
	if r.machine == nil {
		r.machine = g.boot(r.asked)
	}
	return r.machine
}

// boot starts what is on the disk of a guest, which is made if it has none.
func (g *Guests) boot(m pve.Machine) *debian.Machine {
	d := g.disks[m.Key]
	if d == nil {
		d = g.newDisk(m)
		g.disks[m.Key] = d
	}
	instance := "" // without a drive of PVE's, a disc may say it
	if m.Cloud != "" {
		sum := sha256.Sum256([]byte(m.Cloud))
		instance = hex.EncodeToString(sum[:10])
	}
	var disks []machine.Volume
	for _, one := range m.Disks {
		disks = append(disks, machine.Volume{Serial: one.Serial, Bytes: one.Bytes})
	}
	birth := debian.Birth{
		Instance: instance, Discs: m.Discs, Hostname: m.Hostname, User: m.User, Keys: m.Keys, DNS: m.DNS, Domain: m.Domain,
		Network: debian.Network{Address: m.Address, Gateway: m.Gateway, LAN: userland.LAN{Lease: m.Lease}}, Disks: disks,
	}
	if !hasPVE(d.Files()) {
		return d.Begin(birth)
	}
	if d.pve == nil {
		d.pve = g.newHypervisor(m.Hostname)
	}
	d.pve.install(d.Files())
	machine := d.Begin(birth)
	d.pve.on(machine, &g.booting)
	return machine
}

// newDisk is that of a guest that boots for the first time.
func (g *Guests) newDisk(m pve.Machine) *disk {
	o := debian.Options{Suite: suite(m.Image), Clock: g.Clock, Packages: g.Packages, Programs: g.Installed, Network: g.network().Dial, Container: m.Kind == "lxc"}
	if isPVE(m.Image) {
		g.withPVE(&o)
	}
	return &disk{Disk: debian.NewDisk(o)}
}

// At finds the guest that has an address now, whatever its host says; "" if there is none.
func (g *Guests) At(ip netip.Addr) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, r := range g.on {
		if r.machine != nil && r.machine.Network.Answers(ip) {
			return key
		}
	}
	return ""
}

// elsewhere reports whether a guest does not answer at an address, whatever its host says. Only the first card of a guest is
// simulated, and IPv4.
func (g *Guests) elsewhere(key string, m *debian.Machine, ip netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.on[key]
	return r == nil || r.asked.Cards == 1 && r.asked.Address != "" && ip.Is4() && !m.Network.Answers(ip)
}

// Dial connects to a port of a guest that is up. near is where connections through it lead.
func (g *Guests) Dial(ctx context.Context, key string, to netip.AddrPort, near func(context.Context, string, string) (net.Conn, error)) (net.Conn, error) {
	refused := func(why error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: why}
	}
	m := g.Machine(key)
	if m == nil || g.elsewhere(key, m, to.Addr()) {
		return nil, refused(syscall.EHOSTUNREACH)
	}
	if s := m.SSHD(); s == nil || !slices.Contains(s.Ports, int(to.Port())) {
		return m.Connect(ctx, to)
	}
	caller, callee := machine.Pipe(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 254}), 50000), to)
	trusted, _, err := GuestKey()
	if err != nil {
		return nil, err
	}
	server := debian.Server{Machine: m, Trusts: trusted, Dial: near}
	go server.Serve(context.WithoutCancel(ctx), callee) // it ends with the connection
	return caller, nil
}

// target reads the address of a connection.
func target(address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("simulated guests have no names: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), err
}

// programs are those of a machine for its guest agent.
type programs struct{ m *debian.Machine }

// Start is as pve.Programs wants it.
func (p programs) Start(command []string, input string) func() pve.Execution {
	var out, errs strings.Builder
	s := p.m.Root(command...)
	s.In, s.Out, s.Err = strings.NewReader(input), locked{&sync.Mutex{}, &out}, locked{&sync.Mutex{}, &errs}
	process, err := p.m.K.Start(s)
	if err != nil {
		return nil
	}
	return func() pve.Execution {
		code, signal := process.Ended()
		if signal != 0 {
			code = 0
		}
		return pve.Execution{Out: out.String(), Err: errs.String(), Code: code, Signal: int(signal)}
	}
}

// locked is a writer that several processes share.
type locked struct {
	mu *sync.Mutex // they write side by side
	w  io.Writer
}

// Write is as io.Writer wants it.
func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// Read is as pve.Programs wants it.
func (p programs) Read(file string) (string, bool) {
	text, err := p.m.K.FS.ReadFile(file)
	return text, err == nil
}

// Write is as pve.Programs wants it.
func (p programs) Write(file, content string) error {
	if i, err := p.m.K.FS.Stat(machine.Cred{}, file); err == nil {
		if i.Kind == machine.Folder {
			return fmt.Errorf("%s", machine.ErrorText(syscall.EISDIR))
		}
		return p.m.K.FS.WriteText(file, content)
	}
	dir := file[:max(strings.LastIndexByte(file, '/'), 0)]
	if _, err := p.m.K.FS.Stat(machine.Cred{}, dir+"/"); err != nil {
		return fmt.Errorf("%s", machine.ErrorText(err))
	}
	return p.m.K.FS.WriteFile(file, content, 0o600, 0, 0)
}
