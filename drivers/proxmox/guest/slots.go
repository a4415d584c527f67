package guest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// device is a disk or nic with a slot: name is its name in the ownership tag, family the name of its slots
// without the number.
type device struct{ name, family string }

// slot is the slot that the device is named after, such as scsi1; "" for none.
func (d device) slot() string {
	_, label, _ := strings.Cut(d.name, ".")
	no, ok := strings.CutPrefix(label, d.family)
	n, err := strconv.Atoi(no)
	most := cmp.Or(BusSlots[d.family], map[string]int{"net": 32, "mp": 256}[d.family]) // MAX_NETS, MAX_MOUNT_POINTS
	if !ok || err != nil || n < 0 || n >= most || strconv.Itoa(n) != no {
		return ""
	}
	return label
}

// slots assigns a slot to each device. Those that have one in old keep it. One that is named after a
// slot has that, and the others get the lowest one that cfg, the present configuration, does not use.
func slots(devices []device, cfg api.GuestConfig, old map[string]string) map[string]string {
	out, used := map[string]string{}, map[string]bool{}
	for _, c := range []map[string]string{cfg.Next, cfg.Now} {
		for key := range c {
			used[key] = true
		}
	}
	for _, d := range devices { // an empty slot whose device was detached by hand is still taken
		used[old[d.name]] = true
	}
	named := map[string]string{}
	for _, d := range devices {
		if slot := d.slot(); slot != "" && !slices.Contains(slices.Collect(maps.Values(old)), slot) {
			named[d.name], used[slot] = slot, true
		}
	}
	maps.Copy(named, old)
	for _, d := range devices {
		slot, known := named[d.name]
		for i := 0; !known; i++ {
			slot = fmt.Sprintf("%s%d", d.family, i)
			known = !used[slot]
		}
		out[d.name], used[slot] = slot, true
	}
	return out
}

// RememberedSlots are the slots that the ownership tag records, and those of wanted disks whose
// detachment is still pending.
func (v *Volumes) RememberedSlots(want *Volumes) map[string]string {
	old := map[string]string{}
	maps.Copy(old, v.Tag.Slots)
	for _, d := range want.List {
		key, id := "disk."+d.Name, v.Tag.Detached[d.Name]
		if slot := api.AttachedAt(v.Config.Now, id); old[key] == "" && id != "" && slot != "" {
			old[key] = slot
		}
	}
	return old
}
