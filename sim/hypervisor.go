package sim

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Network is the network that the guests of some hosts share, at any depth.
type Network struct {
	// Dial leads to other machines than the one that dials; nil: there are none.
	Dial debian.Dial

	hosts  atomic.Uint32 // that were made inside of guests
	inside sync.Map      // *hypervisor by the *debian.Machine that it runs on
}

// network is that of the guests. The caller has the mutex.
func (g *Guests) network() *Network {
	if g.Network == nil {
		g.Network = &Network{}
	}
	return g.Network
}

// hypervisor is the Proxmox VE of a guest. It lives as long as the disk of the guest.
type hypervisor struct {
	host    *pve.Host
	guests  *Guests
	network *Network
}

// newHypervisor is the Proxmox VE of a guest that boots for the first time. The caller has the mutex.
func (g *Guests) newHypervisor(node string) *hypervisor {
	n := g.network()
	number := n.hosts.Add(1)
	h := &hypervisor{network: n, guests: &Guests{Clock: g.Clock, Packages: g.Packages, Installed: g.Installed, Network: n, Inner: g.Inner}}
	c := g.Inner
	c.Node, c.Nodes, c.Offline, c.Guests, c.Files, c.Token, c.Systems = node, nil, nil, 0, "", "", h.guests
	c.Seed, c.Speed = c.Seed+int64(number), g.Clock.Speed
	c.Leases = fmt.Sprintf("%d.%d", 10+number>>8, number&0xff)
	if c.Storages == nil {
		c.Storages = pve.DefaultStorages()
		for i := range c.Storages {
			if c.Storages[i].Type == "dir" {
				c.Storages[i].Content = []string{"backup", "import", "iso", "snippets", "vztmpl"}
			}
		}
	}
	h.host = pve.New(c)
	return h
}

// Paths of files of a machine with Proxmox VE.
const (
	pveumFile   = "/usr/sbin/pveum"
	authority   = "/etc/pve/pve-root-ca.pem"
	certificate = "/etc/pve/local/pve-ssl.pem"
	aptSource   = "/etc/apt/sources.list.d/pve-no-subscription.sources"
	aptKey      = "/usr/share/keyrings/proxmox-archive-keyring.gpg"
	webLibrary  = "/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js"
	wwwData     = 33
	apiPort     = 8006
)

// withPVE makes an image one of Proxmox VE.
func (g *Guests) withPVE(o *debian.Options) {
	n := g.network()
	o.Programs = map[string]debian.Program{pveumFile: func(m *debian.Machine, p *machine.Process) int {
		h, up := n.inside.Load(m)
		if !up {
			return p.Failf("ipcc_send_rec[1] failed: Connection refused")
		}
		return h.(*hypervisor).pveum(p)
	}}
	maps.Copy(o.Programs, g.Installed)
	o.Installed = []string{"proxmox-ve", "postfix", "open-iscsi", "chrony", "qemu-guest-agent", "ifupdown2"}
}

// hasPVE reports whether Proxmox VE is on a disk.
func hasPVE(fs *machine.FS) bool {
	_, err := fs.Stat(machine.Cred{}, pveumFile)
	return err == nil
}

// install puts the files of Proxmox VE on the disk of its machine that are not there.
func (h *hypervisor) install(fs *machine.FS) {
	put := func(name, text string, perm uint32, gid int) {
		if _, err := fs.Stat(machine.Cred{}, name); err == nil {
			return
		}
		dir := name[:lastSlash(name)]
		if err := fs.MkdirAll(dir, 0o755); err == nil {
			_ = fs.WriteFile(name, text, perm, 0, gid) // the machine is new, so nothing is in the way
		}
	}
	put(authority, h.host.Authority(), 0o640, wwwData)
	put(certificate, h.host.Certificate(), 0o640, wwwData)
	put(aptSource, "Types: deb\nURIs: http://download.proxmox.com/debian/pve\nSuites: trixie\nComponents: pve-no-subscription\nSigned-By: "+aptKey+"\n", 0o644, 0)
	put(aptKey, "simulated\n", 0o644, 0)
	put(webLibrary, "    checked_command: function (orig_cmd) {\n        if (res.data.status.toLowerCase() !== 'active') {\n            title: gettext('No valid subscription'),\n", 0o644, 0)
}

func lastSlash(name string) int {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '/' {
			return i
		}
	}
	return 0
}

// on lets the Proxmox VE of a machine that has booted work until that halts: its API answers, and the guests that
// start with their host do.
//
//nolint:contextcheck,nolintlint // a machine lives as long as its guest is on; the linter looks for this line at its callers
func (h *hypervisor) on(m *debian.Machine, busy *sync.WaitGroup) {
	h.network.inside.Store(m, h)
	ln, err := m.Listen(apiPort)
	if err != nil {
		return // the port is in use
	}
	busy.Go(func() {
		_ = h.host.Serve(m.Life(), ln) // it ends with the machine
		h.network.inside.Delete(m)
	})
	begin := h.host.Snapshot().Guests
	h.host.Edit(func(e *pve.Edit) {
		for _, g := range begin {
			if g.Config["onboot"] == "1" {
				e.Start(g.VMID)
			}
		}
	})
}

// off stops all guests, as a host does that is shut down.
func (h *hypervisor) off() {
	all := h.host.Snapshot().Guests
	h.host.Edit(func(e *pve.Edit) {
		for _, g := range all {
			if g.Running {
				e.Stop(g.VMID)
			}
		}
	})
}

// Hosts are the Proxmox VE of guests that have booted.
func (g *Guests) Hosts() []*pve.Host {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*pve.Host
	for key, r := range g.on {
		if d := g.disks[key]; r.machine != nil && d != nil && d.pve != nil {
			out = append(out, d.pve.host)
		}
	}
	return out
}
