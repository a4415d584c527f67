package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Values of PVE's keys are compared by what they mean. PVE keeps most of them as
// they were sent, fills in nothing, and takes many spellings for one thing: "on"
// for 1, "virtio" for "type=virtio", "1" for "network,disk,usb". Text that differs
// is no change as long as the guest would be the same.

// unsaid are defaults that PVE's code has and the API table has not, of whole keys
// and of members of property strings (qemu-server: PVE/QemuServer.pm, CPUConfig.pm,
// PCI.pm, RNG.pm). For cpuunits it is that of cgroup v2, which PVE 8 and 9 run on.
var unsaid = map[string]string{
	"cpu": "kvm64", "cpu.hidden": "0", "cpuunits": "100", "freeze": "0", "vga": "std", "memory": "512", "agent": "0",
	"watchdog.model": "i6300esb", "rng0.max_bytes": "1024", "rng0.period": "1000",
	"hostpci.rombar": "1", "hostpci.pcie": "0", "hostpci.x-vga": "0", "hostpci.legacy-igd": "0",
}

// sets are members whose parts have no order, separated by semicolons.
var sets = map[string]bool{"cpu.flags": true, "numa.cpus": true, "numa.hostnodes": true}

// configMethod describes the keys of a VM's configuration.
var configMethod = sync.OnceValue(func() *pveapi.Method {
	m, _, _ := pveapi.Lookup("PUT", "/nodes/n/qemu/100/config")
	return m
})

// sameOption reports whether two values of a PVE key mean the same; "" is the key's absence.
func sameOption(key, a, b string) bool {
	return a == b || meaning(key, a) == meaning(key, b)
}

// meaning brings the value of a key into the one form that all its spellings share.
// What cannot be read stays as it is.
func meaning(key, value string) string {
	value = strings.TrimSpace(value)
	family := strings.TrimRight(key, "0123456789")
	v, known := configMethod().Param(key)
	if !known {
		return value
	}
	if value == "" {
		value = or(unsaid[key], defaultText(v))
	}
	if value == "" {
		return ""
	}
	switch {
	case key == "hotplug":
		return features(value)
	case key == "cpuunits":
		if n, err := strconv.Atoi(value); err == nil {
			return strconv.Itoa(min(max(n, 1), 10000)) // clamp_cpu_shares in PVE/CGroup.pm
		}
	case v.Members() != nil:
		return members(family, v, value)
	}
	return scalar(v, value)
}

// features reads the list of what may be plugged while the guest runs.
func features(value string) string {
	if value == "1" {
		value = "network,disk,usb"
	}
	list := splitTags(value)
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// members reads a property string, with the defaults of its members filled in.
func members(family string, v *pveapi.Value, value string) string {
	parsed, err := v.ParseProperty(value)
	if err != nil {
		return value
	}
	all := v.Members()
	for name, m := range all {
		if _, there := parsed[name]; !there && m.Alias == "" {
			if text := or(unsaid[family+"."+name], or(unsaid[family+"0."+name], defaultText(m))); text != "" {
				parsed[name] = text
			}
		}
	}
	parts := make([]string, 0, len(parsed))
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		text := parsed[name]
		if m := all[name]; m != nil {
			text = scalar(m, text)
		}
		if sets[family+"."+name] {
			list := strings.Split(text, ";")
			slices.Sort(list)
			text = strings.Join(slices.Compact(list), ";")
		}
		parts = append(parts, name+"="+text)
	}
	return strings.Join(parts, ",")
}

// scalar reads one value by its type: numbers by their size, words for yes and no.
func scalar(v *pveapi.Value, value string) string {
	switch {
	case v.Type == "boolean":
		return yesNo(value)
	case v.Type == "integer", v.Type == "number":
		if f, err := strconv.ParseFloat(value, 64); err == nil {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
	case v.Format == "mac-addr":
		return strings.ToUpper(value)
	case v.Format == "disk-size":
		if n, ok := byteSize(value); ok {
			return strconv.FormatInt(n, 10)
		}
	}
	return value
}

// yesNo reads the words that PVE takes for a boolean (PVE/JSONSchema.pm, parse_boolean).
func yesNo(value string) string {
	switch strings.ToLower(value) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	default:
		return value
	}
}

// defaultText is a documented default as a value; "" for none.
func defaultText(v *pveapi.Value) string {
	if v.Default == nil {
		return ""
	}
	return fmt.Sprint(v.Default)
}

// A drive that holds the firmware's or the TPM's state is declared by an order to
// allocate it, "local-lvm:1,efitype=4m", and PVE shows the volume that came of it.

// sameState reports whether a state drive is what an order asks for.
func sameState(key, order, drive string) bool {
	return drive != "" && storageOf(order) == storageOf(drive) && sameMake(key, order, drive)
}

// sameMake is the same but for the storage. Of what only PVE decides (size, the
// certificates it enrolled) there is an opinion only where the order has one.
func sameMake(key, order, drive string) bool {
	v, ok := configMethod().Param(key)
	if !ok {
		return order == drive
	}
	want, errWant := v.ParseProperty(order)
	have, errHave := v.ParseProperty(drive)
	if errWant != nil || errHave != nil {
		return false
	}
	for _, name := range []string{"efitype", "pre-enrolled-keys", "version", "ms-cert"} {
		m := v.Members()[name]
		if m == nil || (name == "ms-cert" && want[name] == "") {
			continue
		}
		if scalar(m, or(want[name], defaultText(m))) != scalar(m, or(have[name], defaultText(m))) {
			return false
		}
	}
	return true
}

// storageOf is the storage of a drive's volume, or of the order for one.
func storageOf(drive string) string {
	storage, _, _ := strings.Cut(volumeOf(drive), ":")
	return storage
}

// volumeOf is the volume of a drive.
func volumeOf(drive string) string { return parseProperty(drive).first("file") }
