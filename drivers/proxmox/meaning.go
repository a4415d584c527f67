package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Values of PVE's keys are compared by what they mean. PVE keeps most of them as
// they were sent, fills in nothing, and takes many spellings for one thing: "on"
// for 1, "virtio" for "type=virtio", "1" for "network,disk,usb". Text that differs
// is no change as long as the guest would be the same.

// keys are what is known of the configuration of VMs, or of containers.
type keys struct {
	create, change *pveapi.Method // the requests that they are parameters of
	// unsaid are defaults that PVE's code has and the API table has not, of whole keys
	// and of members of property strings by the family of the key.
	unsaid map[string]string
	// sets are members whose parts have no order, separated by semicolons.
	sets map[string]bool
	// invented are keys that PVE makes up by itself.
	invented map[string]bool
}

// vmKeys are those of VMs (qemu-server: PVE/QemuServer.pm, CPUConfig.pm, PCI.pm, RNG.pm;
// API2/Qemu.pm, create_vm). For cpuunits the default is that of cgroup v2, which PVE 8
// and 9 run on.
var vmKeys = sync.OnceValue(func() *keys {
	return &keys{
		create: method("POST", "/nodes/n/qemu"), change: method("PUT", "/nodes/n/qemu/100/config"),
		unsaid: map[string]string{
			"cpu": "kvm64", "cpu.hidden": "0", "cpuunits": "100", "freeze": "0", "vga": "std", "memory": "512", "agent": "0",
			"watchdog.model": "i6300esb", "rng.max_bytes": "1024", "rng.period": "1000",
			"hostpci.rombar": "1", "hostpci.pcie": "0", "hostpci.x-vga": "0", "hostpci.legacy-igd": "0",
		},
		sets:     map[string]bool{"cpu.flags": true, "numa.cpus": true, "numa.hostnodes": true},
		invented: map[string]bool{"meta": true, "parent": true, "vmstate": true, "snaptime": true, "runningmachine": true, "runningcpu": true},
	}
})

// ctKeys are those of containers (pve-container, PVE/LXC/Config.pm).
var ctKeys = sync.OnceValue(func() *keys {
	return &keys{
		create: method("POST", "/nodes/n/lxc"), change: method("PUT", "/nodes/n/lxc/100/config"),
		unsaid: map[string]string{
			"rootfs.acl": "0", "rootfs.quota": "0", "rootfs.ro": "0", "mp.acl": "0", "mp.backup": "0", "mp.quota": "0", "mp.ro": "0",
			"net.firewall": "0", "net.host-managed": "0", "net.link_down": "0",
		},
		invented: map[string]bool{"arch": true, "ostype": true, "parent": true, "snaptime": true, "lxc": true},
	}
})

func method(verb, path string) *pveapi.Method {
	m, _, _ := pveapi.Lookup(verb, path)
	return m
}

// refusal is why PVE would not create a guest with a value; "" if it would.
func (k *keys) refusal(key, value string) string {
	return k.create.Check(map[string]any{"node": "n", "vmid": "100", key: value})[key]
}

// same reports whether two values of a key mean the same; "" is the key's absence.
func (k *keys) same(key, a, b string) bool {
	return a == b || k.meaning(key, a) == k.meaning(key, b)
}

// meaning brings the value of a key into the one form that all its spellings share.
// What cannot be read stays as it is.
func (k *keys) meaning(key, value string) string {
	value = strings.TrimSpace(value)
	v, known := k.change.Param(key)
	if !known {
		return value
	}
	if value == "" {
		value = cmp.Or(k.unsaid[key], defaultText(v))
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
		parsed, err := v.ParseProperty(value)
		if err != nil {
			return value
		}
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v.Members())) {
			if text := k.member(key, name, parsed[name]); text != "" {
				parts = append(parts, name+"="+text)
			}
		}
		return strings.Join(parts, ",")
	}
	return scalar(v, value)
}

// member does the same for a member of a property string.
func (k *keys) member(key, name, text string) string {
	v, _ := k.change.Param(key)
	m := v.Members()[name]
	said := strings.TrimRight(key, "0123456789") + "." + name
	if text == "" && m.Alias == "" {
		text = cmp.Or(k.unsaid[said], defaultText(m))
	}
	if k.sets[said] {
		list := strings.Split(text, ";")
		slices.Sort(list)
		return strings.Join(slices.Compact(list), ";")
	}
	return scalar(m, text)
}

// alignMembers writes the wanted text of members over an observed one that means
// the same, and takes out those which only spell out a default.
func (k *keys) alignMembers(key string, want, have map[string]string) {
	v, _ := k.change.Param(key)
	for name := range v.Members() {
		w, wanted := want[name]
		switch {
		case k.member(key, name, w) != k.member(key, name, have[name]):
		case wanted:
			have[name] = w
		default:
			delete(have, name)
		}
	}
}

// align leaves of the observed options what differs in meaning. One that the files
// never spoke of, by those that the mark knows, is none of ours; one that they take
// away, and that means the default already, is gone. also tells of further values that
// are the same; it may be nil.
func (k *keys) align(want, have map[string]string, known []string, also func(key, want, have string) bool) {
	for key, val := range have {
		if _, wanted := want[key]; !wanted && (!slices.Contains(known, key) || k.invented[key] || k.same(key, val, "")) {
			delete(have, key)
		}
	}
	for key, w := range want {
		h, there := have[key]
		if k.same(key, w, h) || there && also != nil && also(key, w, h) {
			have[key] = w
		}
	}
}

// features reads the list of what may be plugged while the guest runs.
func features(value string) string {
	if value == "1" {
		value = "network,disk,usb"
	}
	list := property.SplitTags(value)
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// scalar reads one value by its type: numbers by their size, words for yes and no.
func scalar(v *pveapi.Value, value string) string {
	switch {
	case v.Type == "boolean":
		return pveapi.BooleanWord(value)
	case v.Type == "integer", v.Type == "number":
		if f, err := strconv.ParseFloat(value, 64); err == nil {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
	case v.Format == "mac-addr":
		return strings.ToUpper(value)
	case v.Format == "disk-size":
		if n, ok := property.Bytes(value); ok {
			return strconv.FormatInt(n, 10)
		}
	}
	return value
}

// defaultText is a documented default as a value; "" for none.
func defaultText(v *pveapi.Value) string {
	if v.Default == nil {
		return ""
	}
	return fmt.Sprint(v.Default)
}

// unnamed are the options of a guest that no file names and that this program never set. A
// boot order that begins with the root disk is the one that it was made with.
func (k *keys) unnamed(addr model.Address, want, have map[string]string, h *observation) []model.Setting {
	var out []model.Setting
	for key, val := range have {
		_, named := want[key]
		devices := bootDevices(val)
		made := key == "boot" && len(devices) > 0 && devices[0] == h.mark.Slots["disk.root"]
		if !named && !made && !slices.Contains(h.mark.Options, key) && !k.invented[key] && !k.same(key, val, "") && h.observe.Now[key] == val {
			out = append(out, model.Setting{Address: addr, Path: "options." + key, Value: val})
		}
	}
	slices.SortFunc(out, func(a, b model.Setting) int { return strings.Compare(a.Path, b.Path) })
	return out
}
