package perl

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Drive is a drive of a VM: a volume and options.
type Drive struct {
	File string
	Opts map[string]string
}

var (
	driveKey = regexp.MustCompile(`^(?:ide[0-3]|sata[0-5]|scsi(?:[12]?\d|30)|virtio(?:\d|1[0-5])|efidisk0|tpmstate0)$`)
	// CloudFile matches the file of a drive of cloud-init.
	CloudFile = regexp.MustCompile(`[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?$`)
	// NewDisk is an order to allocate: STORAGE:GIB ($NEW_DISK_RE in PVE/API2/Qemu.pm).
	NewDisk = regexp.MustCompile(`^(?:([^/:\s]+):)?(\d+(?:\.\d+)?)$`)
)

// IsDrive says whether a key is of a drive of a VM.
func IsDrive(key string) bool { return driveKey.MatchString(key) }

// DriveNames are the keys of a configuration that are drives, in PVE's order.
func (c Config) DriveNames() []string {
	bus := map[string]int{"ide": 0, "scsi": 1, "virtio": 2, "sata": 3, "efidisk": 4, "tpmstate": 5}
	var names []string
	for key := range c {
		if IsDrive(key) {
			names = append(names, key)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		busA, numberA := SplitKey(a)
		busB, numberB := SplitKey(b)
		return 1000*(bus[busA]-bus[busB]) + numberA - numberB
	})
	return names
}

// SplitKey takes an indexed key apart: scsi0 is scsi and 0.
func SplitKey(key string) (family string, index int) {
	family = FamilyOf(key)
	return family, Atoi(key[len(family):])
}

// FamilyOf is the key without its index.
func FamilyOf(key string) string { return strings.TrimRight(key, "0123456789") }

// ParseProperty reads a property string by the table's description of a key;
// values are checked before they get here, so what does not parse is empty.
func ParseProperty(key, value string) map[string]string { return parse("qemu", key, value) }

func parse(kind, key, value string) map[string]string {
	if v, ok := ConfigParams[kind]().Param(key); ok {
		if parsed, err := v.ParseProperty(value); err == nil {
			return parsed
		}
	}
	return map[string]string{}
}

// ParseDrive reads a drive. An unusedN is a bare volume.
func ParseDrive(key, value string) Drive {
	opts := ParseProperty(key, value)
	d := Drive{File: opts["file"], Opts: opts}
	delete(opts, "file")
	d.convertRates()
	if d.File == "" { // A stored value that the table does not know.
		d.File, _, _ = strings.Cut(value, ",")
	}
	return d
}

// String prints a drive as the configuration has it: the volume, then the
// options in the order of the alphabet. The source of an import is left out.
func (d Drive) String() string {
	var b strings.Builder
	b.WriteString(d.File)
	for _, key := range slices.Sorted(maps.Keys(d.Opts)) {
		if key != "import-from" {
			b.WriteString("," + key + "=" + d.Opts[key])
		}
	}
	return b.String()
}

// Cdrom says whether it is a CD drive.
func (d Drive) Cdrom() bool { return d.Opts["media"] == "cdrom" }

// Cloudinit says whether it is the drive of cloud-init.
func (d Drive) Cloudinit() bool { return CloudFile.MatchString(d.File) }

// BootOrder reads the devices of the boot key; none of the legacy form.
func BootOrder(value string) []string {
	return strings.FieldsFunc(ParseProperty("boot", value)["order"], func(r rune) bool { return r == ';' })
}

// PrintBootOrder prints the option boot.
func PrintBootOrder(devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	return "order=" + strings.Join(devices, ";")
}

// IndexedKeys are the keys of a family, in the order of their index.
func (c Config) IndexedKeys(family string) []string {
	var keys []string
	for key := range c {
		if f, _ := SplitKey(key); f == family && key != family {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		_, indexA := SplitKey(a)
		_, indexB := SplitKey(b)
		return indexA - indexB
	})
	return keys
}

// FormatSize prints bytes in the largest unit that is whole (format_size in
// PVE/JSONSchema.pm); nothing is "0T" there.
func FormatSize(bytes int64) string {
	unit := ""
	for _, next := range []string{"K", "M", "G", "T"} {
		if bytes%1024 != 0 {
			break
		}
		bytes, unit = bytes/1024, next
	}
	return strconv.FormatInt(bytes, 10) + unit
}

// ParseSize reads "32G", "1.5T", "4096"; ok is false for anything else.
func ParseSize(s string) (bytes int64, ok bool) {
	if s == "" {
		return 0, false
	}
	factor := float64(1)
	if i := strings.IndexByte("KMGT", s[len(s)-1]); i >= 0 {
		factor = float64(int64(1) << (10 * (i + 1)))
		s = s[:len(s)-1]
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	return int64(n * factor), true
}

// AddUnused puts a volume into the first free unusedN.
func (c Config) AddUnused(volid string) {
	for n := range 256 {
		key := "unused" + strconv.Itoa(n)
		if c[key] == volid {
			return
		}
	}
	for n := range 256 {
		key := "unused" + strconv.Itoa(n)
		if _, taken := c[key]; !taken {
			c[key] = volid
			return
		}
	}
}

// MemoryMiB reads the memory key; 512 is its default.
func MemoryMiB(value string) int {
	if value == "" {
		return 512
	}
	return Atoi(ParseProperty("memory", value)["current"])
}

// convertRates turns rates in bytes into those in megabytes. PVE takes for the rate whether
// there is one, which is always 0.000 (parse_drive in PVE/QemuServer/Drive.pm).
func (d Drive) convertRates() {
	for _, rate := range []string{"bps", "bps_rd", "bps_wr"} {
		if _, there := d.Opts[rate]; !there {
			continue
		}
		if _, both := d.Opts["m"+rate]; !both {
			d.Opts["m"+rate] = "0.000"
			delete(d.Opts, rate)
		}
	}
}

// IsMount says whether a key is of a mount point of a container.
func IsMount(key string) bool { return mountKey.MatchString(key) }

var mountKey = regexp.MustCompile(`^(?:rootfs|mp\d+)$`)

// MountNames are the mount points of a configuration: the root, then the others
// by number.
func (c Config) MountNames() []string {
	var names []string
	if _, ok := c["rootfs"]; ok {
		names = append(names, "rootfs")
	}
	return append(names, c.IndexedKeys("mp")...)
}

// CTProperty reads a property string by the table's description of a container's key. It is empty if that does not
// parse, as in parseProperty.
func CTProperty(key, value string) map[string]string { return parse("lxc", key, value) }

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
