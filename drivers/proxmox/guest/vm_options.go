package guest

import "github.com/homestak/homestak-gitops/drivers/proxmox/api"

// blockKeys are the keys that blocks set, and the description; indexed keys by their family.
var blockKeys = map[string]string{
	"description": "description", "net[n]": "nic blocks", "ipconfig[n]": "nic blocks",
	"scsi[n]": "disk blocks, or for a disk of the node itself by root@pam with qm set", "virtio[n]": "disk blocks with bus", "sata[n]": "disk blocks with bus",
}

// SetBy says in words what sets the keys of a family instead of an option; "" if that is an option.
func SetBy(family string) string {
	if a := VMAttributes().ByKey(family); a != nil {
		return a.Words
	}
	return blockKeys[family]
}

// isReserved reports whether a key cannot be an option: an attribute sets it, or it is refused.
func isReserved(key string) bool {
	f := VMKeys().Family(key)
	return SetBy(f) != "" || RefusedKey(f) != ""
}

// isOption implements Guest. Of the drives, those for CDs and for the state of firmware and TPM are
// options.
func (*VM) isOption(key, val string) bool {
	return IsCD(key, val) || !isReserved(key) && (!api.IsDrive(key) || api.HoldsState(key))
}
