package guest

import (
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// The options of VMs: which of them Proxmox VE takes from an API token, and when they
// take effect.

// RefusedKey explains why the files may not set a key of VMs as an option, by its family; "" if they
// may.
func RefusedKey(family string) string { return refused[family] }

// refused are the reasons, indexed keys by family.
var refused = func() map[string]string {
	out := map[string]string{
		"smbios1":    "it contains the identity that makes the guest managed",
		"cdrom":      `it is an old name of ide2, which is the cloud-init drive: a CD drive is declared by its slot, ide0 = "local:iso/NAME.iso,media=cdrom"`,
		"unused[n]":  "detached volumes follow from the disk blocks",
		"bootdisk":   `it is an old form of boot: set boot = "order=…"`,
		"smp":        "it is an old name of sockets: set sockets",
		"template":   "a template cannot run as a guest: declare it in a template block",
		"lock":       "PVE's own tasks lock and unlock a guest",
		"node":       "it follows from the host",
		"vmid":       "it has an attribute of its own",
		"pool":       "the host block sets it",
		"start":      "power sets it",
		"storage":    "the host block and the disk blocks set it",
		"ha-managed": "it belongs to the request that creates the guest, and is not a setting",
	}
	for key := range strings.FieldsSeq("archive bwlimit delete digest force import-working-storage live-restore revert skiplock unique") {
		out[key] = "it belongs to a request, and is not a setting of the guest"
	}
	for key := range strings.FieldsSeq("affinity amd-sev arch args hookscript hugepages intel-tdx ivshmem keephugepages parallel[n] spice_enhancements vmgenid") {
		out[key] = rootOnly
	}
	return out
}()

// rootOnly: PVE compares with the user's name, and a token of root@pam is not
// root@pam (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm).
const rootOnly = "PVE accepts it from root@pam with a password only, never from an API token: set it on the node with qm set"

// devices are values that reach through to the node's own devices; PVE takes
// them from root@pam only, and from tokens those that an administrator has mapped.
var devices = map[string]struct {
	fine *regexp.Regexp
	fix  string
}{
	"serial[n]":  {regexp.MustCompile(`^socket$`), `a token may set "socket" only`},
	"usb[n]":     {regexp.MustCompile(`(^|,)mapping=|^(host=)?spice(,|$)`), "name a resource mapping: mapping=NAME"},
	"hostpci[n]": {regexp.MustCompile(`(^|,)mapping=`), "name a resource mapping: mapping=NAME"},
	"rng0":       {regexp.MustCompile(`urandom|/random`), "use /dev/urandom"},
}

// HostDevice says what a token may set instead of a value that passes through a device of the node;
// "" if the value does not.
func HostDevice(key, value string) string {
	d, ok := devices[VMKeys().Family(key)]
	if !ok || value == "" || d.fine.MatchString(value) {
		return ""
	}
	return d.fix
}

// atOnce are keys without effect on a running guest (qemu-server, PVE/QemuServer.pm, $fast_plug_option).
var atOnce = map[string]bool{
	"description": true, "migrate_downtime": true, "migrate_speed": true, "name": true, "onboot": true, "protection": true,
	"shares": true, "startup": true, "tags": true, "vmstatestorage": true,
}

// AppliesAtOnce reports whether Proxmox VE applies a key at once while the machine runs, because it has no
// effect on a running machine.
func AppliesAtOnce(key string) bool { return atOnce[key] }

// BootDevices are the devices of a boot order.
func BootDevices(boot string) []string {
	return strings.FieldsFunc(api.PropertyValue(boot, "order"), func(r rune) bool { return r == ';' })
}

// KeyPrivilege is the privilege that PVE requires for a key of a VMKeys (qemu-server, API2/Qemu.pm,
// check_vm_modify_config_perm). The files cannot set keys that PVE reserves for root@pam.
func KeyPrivilege(key string) string {
	switch strings.TrimRight(key, "0123456789") {
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus":
		return "VM.Config.CPU"
	case "memory", "balloon", "shares", "allow-ksm":
		return "VM.Config.Memory"
	case "acpi", "audio", "hotplug", "kvm", "machine", "rng", "scsihw", "smbios", "tablet", "vga", "watchdog", "serial", "usb", "hostpci":
		return "VM.Config.HWType"
	case "boot", "bootdisk", "efidisk", "tpmstate", "vmstatestorage", "virtiofs":
		return "VM.Config.Disk"
	case "ide", "sata", "scsi":
		return "VM.Config.CDROM"
	case "cicustom", "citype", "ciupgrade":
		return "VM.Config.Cloudinit"
	case "freeze":
		return "VM.PowerMgmt"
	default:
		return "VM.Config.Options"
	}
}
