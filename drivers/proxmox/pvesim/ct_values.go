package pvesim

import (
	"strings"
)

// The values of a container's configuration: its mount points and its network
// devices (PVE/LXC/Config.pm).

// ctNet brings a network device of a container into the form in which it is
// stored: with a hardware address, its name first.
func (w *world) ctNet(value string) string {
	n := ctProperty("net0", value)
	if n["hwaddr"] == "" {
		n["hwaddr"] = w.mac()
	}
	n["type"] = "veth"
	return printCTNet(n)
}

// ctCanonical is a value as it is stored.
func (w *world) ctCanonical(key, value string) string {
	switch family := familyOf(key); {
	case family == "net" && key != family:
		return w.ctNet(value)
	case key == "tags":
		return w.uniqueTags(value)
	case key == "nameserver", key == "searchdomain":
		return strings.Join(splitList(value), " ")
	default:
		return canonical("lxc", key, value)
	}
}

// measured is a mount point with the size that its volume has now ($rescan_volume in
// PVE/LXC/Config.pm). Of a volume that is not there a storage of files knows no size, and
// the option goes; the others fail, and the option stays as it was.
func (w *world) measured(g *guest, m mount) mount {
	storage, _, managed := volumeID(m.volume)
	if m.kind() != "volume" || !managed {
		return m
	}
	switch v, st := w.volume(g.node, m.volume), w.stores[storage]; {
	case v != nil:
		m.opts["size"] = formatSize(v.size)
	case st != nil && st.files():
		delete(m.opts, "size")
	}
	return m
}

// parseNet reads a network device; without a hardware address it gets one.
func (w *world) parseNet(value string) map[string]string {
	n := parseProperty("net0", value)
	if n["macaddr"] == "" {
		n["macaddr"] = w.mac()
	}
	return n
}
