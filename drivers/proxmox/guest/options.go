package guest

// The options of a guest in Proxmox VE: when two values are equal, which are rejected, and which privilege setting
// one needs.
//
// Proxmox VE stores most values as sent, without defaults, and accepts many spellings of the same value: "on" for
// 1, "virtio" for "type=virtio", "1" for "network,disk,usb". A different text is not a change if the guest would be
// the same.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// OptionKeys describes the configuration keys of VMs, or of containers.
type OptionKeys struct {
	Create, Change *pveapi.Method // the requests that they are parameters of
	// unsaid are defaults that PVE's code has and the API table has not, of whole keys
	// and of members of property strings by the family of the key.
	unsaid map[string]string
	// sets are members whose parts have no order, separated by semicolons.
	sets map[string]bool
	// Invented are keys that PVE generates.
	Invented map[string]bool
}

// VMKeys returns those of VMs (qemu-server: PVE/QemuServer.pm, CPUConfig.pm, PCI.pm, RNG.pm;
// API2/Qemu.pm, create_vm). For cpuunits the default is that of cgroup v2, which PVE 8 and 9 run
// on.
var VMKeys = sync.OnceValue(func() *OptionKeys {
	return &OptionKeys{
		Create: method("POST", "/nodes/n/qemu"), Change: method("PUT", "/nodes/n/qemu/100/config"),
		unsaid: map[string]string{
			"cpu": "kvm64", "cpu.hidden": "0", "cpuunits": "100", "freeze": "0", "vga": "std", "memory": "512", "agent": "0",
			"watchdog.model": "i6300esb", "rng.max_bytes": "1024", "rng.period": "1000",
			"hostpci.rombar": "1", "hostpci.pcie": "0", "hostpci.x-vga": "0", "hostpci.legacy-igd": "0",
		},
		sets:     map[string]bool{"cpu.flags": true, "numa.cpus": true, "numa.hostnodes": true},
		Invented: map[string]bool{"meta": true, "parent": true, "vmstate": true, "snaptime": true, "runningmachine": true, "runningcpu": true},
	}
})

// CTKeys returns those of containers (pve-container, PVE/LXC/Config.pm).
var CTKeys = sync.OnceValue(func() *OptionKeys {
	return &OptionKeys{
		Create: method("POST", "/nodes/n/lxc"), Change: method("PUT", "/nodes/n/lxc/100/config"),
		unsaid: map[string]string{
			"rootfs.acl": "0", "rootfs.quota": "0", "rootfs.ro": "0", "mp.acl": "0", "mp.backup": "0", "mp.quota": "0", "mp.ro": "0",
			"net.firewall": "0", "net.host-managed": "0", "net.link_down": "0",
		},
		Invented: map[string]bool{"arch": true, "ostype": true, "parent": true, "snaptime": true, "lxc": true},
	}
})

func method(verb, path string) *pveapi.Method {
	m, _, _ := pveapi.Lookup(verb, path)
	return m
}

// Refusal explains why Proxmox VE would reject a value; "" if it would not.
func (k *OptionKeys) Refusal(key, value string) string {
	return k.Create.CheckParam(key, value)
}

// Family returns the name of a key in the API table: an indexed one by "[n]".
func (k *OptionKeys) Family(key string) string {
	if _, named := k.Change.Params[key]; named && !strings.HasSuffix(key, "[n]") {
		return key
	}
	if plain := strings.TrimRight(key, "0123456789"); plain != key {
		return plain + "[n]"
	}
	return key
}

// Same reports whether two values of a key mean the same; "" is the key's absence.
func (k *OptionKeys) Same(key, a, b string) bool {
	return a == b || k.meaning(key, a) == k.meaning(key, b)
}

// meaning normalises the value of a key. A value that cannot be parsed is unchanged.
func (k *OptionKeys) meaning(key, value string) string {
	value = strings.TrimSpace(value)
	v, known := k.Change.Param(key)
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

// SameMember reports whether two values of a member of a key mean the same; "" is its
// absence. The key must be in the API table, and have that member.
func (k *OptionKeys) SameMember(key, name, a, b string) bool {
	return k.member(key, name, a) == k.member(key, name, b)
}

// member is meaning for a member of a property string.
func (k *OptionKeys) member(key, name, text string) string {
	v, _ := k.Change.Param(key)
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

// AlignMembers writes the wanted text of members over an observed one that means
// the same, and takes out those which only spell out a default.
func (k *OptionKeys) AlignMembers(key string, want, have map[string]string) {
	v, _ := k.Change.Param(key)
	for name := range v.Members() {
		w, wanted := want[name]
		switch {
		case !k.SameMember(key, name, w, have[name]):
		case wanted:
			have[name] = w
		default:
			delete(have, name)
		}
	}
}

// Align leaves in have, the observed options, what differs in meaning from the wanted ones.
// It removes an option that the files never set, going by the known ones of the ownership tag,
// and one that they no longer set and that means the default already. also reports further
// values as the same; it may be nil.
func (k *OptionKeys) Align(want, have map[string]string, known []string, also func(key, want, have string) bool) {
	for key, val := range have {
		if _, wanted := want[key]; !wanted && (!slices.Contains(known, key) || k.Invented[key] || k.Same(key, val, "")) {
			delete(have, key)
		}
	}
	for key, w := range want {
		h, there := have[key]
		if k.Same(key, w, h) || there && also != nil && also(key, w, h) {
			have[key] = w
		}
	}
}

// features reads the list of what may be plugged while the guest runs.
func features(value string) string {
	if value == "1" {
		value = "network,disk,usb"
	}
	list := api.SplitTags(value)
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
		if n, ok := api.ParseBytes(value); ok {
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
