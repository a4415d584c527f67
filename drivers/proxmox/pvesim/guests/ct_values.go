package guests

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// The values of a container's configuration: its mount points and its network
// devices (PVE/LXC/Config.pm).

// ctNet brings a network device of a container into the form in which it is
// stored: with a hardware address, its name first.
func ctNet(w *core.World, value string) string {
	n := property.CTProperty("net0", value)
	if n["hwaddr"] == "" {
		n["hwaddr"] = w.MAC()
	}
	n["type"] = "veth"
	return property.PrintCTNet(n)
}

// CTCanonical is a value as it is stored.
func CTCanonical(w *core.World, key, value string) string {
	switch family := property.FamilyOf(key); {
	case family == "net" && key != family:
		return ctNet(w, value)
	case key == "tags":
		return UniqueTags(w, value)
	case key == "nameserver", key == "searchdomain":
		return strings.Join(perl.SplitList(value), " ")
	default:
		return property.Canonical("lxc", key, value)
	}
}

// Measured is a mount point with the size that its volume has now ($rescan_volume in
// PVE/LXC/Config.pm). Of a volume that is not there a storage of files knows no size, and
// the option goes; the others fail, and the option stays as it was.
func Measured(w *core.World, g *core.Guest, m property.Mount) property.Mount {
	storage, _, managed := core.VolumeID(m.Volume)
	if m.Kind() != "volume" || !managed {
		return m
	}
	switch v, st := w.Volume(g.Node, m.Volume), w.Stores[storage]; {
	case v != nil:
		m.Opts["size"] = property.FormatSize(v.Size)
	case st != nil && st.Files():
		delete(m.Opts, "size")
	}
	return m
}

// ParseNet reads a network device; without a hardware address it gets one.
func ParseNet(w *core.World, value string) map[string]string {
	n := property.ParseProperty("net0", value)
	if n["macaddr"] == "" {
		n["macaddr"] = w.MAC()
	}
	return n
}
