package pvesim

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// driveNeeds are the members of a drive that need another one: the maximum of a rate the rate,
// the length of a burst its maximum (parse_drive in PVE/QemuServer/Drive.pm). Rates may be
// given in bytes, under names without the first letter.
var driveNeeds = [][2]string{
	{"mbps_max", "mbps"},
	{"mbps_rd_max", "mbps_rd"},
	{"mbps_wr_max", "mbps_wr"},
	{"miops_max", "miops"},
	{"miops_rd_max", "miops_rd"},
	{"miops_wr_max", "miops_wr"},
	{"bps_max_length", "mbps_max"},
	{"bps_rd_max_length", "mbps_rd_max"},
	{"bps_wr_max_length", "mbps_wr_max"},
	{"iops_max_length", "iops_max"},
	{"iops_rd_max_length", "iops_rd_max"},
	{"iops_wr_max_length", "iops_wr_max"},
}

// consistent says whether the members of a drive go together.
func (d drive) consistent(key string) bool {
	has := func(name string) bool { return d.opts[name] != "" && d.opts[name] != "0" }
	for _, rate := range []string{"bps", "bps_rd", "bps_wr"} {
		if _, both := d.opts[rate]; both { // One alone was converted.
			return false
		}
	}
	for _, pair := range driveNeeds {
		if has(pair[0]) && !has(pair[1]) {
			return false
		}
	}
	for _, one := range []string{"mbps", "iops"} {
		if has(one) && (has(one+"_rd") || has(one+"_wr")) {
			return false
		}
	}
	if d.cdrom() && (has("snapshot") || has("format") || familyOf(key) == "virtio") {
		return false
	}
	return true
}

var (
	plainFile = regexp.MustCompile(`^(?:cdrom|none|/dev/.+|[^:]+:.+|\d+)$`)
	folderOf  = map[string]string{"iso": "/template/iso", "vztmpl": "/template/cache", "backup": "/dump", "snippets": "/snippets", "import": "/import"}
)

// volumeAt is the volume that a path of the host is, if a storage knows it
// (path_to_volume_id in PVE/Storage.pm).
func (w *world) volumeAt(file string) (content, volid string) {
	folder, name := path.Dir(file), path.Base(file)
	for _, storage := range w.storeNames() {
		st := w.stores[storage]
		if !st.files() {
			continue
		}
		for _, content := range contentTypes {
			under, known := folderOf[content]
			if known && folder == st.Path+under && extensionFits(content, name) {
				return content, storage + ":" + content + "/" + name
			}
		}
		if owner := path.Base(folder); path.Dir(folder) == st.Path+"/images" {
			for _, v := range st.list(w.cfg.Node) {
				if v.name == owner+"/"+name || strings.HasSuffix(v.name, "/"+owner+"/"+name) {
					return "images", storage + ":" + v.name
				}
			}
		}
	}
	return "", ""
}

// tidyDrive makes the checks of $check_drive_param in PVE/API2/Qemu.pm, and those of
// cleanup_drive_path in PVE/QemuServer.pm.
func (c *call) tidyDrive(key string, d *drive) error {
	if !d.consistent(key) {
		return badParam(key, "unable to parse drive options")
	}
	if d.opts["import-from"] != "" {
		if order := newDisk.FindStringSubmatch(d.file); order == nil || strings.Trim(order[2], "0.") != "" {
			return badParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
		}
		for _, required := range map[string][]string{"efidisk0": {"efitype", "pre-enrolled-keys"}, "tpmstate0": {"version"}}[key] {
			if _, set := d.opts[required]; !set {
				return badParam(key, "need to specify '"+required+"' when using 'import-from'")
			}
		}
	}
	if !plainFile.MatchString(d.file) {
		content, volid := c.w.volumeAt(d.file)
		if content == "" {
			return badParam(key, "unable to associate path '"+d.file+"' to any storage")
		}
		if d.opts["media"] == "" && content == "iso" {
			d.opts["media"] = "cdrom"
		}
		wanted := map[string]string{"disk": "images", "cdrom": "iso"}[d.opts["media"]]
		if wanted != "" && wanted != content {
			return badParam(key, "unexpected media type ("+content+" != "+wanted+")")
		}
		d.file = volid
	}
	if d.opts["media"] == "" && (d.file == "none" || d.file == "cdrom") {
		d.opts["media"] = "cdrom"
	}
	storage, name, managed := volumeID(d.file)
	if !managed || newDisk.MatchString(d.file) || name == "cloudinit" {
		return nil
	}
	st, err := c.w.store(storage)
	if err != nil {
		return err
	}
	parsed, err := st.parseName(name)
	if err != nil {
		return err
	}
	if parsed.content == "iso" && !d.cdrom() {
		return badParam(key, "explicit 'media=cdrom' is required for iso images")
	}
	return nil
}

// keepVersion fails when the version of a TPM's state would change
// (prohibit_tpm_version_change).
func keepVersion(before, after drive) error {
	version := func(d drive) string {
		if d.opts["version"] == "" {
			return "v1.2"
		}
		return d.opts["version"]
	}
	if before.file == after.file && version(before) != version(after) {
		return fail("cannot change TPM state version after creation")
	}
	return nil
}

// monitors are what the clipboard of VNC goes with (assert_clipboard_config).
var monitors = []string{"std", "cirrus", "vmware", "virtio", "qxl"}

func checkClipboard(value string) error {
	vga := parseProperty("vga", value)
	fits := func(prefix string) bool { return strings.HasPrefix(vga["type"], prefix) }
	if vga["clipboard"] == "vnc" && vga["type"] != "" && !slices.ContainsFunc(monitors, fits) {
		return fail("vga type %s is not compatible with VNC clipboard", vga["type"])
	}
	return nil
}

// checkMachine is assert_valid_machine_property.
func checkMachine(value string) error {
	machine := parseProperty("machine", value)
	if machine["viommu"] == "intel" && !strings.Contains(machine["type"], "q35") {
		return fail("to use Intel vIOMMU please set the machine type to q35")
	}
	return nil
}
