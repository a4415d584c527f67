package pvesim

import (
	"maps"
	"regexp"
	"slices"
	"strings"
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

// cloudKeys are what goes into the cloud-init drive. Who may configure either
// cloud-init or the network may set them.
var cloudKeys = map[string]bool{
	"cicustom": true, "cipassword": true, "citype": true, "ciuser": true, "ciupgrade": true,
	"nameserver": true, "searchdomain": true, "sshkeys": true,
}

func isCloudKey(key string) bool {
	family := familyOf(key)
	return cloudKeys[key] || family == "ipconfig" && key != family
}

var checkedElsewhere = regexp.MustCompile(`^(?:cdrom|tags|(?:unused|serial|usb|hostpci|virtiofs)\d+)$`)

// mayConfigure checks the right to set or delete keys.
func (c *call) mayConfigure(vmid int, pool string, keys []string) error {
	if c.root() {
		return nil
	}
	for _, key := range slices.Sorted(slices.Values(keys)) {
		family := familyOf(key)
		var err error
		switch priv := optionRights[key]; {
		case isDrive(key) || checkedElsewhere.MatchString(key):
		case priv != "":
			if err = c.needVM(vmid, pool, priv); err == nil && key == "startup" {
				err = c.need("/", "Sys.Modify") // It changes how the host behaves.
			}
		case family == "numa":
			err = c.needVM(vmid, pool, "VM.Config.CPU")
		case family == "net":
			err = c.needVM(vmid, pool, "VM.Config.Network")
		case isCloudKey(key):
			if err = c.needVM(vmid, pool, "VM.Config.Cloudinit"); err != nil && c.needVM(vmid, pool, "VM.Config.Network") == nil {
				err = nil
			}
			if err != nil {
				err = forbidden(shownPath(vmPath(vmid)) + ", VM.Config.Cloudinit|VM.Config.Network")
			}
		case key == "vmstate":
			err = c.needVM(vmid, pool, "VM.Config.Disk", "VM.PowerMgmt")
		default:
			err = fail("only root can set '%s' config", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayUseStorages checks the drives of a change: where they would be allocated,
// and which volumes they name ($check_storage_access).
func (c *call) mayUseStorages(vmid int, settings map[string]string, defaultStorage string) error {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		d := parseDrive(key, settings[key])
		if !isDrive(key) || !d.consistent(key) { // What does not parse is skipped here.
			continue
		}
		if err := c.mayUseDrive(vmid, key, d, defaultStorage); err != nil {
			return err
		}
		if source := d.opts["import-from"]; source != "" {
			if err := c.mayImport(vmid, key, source); err != nil {
				return err
			}
		}
	}
	unused := indexedKeys(settings, "unused")
	slices.Sort(unused)
	for _, key := range unused {
		volid := parseDrive(key, settings[key]).file
		if _, _, managed := volumeID(volid); !managed {
			return badParam(key, "not a valid volid: "+volid)
		}
		if _, err := c.mayReadVolume(vmid, volid, "images"); err != nil {
			return err
		}
	}
	if storage := settings["vmstatestorage"]; storage != "" {
		return c.need("/storage/"+storage, "Datastore.AllocateSpace")
	}
	return nil
}

func (c *call) mayUseDrive(vmid int, key string, d drive, defaultStorage string) error {
	order := newDisk.FindStringSubmatch(d.file)
	_, name, managed := volumeID(d.file)
	switch {
	case d.file == "", d.file == "none", d.file == "cloudinit", managed && name == "cloudinit":
		return nil
	case d.cdrom() && d.file == "cdrom":
		return c.need("/", "Sys.Console")
	case !d.cdrom() && order != nil:
		storage := order[1]
		if storage == "" {
			storage = defaultStorage
		}
		if storage == "" {
			return fail("no storage ID specified (and no default storage)")
		}
		if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return err
		}
		st, err := c.w.store(storage)
		if err != nil {
			return err
		}
		if !st.holds("images") {
			return badParam("storage", "storage '"+storage+"' does not support vm images")
		}
		return nil
	}
	content, err := c.mayReadVolume(vmid, d.file, "")
	if err == nil && managed && content != "images" && content != "iso" {
		return badParam(key, "content type needs to be 'images' or 'iso'")
	}
	return err
}

// mayImport checks the source of a disk that is to be imported.
func (c *call) mayImport(vmid int, key, source string) error {
	storage, name, managed := volumeID(source)
	if managed {
		st, err := c.w.store(storage)
		if err != nil {
			return err
		}
		parsed, err := st.parseName(name)
		if err != nil {
			return err
		}
		if parsed.content != "images" && parsed.content != "import" {
			return badParam(key, source+" has wrong type '"+parsed.content+"' - needs to be 'images' or 'import'")
		}
		if parsed.vmid != 0 {
			return c.need(vmPath(parsed.vmid), "VM.Clone")
		}
	}
	_, err := c.mayReadVolume(vmid, source, "")
	return err
}

// mayUseBridges checks the networks of a change (check_bridge_access in
// PVE/QemuServer.pm): bridges are zones of their own, a VLAN may have its own
// access list.
func (c *call) mayUseBridges(settings map[string]string) error {
	if c.root() {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if family := familyOf(key); family != "net" || key == family {
			continue
		}
		n := parseProperty(key, settings[key])
		if n["bridge"] == "" {
			if c.w.v9() {
				continue
			}
			return fail("no sdn vnet ID specified")
		}
		if err := c.mayUseBridge(n); err != nil {
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
func (c *call) mayUseDevices(vmid int, pool string, settings map[string]string, verb string) error {
	if c.root() {
		return nil
	}
	for _, family := range deviceFamilies {
		for _, key := range indexedKeys(settings, family) {
			if err := c.mayUseDevice(vmid, pool, key, settings[key], verb); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *call) mayUseDevice(vmid int, pool, key, value, verb string) error {
	mayChange := func(priv string) error { return c.needVM(vmid, pool, priv) }
	device := parseProperty(key, value)
	noSource := fail("either 'host' or 'mapping' must be set.")
	switch familyOf(key) {
	case "serial": // check_vm_create_serial_perm
		if value != "socket" {
			return fail("only root can %s '%s' config for real devices", verb, key)
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
			return fail("only root can set '%s' config for real devices", key)
		case device["mapping"] == "":
			return noSource
		}
		return c.need("/mapping/usb/"+device["mapping"], "Mapping.Use")
	case "hostpci": // check_hostpci_perm
		switch {
		case device["host"] != "":
			return fail("only root can set '%s' config for non-mapped devices", key)
		case device["mapping"] == "":
			return noSource
		}
		if err := c.need("/mapping/pci/"+device["mapping"], "Mapping.Use"); err != nil {
			return err
		}
		if err := mayChange("VM.Config.HWType"); err != nil {
			return err
		}
		if _, set := device["romfile"]; set {
			return badParam(key, "only root@pam can set 'romfile' option")
		}
		return nil
	case "rng": // check_rng_perm
		if err := mayChange("VM.Config.HWType"); err != nil || device["source"] != "/dev/hwrng" {
			return err
		}
		return c.need("/mapping/hwrng", "Mapping.Use")
	default: // check_dir_perm
		if err := mayChange("VM.Config.Disk"); err != nil {
			return err
		}
		return c.need("/mapping/dir/"+device["dirid"], "Mapping.Use")
	}
}

// mayUseModel checks the right to a model of a CPU that an administrator made up, where
// the guest has another one ($check_cpu_model_access).
func (c *call) mayUseModel(value, old string) error {
	model := parseProperty("cpu", value)["cputype"]
	name, own := strings.CutPrefix(model, "custom-")
	switch {
	case !own, c.root(), model == parseProperty("cpu", old)["cputype"]:
		return nil
	case c.w.v92(): // Since qemu-server 9.1.13.
		return c.need("/mapping/cpu/"+name, "Mapping.Use")
	default:
		return c.need("/nodes", "Sys.Audit")
	}
}

// mayChangeDrive checks the right for one drive by what it is.
func (c *call) mayChangeDrive(vmid int, d drive) error {
	switch {
	case d.cloudinit():
		return c.need(vmPath(vmid), "VM.Config.Cloudinit", "VM.Config.CDROM")
	case d.cdrom():
		return c.need(vmPath(vmid), "VM.Config.CDROM")
	default:
		return c.need(vmPath(vmid), "VM.Config.Disk")
	}
}
