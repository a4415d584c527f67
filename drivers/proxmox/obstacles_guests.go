package proxmox

import (
	"slices"
	"strings"
)

// equipped is a guest with disks and network cards.
type equipped interface {
	volumes() *volumes
	ports() []port
	power() string
}

// port is a network card of a guest, by what it is plugged into.
type port struct{ name, bridge, mac string }

func (p port) label() string { return p.name }

func (v *VM) ports() []port { return portsOf(v.NICs) }
func (c *CT) ports() []port { return portsOf(c.NICs) }

func (v *VM) power() string { return v.Power }
func (c *CT) power() string { return c.Power }

func (n NIC) port() port   { return port{n.Name, n.Bridge, n.MAC} }
func (n CTNIC) port() port { return port{n.Name, n.Bridge, n.MAC} }

func portsOf[N interface{ port() port }](nics []N) []port {
	var out []port
	for _, n := range nics {
		out = append(out, n.port())
	}
	return out
}

// asksAnew: of a VM the options may ask for volumes, too.
func (v *VM) asksAnew(have *VM) bool {
	if v.inserts(have) {
		return true
	}
	return equipsAnew(v, have) ||
		slices.ContainsFunc([]string{"efidisk0", "tpmstate0"}, func(key string) bool {
			return v.Options[key] != "" && storageOf(v.Options[key]) != storageOf(have.observe.Next[key])
		})
}

func (c *CT) asksAnew(have *CT) bool { return equipsAnew(c, have) }

// equipsAnew reports whether a guest is to start, a disk to lie where it does not, or a
// card to be plugged in, or addressed, as it is not.
func equipsAnew(want, have equipped) bool {
	if want.power() == "running" && have.power() != "running" {
		return true
	}
	for _, w := range want.volumes().list {
		h, there := find(have.volumes().list, w.name)
		if !there || w.storage != "" && w.storage != h.storage {
			return true
		}
	}
	has := have.ports()
	return slices.ContainsFunc(want.ports(), func(w port) bool {
		h, there := find(has, w.name)
		return !there || w.bridge != h.bridge || w.mac != "" && !strings.EqualFold(w.mac, h.mac)
	})
}
