package pvesim

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The values of a container's configuration: its mount points and its network
// devices (PVE/LXC/Config.pm).

var mountKey = regexp.MustCompile(`^(?:rootfs|mp\d+)$`)

func isMount(key string) bool { return mountKey.MatchString(key) }

// mountNames are the mount points of a configuration: the root, then the others
// by number.
func mountNames(c config) []string {
	var names []string
	if _, ok := c["rootfs"]; ok {
		names = append(names, "rootfs")
	}
	return append(names, indexedKeys(c, "mp")...)
}

// ctProperty reads a property string by the table's description of a container's
// key. What does not parse is empty, as in parseProperty.
func ctProperty(key, value string) map[string]string {
	v, ok := configParams["lxc"]().Param(key)
	if !ok {
		return map[string]string{}
	}
	parsed, err := v.ParseProperty(value)
	if err != nil {
		return map[string]string{}
	}
	return parsed
}

// mount is a mount point: a volume (or a path of the host) and options.
type mount struct {
	key    string
	volume string
	opts   map[string]string
}

func parseMount(key, value string) mount {
	m := mount{key: key, opts: ctProperty(key, value)}
	if m.volume = m.opts["volume"]; m.volume == "" {
		m.volume, _, _ = strings.Cut(value, ",")
	}
	delete(m.opts, "volume")
	return m
}

// String prints a mount point: the volume, where it is mounted, then the options
// in the order of the alphabet. A size comes back with the largest unit that fits.
func (m mount) String() string {
	parts := []string{m.volume}
	if bytes, ok := parseSize(m.opts["size"]); ok {
		m.opts["size"] = formatSize(bytes)
	}
	if m.opts["mp"] != "" {
		parts = append(parts, "mp="+m.opts["mp"])
	}
	for _, key := range slices.Sorted(maps.Keys(m.opts)) {
		if key != "mp" {
			parts = append(parts, key+"="+m.opts[key])
		}
	}
	return strings.Join(parts, ",")
}

// kind is volume, or bind or device for what belongs to the host
// (classify_mountpoint).
func (m mount) kind() string {
	switch {
	case strings.HasPrefix(m.volume, "/dev/"):
		return "device"
	case strings.HasPrefix(m.volume, "/"):
		return "bind"
	default:
		return "volume"
	}
}

// order says whether the volume is one to be made: STORAGE:GIB.
func (m mount) order() (storage, gib string, ok bool) {
	if found := newDisk.FindStringSubmatch(m.volume); found != nil && found[1] != "" {
		return found[1], found[2], true
	}
	return "", "", false
}

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

func printCTNet(n map[string]string) string {
	parts := []string{"name=" + n["name"]}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "name" {
			parts = append(parts, key+"="+n[key])
		}
	}
	return strings.Join(parts, ",")
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
