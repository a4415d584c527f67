package pvesim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// checkSSHKeys verifies public keys as ssh-keygen would: PVE runs that on each
// line. The value is percent-encoded.
func checkSSHKeys(value string) error {
	plain, err := url.PathUnescape(value)
	if err != nil {
		return fail("SSH public key validation error")
	}
	for line := range strings.SplitSeq(plain, "\n") {
		if strings.TrimSpace(line) != "" && !isPublicKey(line) {
			return fail("SSH public key validation error")
		}
	}
	return nil
}

// apiGetCloudinit is GET …/cloudinit: the keys of cloud-init, each with what the
// drive still says where that differs.
func apiGetCloudinit(_ *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	added := map[string]bool{}
	for _, key := range splitList(g.cloud["added"]) {
		added[key] = true
		list = append(list, map[string]any{"key": key, "pending": masked(key, typed("qemu", key, g.conf[key]))})
	}
	for _, key := range slices.Sorted(maps.Keys(cloudKeys)) {
		value := g.conf[key]
		if value == "" || value == "0" || added[key] {
			continue
		}
		item := map[string]any{"key": key, "value": masked(key, typed("qemu", key, value))}
		if old := g.cloud[key]; old != "" && old != "0" {
			item["value"], item["pending"] = masked(key, typed("qemu", key, old)), item["value"]
		}
		list = append(list, item)
	}
	for _, key := range slices.Sorted(maps.Keys(g.cloud)) {
		if key != "added" && g.conf[key] == "" {
			list = append(list, map[string]any{"key": key, "delete": 1})
		}
	}
	return list, nil
}

// apiRegenerate is PUT …/cloudinit: the drive is written anew.
func apiRegenerate(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	return nil, w.updateCloudDrive(g, func(string, ...any) {})
}

// updateCloudDrive writes the drive of cloud-init, if there is one
// (vmconfig_update_cloudinit_drive in PVE/QemuServer.pm).
func (w *world) updateCloudDrive(g *guest, log func(string, ...any)) error {
	if !slices.ContainsFunc(driveNames(g.conf), func(key string) bool { return parseDrive(key, g.conf[key]).cloudinit() }) {
		return nil
	}
	return w.writeCloudDrive(g, g.conf, log)
}

// writeCloudDrive writes the drives of cloud-init from a configuration, after which they
// differ from it in nothing (apply_cloudinit_config in PVE/QemuServer/Cloudinit.pm).
func (w *world) writeCloudDrive(g *guest, conf config, log func(string, ...any)) error {
	own := fmt.Sprintf("vm-%d-cloudinit", g.vmid)
	for _, key := range driveNames(conf) {
		_, name, managed := volumeID(parseDrive(key, conf[key]).file)
		if !managed || !strings.Contains(name, own) {
			continue
		}
		for _, document := range []string{"network", "user", "meta", "vendor"} {
			volid := parseProperty("cicustom", conf["cicustom"])[document]
			if err := w.snippet(g.node, volid); volid != "" && err != nil {
				return err
			}
		}
		log("generating cloud-init ISO")
	}
	if len(g.cloud) > 0 {
		clear(g.cloud)
		w.write(g)
	}
	return nil
}

// snippet fails unless a volume is a document for cloud-init that is there
// (read_cloudinit_snippets_file).
func (w *world) snippet(node, volid string) error {
	storage, name, managed := volumeID(volid)
	if !managed {
		return fail("unable to parse volume ID '%s'", volid)
	}
	st, err := w.store(storage)
	if err != nil {
		return err
	}
	parsed, err := st.parseName(name)
	switch {
	case err != nil:
		return err
	case parsed.content != "snippets":
		return fail("%s is not in the snippets directory", volid)
	case st.find(node, name) == nil:
		return fail("volume '%s' does not exist", volid)
	}
	return nil
}
