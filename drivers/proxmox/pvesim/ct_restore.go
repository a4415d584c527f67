package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// recoverCT reads the backup of a container: which mount points to make, unless
// the call named its own.
func (w *world) recoverCT(g *guest, order ctOrder, conf config, mounts map[string]string, log func(string, ...any)) (*backup, error) {
	v := w.volume(g.node, order.template)
	if v == nil || v.backup == nil || v.backup.kind != "lxc" {
		return nil, fail("volume '%s' does not exist", order.template)
	}
	log("recovering backed-up configuration from '%s'", order.template)
	if conf["unprivileged"] == "" && v.backup.conf["unprivileged"] != "" {
		conf["unprivileged"] = v.backup.conf["unprivileged"]
	}
	if len(mounts) > 0 {
		return v.backup, nil
	}
	for _, key := range mountNames(v.backup.conf) {
		m := parseMount(key, v.backup.conf[key])
		if m.kind() != "volume" {
			continue // A bind mount is for root to restore.
		}
		gib := float64(v.backup.disks[key].size) / (1 << 30)
		m.volume = fmt.Sprintf("%s:%v", order.storage, gib)
		delete(m.opts, "size")
		mounts[key] = m.String()
	}
	return v.backup, nil
}

// mergeCT fills a configuration with what a backup has beside it
// (restore_configuration in PVE/LXC/Create.pm).
func (w *world) mergeCT(b *backup, conf config, order ctOrder, log func(string, ...any)) {
	log("restoring '%s' now..", order.template)
	log("merging backed-up and given configuration..")
	for _, key := range slices.Sorted(maps.Keys(b.conf)) {
		family := familyOf(key)
		switch {
		case isMount(key), family == "unused", key == "template", key == "parent", key == "unprivileged", key == "lock",
			strings.HasPrefix(key, "snap"):
			continue
		case family == "net" && key != family && order.unique:
			n := ctProperty(key, b.conf[key])
			n["hwaddr"] = w.mac()
			conf[key] = printCTNet(n)
		default:
			if _, given := conf[key]; !given {
				conf[key] = b.conf[key]
			}
		}
	}
}
