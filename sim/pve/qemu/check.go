package qemu

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
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
func consistent(d perl.Drive, key string) bool {
	has := func(name string) bool { return d.Opts[name] != "" && d.Opts[name] != "0" }
	for _, rate := range []string{"bps", "bps_rd", "bps_wr"} {
		if _, both := d.Opts[rate]; both { // One alone was converted.
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
	if d.Cdrom() && (has("snapshot") || has("format") || perl.FamilyOf(key) == "virtio") {
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
func volumeAt(w *core.World, file string) (content, volid string) {
	folder, name := path.Dir(file), path.Base(file)
	for _, storage := range w.StoreNames() {
		st := w.Stores[storage]
		if !st.Files() {
			continue
		}
		for _, content := range core.ContentTypes {
			under, known := folderOf[content]
			if known && folder == st.Path+under && core.ExtensionFits(content, name) {
				return content, storage + ":" + content + "/" + name
			}
		}
		if owner := path.Base(folder); path.Dir(folder) == st.Path+"/images" {
			for _, v := range st.List(w.Cfg.Node) {
				if v.Name == owner+"/"+name || strings.HasSuffix(v.Name, "/"+owner+"/"+name) {
					return "images", storage + ":" + v.Name
				}
			}
		}
	}
	return "", ""
}

// tidyDrive makes the checks of $check_drive_param in PVE/API2/Qemu.pm, and those of
// cleanup_drive_path in PVE/QemuServer.pm.
func tidyDrive(c *core.Call, key string, d *perl.Drive) error {
	if !consistent(*d, key) {
		return perl.BadParam(key, "unable to parse drive options")
	}
	if d.Opts["import-from"] != "" {
		if order := perl.NewDisk.FindStringSubmatch(d.File); order == nil || strings.Trim(order[2], "0.") != "" {
			return perl.BadParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
		}
		for _, required := range map[string][]string{"efidisk0": {"efitype", "pre-enrolled-keys"}, "tpmstate0": {"version"}}[key] {
			if _, set := d.Opts[required]; !set {
				return perl.BadParam(key, "need to specify '"+required+"' when using 'import-from'")
			}
		}
	}
	if !plainFile.MatchString(d.File) {
		content, volid := volumeAt(c.W, d.File)
		if content == "" {
			return perl.BadParam(key, "unable to associate path '"+d.File+"' to any storage")
		}
		if d.Opts["media"] == "" && content == "iso" {
			d.Opts["media"] = "cdrom"
		}
		wanted := map[string]string{"disk": "images", "cdrom": "iso"}[d.Opts["media"]]
		if wanted != "" && wanted != content {
			return perl.BadParam(key, "unexpected media type ("+content+" != "+wanted+")")
		}
		d.File = volid
	}
	if d.Opts["media"] == "" && (d.File == "none" || d.File == "cdrom") {
		d.Opts["media"] = "cdrom"
	}
	if _, name, managed := core.VolumeID(d.File); !managed || perl.NewDisk.MatchString(d.File) || name == "cloudinit" {
		return nil
	}
	n, err := core.Locate(c.W, d.File)
	if err == nil && n.Parsed.Content == "iso" && !d.Cdrom() {
		return perl.BadParam(key, "explicit 'media=cdrom' is required for iso images")
	}
	return err
}

// keepVersion fails when the version of a TPM's state would change
// (prohibit_tpm_version_change).
func keepVersion(before, after perl.Drive) error {
	version := func(d perl.Drive) string {
		if d.Opts["version"] == "" {
			return "v1.2"
		}
		return d.Opts["version"]
	}
	if before.File == after.File && version(before) != version(after) {
		return perl.Fail("cannot change TPM state version after creation")
	}
	return nil
}

// monitors are the displays that support the clipboard of VNC (assert_clipboard_config).
var monitors = []string{"std", "cirrus", "vmware", "virtio", "qxl"}

// checkClipboard refuses a clipboard that the display of a VM does not have.
func checkClipboard(value string) error {
	vga := perl.ParseProperty("vga", value)
	fits := func(prefix string) bool { return strings.HasPrefix(vga["type"], prefix) }
	if vga["clipboard"] == "vnc" && vga["type"] != "" && !slices.ContainsFunc(monitors, fits) {
		return perl.Fail("vga type %s is not compatible with VNC clipboard", vga["type"])
	}
	return nil
}

// checkMachine is assert_valid_machine_property.
func checkMachine(value string) error {
	machine := perl.ParseProperty("machine", value)
	if machine["viommu"] == "intel" && !strings.Contains(machine["type"], "q35") {
		return perl.Fail("to use Intel vIOMMU please set the machine type to q35")
	}
	return nil
}

// The size of packets of network devices, as print_netdevice_full in PVE/QemuServer.pm
// checks it when QEMU's command line is written.

// hasHostMTU reports whether QEMU gets the size of packets: of VirtIO devices with a
// bridge, before 9.0 only where the device says one.
func hasHostMTU(w *core.World, n map[string]string) bool {
	return n["model"] == "virtio" && n["bridge"] != "" && (w.V9() || n["mtu"] != "")
}

// checkMTUs fails where the size of packets does not fit the bridge, or there is none.
func checkMTUs(w *core.World, g *core.Guest) error {
	for _, key := range g.Conf.IndexedKeys("net") {
		n := perl.ParseProperty(key, g.Conf[key])
		switch {
		case !hasHostMTU(w, n):
		case !guests.HasBridge(w, n["bridge"]):
			return perl.Fail("bridge '%s' does not exist", n["bridge"])
		default:
			if err := mtuTrouble(w, g.Node, key, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// ignoredMTUs are the warnings of a start that ignores what devices say.
func ignoredMTUs(w *core.World, g *core.Guest) []string {
	var texts []string
	for _, key := range g.Conf.IndexedKeys("net") {
		n := perl.ParseProperty(key, g.Conf[key])
		if n["mtu"] == "" || hasHostMTU(w, n) {
			continue
		}
		why := "not using VirtIO"
		if n["bridge"] == "" {
			why = "no bridge configured"
		}
		texts = append(texts, fmt.Sprintf("netdev %s: ignoring MTU '%s', %s", key, n["mtu"], why))
	}
	return texts
}

// laterWords are words that a parameter takes in the API table, but not in PVE 8.4,
// and earlierWords those that 8.4 took and the table does not list any more. The
// table has such differences of whole parameters only. Enumerations are listed in the
// order of the alphabet, but for time frames, which grow.
var (
	laterWords   = map[string]string{"GET /nodes/{node}/rrddata timeframe": "decade", "POST /cluster/metrics/server/{id} type": "opentelemetry"}
	earlierWords = map[string]string{"POST /storage type": "glusterfs", "GET /storage type": "glusterfs"}
)

const notInEnumeration = "does not have a value in the enumeration '"

// WrongOf84 makes what is wrong with parameters what PVE 8.4 says of them.
func WrongOf84(c *core.Call, wrong map[string]string) map[string]string {
	found := maps.Clone(wrong)
	if found == nil {
		found = map[string]string{}
	}
	for name, value := range c.Values {
		key := c.M.Verb + " " + c.M.Path + " " + name
		if later := laterWords[key]; later != "" {
			if perl.Text(value) == later {
				v, _ := c.M.Param(name)
				found[name] = "value '" + later + "' " + notInEnumeration + strings.Join(v.Enum, ", ") + "'"
			}
			found[name] = strings.Replace(found[name], ", "+later+"'", "'", 1)
		}
		if earlier := earlierWords[key]; earlier != "" {
			if perl.Text(value) == earlier {
				delete(found, name)
			} else if said, list, ok := strings.Cut(found[name], notInEnumeration); ok {
				words := append(strings.Split(strings.TrimSuffix(list, "'"), ", "), earlier)
				found[name] = said + notInEnumeration + strings.Join(slices.Sorted(slices.Values(words)), ", ") + "'"
			}
		}
		if found[name] == "" {
			delete(found, name)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// mtuTrouble is why QEMU cannot get a network device with its MTU
// (print_netdevice_full in PVE/QemuServer.pm). Of other models than virtio PVE
// ignores it.
func mtuTrouble(w *core.World, node, key string, device map[string]string) error {
	mtu, bridge := perl.Atoi(device["mtu"]), device["bridge"]
	switch most := guests.BridgeMTU(w, node, bridge); {
	case mtu <= 1 || device["model"] != "virtio" || bridge == "":
		return nil
	case mtu < 576:
		return perl.Fail("netdev %s: MTU '%d' is smaller than the IP minimum MTU '576'", key, mtu)
	case mtu > most:
		return perl.Fail("netdev %s: MTU '%d' is bigger than the bridge MTU '%d' - adjust the MTU for the network device in the VM configuration, while ensuring that the bridge is configured as desired.", key, mtu, most)
	default:
		return nil
	}
}
