package qemu

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// optionRights says which privilege a configuration key needs
// ($check_vm_modify_config_perm in PVE/API2/Qemu.pm). A key that is not here
// and has no rule of its own is for root@pam alone.
var optionRights = func() map[string]string {
	rights := map[string]string{}
	for priv, keys := range map[string]string{
		"VM.Config.CPU":     "cores cpu cpulimit cpuunits numa smp sockets vcpus",
		"VM.Config.Memory":  "memory balloon shares allow-ksm",
		"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
		"VM.Config.Options": "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name onboot ostype protection reboot startdate startup tdf template hookscript",
		"VM.Config.Disk":    "boot bootdisk vmstatestorage",
		"VM.PowerMgmt":      "freeze",
	} {
		for key := range strings.FieldsSeq(keys) {
			rights[key] = priv
		}
	}
	delete(rights, "hookscript") // Named with the others in the documentation, but for root alone.
	return rights
}()

// cloudKeys are the keys of the cloud-init drive. The right to configure either cloud-init or the network allows
// setting them.
var cloudKeys = map[string]bool{
	"cicustom": true, "cipassword": true, "citype": true, "ciuser": true, "ciupgrade": true,
	"nameserver": true, "searchdomain": true, "sshkeys": true,
}

func isCloudKey(key string) bool {
	family := perl.FamilyOf(key)
	return cloudKeys[key] || family == "ipconfig" && key != family
}

var checkedElsewhere = regexp.MustCompile(`^(?:cdrom|tags|(?:unused|serial|usb|hostpci|virtiofs)\d+)$`)

// mayConfigure checks the right to set or delete keys.
func mayConfigure(c *core.Call, vmid int, pool string, keys []string) error {
	if c.Root() {
		return nil
	}
	for _, key := range slices.Sorted(slices.Values(keys)) {
		family := perl.FamilyOf(key)
		var err error
		switch priv := optionRights[key]; {
		case perl.IsDrive(key) || checkedElsewhere.MatchString(key):
		case priv != "":
			if err = c.NeedVM(vmid, pool, priv); err == nil && key == "startup" {
				err = c.Need("/", "Sys.Modify") // It changes how the host behaves.
			}
		case family == "numa":
			err = c.NeedVM(vmid, pool, "VM.Config.CPU")
		case family == "net":
			err = c.NeedVM(vmid, pool, "VM.Config.Network")
		case isCloudKey(key):
			if err = c.NeedVM(vmid, pool, "VM.Config.Cloudinit"); err != nil && c.NeedVM(vmid, pool, "VM.Config.Network") == nil {
				err = nil
			}
			if err != nil {
				err = perl.Forbidden(core.ShownPath(core.VMPath(vmid)) + ", VM.Config.Cloudinit|VM.Config.Network")
			}
		case key == "vmstate":
			err = c.NeedVM(vmid, pool, "VM.Config.Disk", "VM.PowerMgmt")
		default:
			err = perl.Fail("only root can set '%s' config", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayUseStorages checks the drives of a change: where they would be allocated,
// and which volumes they name ($check_storage_access).
func mayUseStorages(c *core.Call, vmid int, settings map[string]string, defaultStorage string) error {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		d := perl.ParseDrive(key, settings[key])
		if !perl.IsDrive(key) || !consistent(d, key) { // Invalid values are skipped here.
			continue
		}
		if err := mayUseDrive(c, vmid, key, d, defaultStorage); err != nil {
			return err
		}
		if source := d.Opts["import-from"]; source != "" {
			if err := mayImport(c, vmid, key, source); err != nil {
				return err
			}
		}
	}
	unused := perl.Config(settings).IndexedKeys("unused")
	slices.Sort(unused)
	for _, key := range unused {
		volid := perl.ParseDrive(key, settings[key]).File
		if _, _, managed := core.VolumeID(volid); !managed {
			return perl.BadParam(key, "not a valid volid: "+volid)
		}
		if _, err := guests.MayReadVolume(c, vmid, volid, "images"); err != nil {
			return err
		}
	}
	if storage := settings["vmstatestorage"]; storage != "" {
		return c.Need("/storage/"+storage, "Datastore.AllocateSpace")
	}
	return nil
}

func mayUseDrive(c *core.Call, vmid int, key string, d perl.Drive, defaultStorage string) error {
	order := perl.NewDisk.FindStringSubmatch(d.File)
	_, name, managed := core.VolumeID(d.File)
	switch {
	case d.File == "", d.File == "none", d.File == "cloudinit", managed && name == "cloudinit":
		return nil
	case d.Cdrom() && d.File == "cdrom":
		return c.Need("/", "Sys.Console")
	case !d.Cdrom() && order != nil:
		storage := cmp.Or(order[1], defaultStorage)
		if storage == "" {
			return perl.Fail("no storage ID specified (and no default storage)")
		}
		if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return err
		}
		st, err := c.W.Store(storage)
		if err != nil {
			return err
		}
		if !st.Holds("images") {
			return perl.BadParam("storage", "storage '"+storage+"' does not support vm images")
		}
		return nil
	}
	content, err := guests.MayReadVolume(c, vmid, d.File, "")
	if err == nil && managed && content != "images" && content != "iso" {
		return perl.BadParam(key, "content type needs to be 'images' or 'iso'")
	}
	return err
}

// mayImport checks the source of a disk that is to be imported.
func mayImport(c *core.Call, vmid int, key, source string) error {
	if _, _, managed := core.VolumeID(source); managed {
		switch n, err := core.Locate(c.W, source); {
		case err != nil:
			return err
		case n.Parsed.Content != "images" && n.Parsed.Content != "import":
			return perl.BadParam(key, source+" has wrong type '"+n.Parsed.Content+"' - needs to be 'images' or 'import'")
		case n.Parsed.Vmid != 0:
			return c.Need(core.VMPath(n.Parsed.Vmid), "VM.Clone")
		}
	}
	_, err := guests.MayReadVolume(c, vmid, source, "")
	return err
}

// mayUseBridges checks the networks of a change (check_bridge_access in
// PVE/QemuServer.pm): bridges are zones of their own, a VLAN may have its own
// access list.
func mayUseBridges(c *core.Call, settings map[string]string) error {
	if c.Root() {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if family := perl.FamilyOf(key); family != "net" || key == family {
			continue
		}
		n := perl.ParseProperty(key, settings[key])
		if n["bridge"] == "" {
			if c.W.V9() {
				continue
			}
			return perl.Fail("no sdn vnet ID specified")
		}
		if err := guests.MayUseBridge(c, n); err != nil {
			return err
		}
	}
	return nil
}

// deviceFamilies are the keys that reach through to the host, in the order in which a new
// VM is checked for them (create_vm in PVE/API2/Qemu.pm).
var deviceFamilies = []string{"serial", "usb", "hostpci", "rng", "virtiofs"}

// mayUseDevices checks what reaches through to the host: serial ports, USB and PCI
// devices, the random number generator, folders.
func mayUseDevices(c *core.Call, vmid int, pool string, settings map[string]string, verb string) error {
	if c.Root() {
		return nil
	}
	for _, family := range deviceFamilies {
		for _, key := range perl.Config(settings).IndexedKeys(family) {
			if err := mayUseDevice(c, vmid, pool, key, settings[key], verb); err != nil {
				return err
			}
		}
	}
	return nil
}

func mayUseDevice(c *core.Call, vmid int, pool, key, value, verb string) error {
	mayChange := func(priv string) error { return c.NeedVM(vmid, pool, priv) }
	device := perl.ParseProperty(key, value)
	noSource := perl.Fail("either 'host' or 'mapping' must be set.")
	switch perl.FamilyOf(key) {
	case "serial": // check_vm_create_serial_perm
		if value != "socket" {
			return perl.Fail("only root can %s '%s' config for real devices", verb, key)
		}
		return mayChange("VM.Config.HWType")
	case "usb": // check_usb_perm
		if err := mayChange("VM.Config.HWType"); err != nil {
			return err
		}
		switch {
		case strings.EqualFold(device["host"], "spice"):
			return nil
		case device["host"] != "":
			return perl.Fail("only root can set '%s' config for real devices", key)
		case device["mapping"] == "":
			return noSource
		}
		return c.Need("/mapping/usb/"+device["mapping"], "Mapping.Use")
	case "hostpci": // check_hostpci_perm
		switch {
		case device["host"] != "":
			return perl.Fail("only root can set '%s' config for non-mapped devices", key)
		case device["mapping"] == "":
			return noSource
		}
		if err := cmp.Or(c.Need("/mapping/pci/"+device["mapping"], "Mapping.Use"), mayChange("VM.Config.HWType")); err != nil {
			return err
		}
		if _, set := device["romfile"]; set {
			return perl.BadParam(key, "only root@pam can set 'romfile' option")
		}
		return nil
	case "rng": // check_rng_perm
		if err := mayChange("VM.Config.HWType"); err != nil || device["source"] != "/dev/hwrng" {
			return err
		}
		return c.Need("/mapping/hwrng", "Mapping.Use")
	default: // check_dir_perm
		return cmp.Or(mayChange("VM.Config.Disk"), c.Need("/mapping/dir/"+device["dirid"], "Mapping.Use"))
	}
}

// mayUseModel checks the right to a model of a CPU that an administrator made up, where
// the guest has another one ($check_cpu_model_access).
func mayUseModel(c *core.Call, value, old string) error {
	model := perl.ParseProperty("cpu", value)["cputype"]
	name, own := strings.CutPrefix(model, "custom-")
	switch {
	case !own, c.Root(), model == perl.ParseProperty("cpu", old)["cputype"]:
		return nil
	case c.W.V92(): // Since qemu-server 9.1.13.
		return c.Need("/mapping/cpu/"+name, "Mapping.Use")
	default:
		return c.Need("/nodes", "Sys.Audit")
	}
}

// mayChangeDrive checks the right for one drive by what it is.
func mayChangeDrive(c *core.Call, vmid int, d perl.Drive) error {
	switch {
	case d.Cloudinit():
		return c.Need(core.VMPath(vmid), "VM.Config.Cloudinit", "VM.Config.CDROM")
	case d.Cdrom():
		return c.Need(core.VMPath(vmid), "VM.Config.CDROM")
	default:
		return c.Need(core.VMPath(vmid), "VM.Config.Disk")
	}
}
