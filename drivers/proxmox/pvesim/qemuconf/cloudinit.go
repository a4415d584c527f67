package qemuconf

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// checkSSHKeys verifies public keys as ssh-keygen would: PVE runs that on each
// line. The value is percent-encoded.
func checkSSHKeys(value string) error {
	plain, err := url.PathUnescape(value)
	if err != nil {
		return perl.Fail("SSH public key validation error")
	}
	for line := range strings.SplitSeq(plain, "\n") {
		if strings.TrimSpace(line) != "" && !guests.IsPublicKey(line) {
			return perl.Fail("SSH public key validation error")
		}
	}
	return nil
}

// apiGetCloudinit is GET …/cloudinit: the keys of cloud-init, each with what the
// drive still says where that differs.
func apiGetCloudinit(_ *core.World, c *core.Call, g *core.Guest) (any, error) {
	list := []map[string]any{}
	added := map[string]bool{}
	for _, key := range perl.SplitList(g.Cloud["added"]) {
		added[key] = true
		list = append(list, map[string]any{"key": key, "pending": core.Masked(key, property.Typed("qemu", key, g.Conf[key]))})
	}
	for _, key := range slices.Sorted(maps.Keys(cloudKeys)) {
		value := g.Conf[key]
		if value == "" || value == "0" || added[key] {
			continue
		}
		item := map[string]any{"key": key, "value": core.Masked(key, property.Typed("qemu", key, value))}
		if old := g.Cloud[key]; old != "" && old != "0" {
			item["value"], item["pending"] = core.Masked(key, property.Typed("qemu", key, old)), item["value"]
		}
		list = append(list, item)
	}
	for _, key := range slices.Sorted(maps.Keys(g.Cloud)) {
		if key != "added" && g.Conf[key] == "" {
			list = append(list, map[string]any{"key": key, "delete": 1})
		}
	}
	return list, nil
}

// apiRegenerate is PUT …/cloudinit: the drive is written anew.
func apiRegenerate(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if err := c.LockFile(g); err != nil {
		return nil, err
	}
	if err := g.CheckLock(); err != nil {
		return nil, err
	}
	return nil, updateCloudDrive(w, g, func(string, ...any) {})
}

// updateCloudDrive writes the drive of cloud-init, if there is one
// (vmconfig_update_cloudinit_drive in PVE/QemuServer.pm).
func updateCloudDrive(w *core.World, g *core.Guest, log func(string, ...any)) error {
	if !slices.ContainsFunc(property.DriveNames(g.Conf), func(key string) bool { return property.ParseDrive(key, g.Conf[key]).Cloudinit() }) {
		return nil
	}
	return WriteCloudDrive(w, g, g.Conf, log)
}

// WriteCloudDrive writes the drives of cloud-init from a configuration, after which they
// differ from it in nothing (apply_cloudinit_config in PVE/QemuServer/Cloudinit.pm).
func WriteCloudDrive(w *core.World, g *core.Guest, conf property.Config, log func(string, ...any)) error {
	own := fmt.Sprintf("vm-%d-cloudinit", g.Vmid)
	for _, key := range property.DriveNames(conf) {
		_, name, managed := core.VolumeID(property.ParseDrive(key, conf[key]).File)
		if !managed || !strings.Contains(name, own) {
			continue
		}
		for _, document := range []string{"network", "user", "meta", "vendor"} {
			volid := property.ParseProperty("cicustom", conf["cicustom"])[document]
			if err := snippet(w, g.Node, volid); volid != "" && err != nil {
				return err
			}
		}
		log("generating cloud-init ISO")
	}
	if len(g.Cloud) > 0 {
		clear(g.Cloud)
		w.Write(g)
	}
	return nil
}

// snippet fails unless a volume is a document for cloud-init that is there
// (read_cloudinit_snippets_file).
func snippet(w *core.World, node, volid string) error {
	storage, name, managed := core.VolumeID(volid)
	if !managed {
		return perl.Fail("unable to parse volume ID '%s'", volid)
	}
	st, err := w.Store(storage)
	if err != nil {
		return err
	}
	parsed, err := st.ParseName(name)
	switch {
	case err != nil:
		return err
	case parsed.Content != "snippets":
		return perl.Fail("%s is not in the snippets directory", volid)
	case st.Find(node, name) == nil:
		return perl.Fail("volume '%s' does not exist", volid)
	}
	return nil
}
