package pvesim

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// drive is a drive of a VM: a volume and options.
type drive struct {
	file string
	opts map[string]string
}

var (
	driveKey  = regexp.MustCompile(`^(?:ide[0-3]|sata[0-5]|scsi(?:[12]?\d|30)|virtio(?:\d|1[0-5])|efidisk0|tpmstate0)$`)
	cloudFile = regexp.MustCompile(`[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?$`)
	// newDisk is an order to allocate: STORAGE:GIB ($NEW_DISK_RE in PVE/API2/Qemu.pm).
	newDisk = regexp.MustCompile(`^(?:([^/:\s]+):)?(\d+(?:\.\d+)?)$`)
)

func isDrive(key string) bool { return driveKey.MatchString(key) }

// driveNames are the keys of a configuration that are drives, in PVE's order.
func driveNames(c config) []string {
	bus := map[string]int{"ide": 0, "scsi": 1, "virtio": 2, "sata": 3, "efidisk": 4, "tpmstate": 5}
	var names []string
	for key := range c {
		if isDrive(key) {
			names = append(names, key)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		busA, numberA := splitKey(a)
		busB, numberB := splitKey(b)
		return 1000*(bus[busA]-bus[busB]) + numberA - numberB
	})
	return names
}

// splitKey takes an indexed key apart: scsi0 is scsi and 0.
func splitKey(key string) (family string, index int) {
	family = familyOf(key)
	return family, atoi(key[len(family):])
}

// familyOf is the key without its index.
func familyOf(key string) string { return strings.TrimRight(key, "0123456789") }

// parseProperty reads a property string by the table's description of a key;
// values are checked before they get here, so what does not parse is empty.
func parseProperty(key, value string) map[string]string {
	v, ok := configParams["qemu"]().Param(key)
	if !ok {
		return map[string]string{}
	}
	parsed, err := v.ParseProperty(value)
	if err != nil {
		return map[string]string{}
	}
	return parsed
}

// parseDrive reads a drive. An unusedN is a bare volume.
func parseDrive(key, value string) drive {
	opts := parseProperty(key, value)
	d := drive{file: opts["file"], opts: opts}
	delete(opts, "file")
	d.convertRates()
	if d.file == "" { // A stored value that the table does not know.
		d.file, _, _ = strings.Cut(value, ",")
	}
	return d
}

// String prints a drive as the configuration has it: the volume, then the
// options in the order of the alphabet. The source of an import is left out.
func (d drive) String() string {
	var b strings.Builder
	b.WriteString(d.file)
	for _, key := range slices.Sorted(maps.Keys(d.opts)) {
		if key != "import-from" {
			b.WriteString("," + key + "=" + d.opts[key])
		}
	}
	return b.String()
}

func (d drive) cdrom() bool     { return d.opts["media"] == "cdrom" }
func (d drive) cloudinit() bool { return cloudFile.MatchString(d.file) }

// printNet prints a network device: model and address first.
func printNet(n map[string]string) string {
	var b strings.Builder
	b.WriteString(n["model"] + "=" + n["macaddr"])
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "model" && key != "macaddr" {
			b.WriteString("," + key + "=" + n[key])
		}
	}
	return b.String()
}

// bootOrder reads the devices of the boot key; none of the legacy form.
func bootOrder(value string) []string {
	return strings.FieldsFunc(parseProperty("boot", value)["order"], func(r rune) bool { return r == ';' })
}

func printBootOrder(devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	return "order=" + strings.Join(devices, ";")
}

// defaultBoot is the order that create gives when none was asked for: the first
// disk, the first CD drive, the first network device (get_default_bootdevices
// in PVE/QemuServer.pm).
func defaultBoot(c config) string {
	var order []string
	for _, cdrom := range []bool{false, true} {
		for _, key := range driveNames(c) {
			if key != "efidisk0" && key != "tpmstate0" && parseDrive(key, c[key]).cdrom() == cdrom {
				order = append(order, key)
				break
			}
		}
	}
	if nets := indexedKeys(c, "net"); len(nets) > 0 {
		order = append(order, nets[0])
	}
	return printBootOrder(order)
}

// indexedKeys are the keys of a family, in the order of their index.
func indexedKeys(c config, family string) []string {
	var keys []string
	for key := range c {
		if f, _ := splitKey(key); f == family && key != family {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		_, indexA := splitKey(a)
		_, indexB := splitKey(b)
		return indexA - indexB
	})
	return keys
}

// formatSize prints bytes in the largest unit that is whole (format_size in
// PVE/JSONSchema.pm); nothing is "0T" there.
func formatSize(bytes int64) string {
	unit := ""
	for _, next := range []string{"K", "M", "G", "T"} {
		if bytes%1024 != 0 {
			break
		}
		bytes, unit = bytes/1024, next
	}
	return strconv.FormatInt(bytes, 10) + unit
}

// parseSize reads "32G", "1.5T", "4096"; ok is false for anything else.
func parseSize(s string) (bytes int64, ok bool) {
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

// addUnused puts a volume into the first free unusedN.
func addUnused(c config, volid string) {
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

// memoryMiB reads the memory key; 512 is its default.
func memoryMiB(value string) int {
	if value == "" {
		return 512
	}
	return atoi(parseProperty("memory", value)["current"])
}

// convertRates turns rates in bytes into those in megabytes. PVE takes for the rate whether
// there is one, which is always 0.000 (parse_drive in PVE/QemuServer/Drive.pm).
func (d drive) convertRates() {
	for _, rate := range []string{"bps", "bps_rd", "bps_wr"} {
		if _, there := d.opts[rate]; !there {
			continue
		}
		if _, both := d.opts["m"+rate]; !both {
			d.opts["m"+rate] = "0.000"
			delete(d.opts, rate)
		}
	}
}
