package pvesim

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

func isMount(key string) bool { return mountKey.MatchString(key) }

var mountKey = regexp.MustCompile(`^(?:rootfs|mp\d+)$`)

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

func printCTNet(n map[string]string) string {
	parts := []string{"name=" + n["name"]}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "name" {
			parts = append(parts, key+"="+n[key])
		}
	}
	return strings.Join(parts, ",")
}
