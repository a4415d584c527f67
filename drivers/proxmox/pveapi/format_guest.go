package pveapi

import (
	"strconv"
	"strings"
)

// Formats of what a guest's configuration holds: pve-common (PVE/JSONSchema.pm),
// qemu-server (PVE/QemuServer.pm, QemuServer/Drive.pm), pve-container
// (PVE/LXC/Config.pm), pve-guest-common (PVE/ReplicationConfig.pm) and
// pve-ha-manager (PVE/HA/Tools.pm).

// volumeID is a storage's name, a colon, and what the storage makes of it. A
// number there is an order to allocate that many GiB.
const volumeID = `(?i:[a-z][a-z0-9\-_.]*[a-z0-9]):.+`

var (
	isStartupPart    = expression(`(?:(?:order=)?|up=|down=)[0-9]+`)
	isHotplugFeature = expression(`(?:network|disk|cpu|memory|usb|cloudinit)`)
	isCPURange       = expression(`\s*[0-9]+(-[0-9]+)?\s*`)
)

func guestShapes() map[string]shape {
	return map[string]shape{
		"pve-vmid":                       {expression(`[1-9][0-9]{2,8}`), "value does not look like a valid VM ID"},
		"pve-tag":                        {expression(`(?i:[a-z0-9_][a-z0-9_\-+.]*)`), "invalid characters in tag"},
		"urlencoded":                     {expression(`[-%a-zA-Z0-9_.!~*'()]*`), "invalid urlencoded string: %s"},
		"disk-size":                      {expression(`[0-9]+(\.[0-9]+)?[KMGT]?`), "value does not look like a valid disk size: %s"},
		"pve-volume-id":                  {expression(volumeID), "unable to parse volume ID '%s'"},
		"pve-volume-id-or-absolute-path": {expression(`(?:/[\s\S]*|` + volumeID + `)`), "unable to parse volume ID '%s'"},
		"pve-volume-id-or-qm-path":       {expression(`(?:none|cdrom|/[\s\S]*|` + volumeID + `)`), "unable to parse volume ID '%s'"},
		"pve-ha-resource-id":             {expression(`[a-z]+:\S+`), "value does not look like a valid ha resource id"},
		"pve-ha-resource-or-vm-id":       {expression(`(?:[a-z]+:\S+|[0-9]+)`), "value does not look like a valid ha resource id"},
		"pve-ha-node":                    {expression(dnsLabel + `(:[0-9]+)?`), "value does not look like a valid ha group node"},
		"pve-task-status-type":           {expression(`(?i:ok|error|warning|unknown)`), "invalid status '%s'"},
		"pve-day-of-week":                {expression(`(?:mon|tue|wed|thu|fri|sat|sun)`), "invalid day '%s'"},
		"pve-replication-job-id":         {expression(`[1-9][0-9]{2,}-[0-9]+`), "invalid replication job id '%s'"},
	}
}

func guestFormats() map[string]func(word string) error {
	return map[string]func(word string) error{
		"pve-startup-order":    checkStartupOrder,
		"pve-calendar-event":   checkCalendarEvent,
		"pve-hotplug-features": checkHotplug,
		"pve-cpuset":           checkCPUSet,
		"pve-phys-bits":        checkPhysBits,
		"pve-qm-bootdev":       only("invalid boot device '%s'", isBootDevice),
		"pve-qm-bootdisk":      only("invalid boot disk '%s'", isDriveName),
		"pve-ct-timezone":      only("invalid time zone '%s'", isTimeZone),
		"pve-lxc-mp-string": only("%s contains illegal character sequences", func(word string) bool {
			return !strings.HasPrefix(word, "../") && !hasDotSegment(word)
		}),
		"pve-lxc-dev-string": only("%s is not a valid device path", func(word string) bool {
			return strings.HasPrefix(word, "/dev/") && !hasDotSegment(word)
		}),
	}
}

// hasDotSegment says whether "." or ".." stands between slashes or at the end.
func hasDotSegment(path string) bool {
	_, rest, _ := strings.Cut(path, "/")
	for segment := range strings.SplitSeq(rest, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// checkStartupOrder: "[order=]n,up=n,down=n", each part at most useful once, but
// PVE lets the last one win.
func checkStartupOrder(word string) error {
	ok := truthy(word)
	for part := range strings.SplitSeq(word, ",") {
		if strings.TrimSpace(part) != "" && !isStartupPart(part) {
			ok = false
		}
	}
	if !ok {
		return died("unable to parse startup options")
	}
	return nil
}

// checkHotplug: a list of features, or 0 (none), or 1 (the default ones).
func checkHotplug(word string) error {
	if word == "0" || word == "1" {
		return nil
	}
	for _, feature := range splitList(word) {
		if !isHotplugFeature(feature) {
			return refuse("invalid hotplug feature '%s'", feature)
		}
	}
	return nil
}

// checkCPUSet: numbers and ascending ranges, comma-separated (PVE/CpuSet.pm).
func checkCPUSet(word string) error {
	wrong := died("unable to parse cpuset option")
	list := strings.TrimRight(word, ",")
	if list == "" {
		return nil
	}
	for part := range strings.SplitSeq(list, ",") {
		if !isCPURange(part) {
			return wrong
		}
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if isRange && (errFrom != nil || errTo != nil || to < from) {
			return wrong
		}
	}
	return nil
}

func checkPhysBits(word string) error {
	n, err := strconv.Atoi(word)
	if word != "host" && (err != nil || n < 8 || n > 64) {
		return died("value must be an integer between 8 and 64 or 'host'")
	}
	return nil
}

// isDriveName says whether a QEMU configuration key is a drive.
func isDriveName(word string) bool {
	return word == "efidisk0" || word == "tpmstate0" || isIndexed(word, "ide", "scsi", "virtio", "sata")
}

// isBootDevice says whether a QEMU guest can boot from a configuration key.
func isBootDevice(word string) bool {
	return isIndexed(word, "ide", "scsi", "virtio", "sata", "net", "usb", "hostpci")
}

// isIndexed says whether word is one of the families with an index in bounds.
func isIndexed(word string, families ...string) bool {
	for _, family := range families {
		if _, ok := indexed(map[string]*Value{family + "[n]": {}}, word); ok {
			return true
		}
	}
	return false
}
