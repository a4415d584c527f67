package api

// The configuration keys of drives and mount points, and the format of their values.

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// IsDrive reports whether a key is that of a drive of a VM, also of a disk that is attached nowhere.
func IsDrive(key string) bool {
	if key == "" || !isNumber(key[len(key)-1:]) { // as of nearly all keys
		return false
	}
	for _, bus := range []string{"scsi", "virtio", "sata", "ide", "efidisk", "tpmstate", "unused"} {
		if rest, ok := strings.CutPrefix(key, bus); ok && isNumber(rest) {
			return true
		}
	}
	return false
}

// IsMount reports whether a key is that of the root disk or a mount point.
func IsMount(key string) bool {
	no, ok := strings.CutPrefix(key, "mp")
	_, err := strconv.Atoi(no)
	return key == "rootfs" || ok && err == nil
}

// BusOf is the bus of a slot.
func BusOf(slot string) string { return strings.TrimRight(slot, "0123456789") }

// cloudInit is the volume of a cloud-init drive, or the order for one (qemu-server,
// PVE/QemuServer/Drive.pm, drive_is_cloudinit).
var cloudInit = regexp.MustCompile(`[:/](vm-\d+-)?cloudinit(\.\w+)?$`)

// MayHoldCD reports whether a key is a slot that CD drives may have.
func MayHoldCD(key string) bool {
	return IsDrive(key) && slices.Contains([]string{"ide", "sata", "scsi"}, BusOf(key))
}

// HoldsCD reports whether a drive holds CDs, that of cloud-init included.
func HoldsCD(value string) bool { return PropertyValue(value, "media") == "cdrom" }

// HoldsState reports whether a drive holds the firmware's or the TPM's state. These
// two are options; all other drives are disks.
func HoldsState(key string) bool { return key == "efidisk0" || key == "tpmstate0" }

// UnusedKey is the key of a volume that belongs to the guest and is attached nowhere.
func UnusedKey(c map[string]string, id string) string {
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if strings.HasPrefix(key, "unused") && VolumeOf(c[key]) == id {
			return key
		}
	}
	return ""
}

// AttachedAt is the slot where a volume is in use, also if only until the next restart.
func AttachedAt(c map[string]string, id string) string {
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if (IsDrive(key) && !strings.HasPrefix(key, "unused") || IsMount(key)) && VolumeOf(c[key]) == id {
			return key
		}
	}
	return ""
}

// HoldsData reports whether a drive holds data: no ISO, no empty tray, no cloud-init.
func HoldsData(drive string) bool {
	file := PropertyFirst(drive, "file")
	return strings.Contains(file, ":") && !strings.Contains(drive, "media=cdrom") && !strings.Contains(file, "cloudinit")
}

const (
	// CloudInitSlot is the slot of the cloud-init drive in PVE's own form.
	CloudInitSlot = "ide2"
	// EmptyDrive is a CD drive without a medium.
	EmptyDrive = EmptyMedium + ",media=cdrom"
	// EmptyMedium is the value of an empty CD drive.
	EmptyMedium = "none"
)

// IsCloudInit reports whether a volume is that of a cloud-init drive, or the order for one.
func IsCloudInit(volume string) bool { return cloudInit.MatchString(volume) }
