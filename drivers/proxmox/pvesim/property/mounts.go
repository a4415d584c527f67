package property

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// IsMount says whether a key is of a mount point of a container.
func IsMount(key string) bool { return mountKey.MatchString(key) }

var mountKey = regexp.MustCompile(`^(?:rootfs|mp\d+)$`)

// MountNames are the mount points of a configuration: the root, then the others
// by number.
func MountNames(c Config) []string {
	var names []string
	if _, ok := c["rootfs"]; ok {
		names = append(names, "rootfs")
	}
	return append(names, IndexedKeys(c, "mp")...)
}

// CTProperty reads a property string by the table's description of a container's
// key. What does not parse is empty, as in parseProperty.
func CTProperty(key, value string) map[string]string {
	v, ok := ConfigParams["lxc"]().Param(key)
	if !ok {
		return map[string]string{}
	}
	parsed, err := v.ParseProperty(value)
	if err != nil {
		return map[string]string{}
	}
	return parsed
}

// Mount is a mount point: a volume (or a path of the host) and options.
type Mount struct {
	Key    string
	Volume string
	Opts   map[string]string
}

// ParseMount reads a mount point.
func ParseMount(key, value string) Mount {
	m := Mount{Key: key, Opts: CTProperty(key, value)}
	if m.Volume = m.Opts["volume"]; m.Volume == "" {
		m.Volume, _, _ = strings.Cut(value, ",")
	}
	delete(m.Opts, "volume")
	return m
}

// String prints a mount point: the volume, where it is mounted, then the options
// in the order of the alphabet. A size comes back with the largest unit that fits.
func (m Mount) String() string {
	parts := []string{m.Volume}
	if bytes, ok := ParseSize(m.Opts["size"]); ok {
		m.Opts["size"] = FormatSize(bytes)
	}
	if m.Opts["mp"] != "" {
		parts = append(parts, "mp="+m.Opts["mp"])
	}
	for _, key := range slices.Sorted(maps.Keys(m.Opts)) {
		if key != "mp" {
			parts = append(parts, key+"="+m.Opts[key])
		}
	}
	return strings.Join(parts, ",")
}

// Kind is volume, or bind or device for what belongs to the host
// (classify_mountpoint).
func (m Mount) Kind() string {
	switch {
	case strings.HasPrefix(m.Volume, "/dev/"):
		return "device"
	case strings.HasPrefix(m.Volume, "/"):
		return "bind"
	default:
		return "volume"
	}
}

// Order says whether the volume is one to be made: STORAGE:GIB.
func (m Mount) Order() (storage, gib string, ok bool) {
	if found := NewDisk.FindStringSubmatch(m.Volume); found != nil && found[1] != "" {
		return found[1], found[2], true
	}
	return "", "", false
}

// PrintCTNet prints a network device of a container, its name first.
func PrintCTNet(n map[string]string) string {
	parts := []string{"name=" + n["name"]}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "name" {
			parts = append(parts, key+"="+n[key])
		}
	}
	return strings.Join(parts, ",")
}
