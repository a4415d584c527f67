package guest

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
)

// blockKeys are PVE keys that blocks of the files say, and the description; indexed ones
// by family.
var blockKeys = map[string]string{
	"description": "description", "net[n]": "nic blocks", "ipconfig[n]": "nic blocks",
	"scsi[n]": "disk blocks", "virtio[n]": "disk blocks with bus", "sata[n]": "disk blocks with bus",
}

// SetBy says what decides a PVE key, by its family, in place of an option; "" if nothing
// does.
func SetBy(family string) string {
	if a := VMAttributes().ByKey(family); a != nil {
		return a.Words
	}
	return blockKeys[family]
}

// isReserved reports whether a PVE key is said by an attribute of its own, or by none.
func isReserved(key string) bool {
	f := options.VM().Family(key)
	return SetBy(f) != "" || options.Refused(f) != ""
}

// isOption: a drive is one for a CD, or for the state of firmware or TPM.
func (*VM) isOption(key, val string) bool {
	return IsCD(key, val) || !isReserved(key) && (!drives.IsDrive(key) || drives.HoldsState(key))
}
