package lxc

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// recoverCT reads the backup of a container: which mount points to make, unless
// the call named its own.
func recoverCT(w *core.World, g *core.Guest, order ctOrder, conf perl.Config, mounts map[string]string, log func(string, ...any)) (*core.Backup, error) {
	v := w.Volume(g.Node, order.template)
	if v == nil || v.Backup == nil || v.Backup.Kind != "lxc" {
		return nil, perl.Fail("volume '%s' does not exist", order.template)
	}
	log("recovering backed-up configuration from '%s'", order.template)
	if conf["unprivileged"] == "" && v.Backup.Conf["unprivileged"] != "" {
		conf["unprivileged"] = v.Backup.Conf["unprivileged"]
	}
	if len(mounts) > 0 {
		return v.Backup, nil
	}
	for _, key := range v.Backup.Conf.MountNames() {
		m := perl.ParseMount(key, v.Backup.Conf[key])
		if m.Kind() != "volume" {
			continue // A bind mount is for root to restore.
		}
		gib := float64(v.Backup.Disks[key].Size) / (1 << 30)
		m.Volume = fmt.Sprintf("%s:%v", order.storage, gib)
		delete(m.Opts, "size")
		mounts[key] = m.String()
	}
	return v.Backup, nil
}

// mergeCT fills a configuration with what a backup has beside it
// (restore_configuration in PVE/LXC/Create.pm).
func mergeCT(w *core.World, b *core.Backup, conf perl.Config, order ctOrder, log func(string, ...any)) {
	log("restoring '%s' now..", order.template)
	log("merging backed-up and given configuration..")
	for _, key := range slices.Sorted(maps.Keys(b.Conf)) {
		family := perl.FamilyOf(key)
		switch {
		case perl.IsMount(key), family == "unused", key == "template", key == "parent", key == "unprivileged", key == "lock",
			strings.HasPrefix(key, "snap"):
			continue
		case family == "net" && key != family && order.unique:
			n := perl.CTProperty(key, b.Conf[key])
			n["hwaddr"] = w.MAC()
			conf[key] = printCTNet(n)
		default:
			if _, given := conf[key]; !given {
				conf[key] = b.Conf[key]
			}
		}
	}
}

// setUp fills in type and architecture of the system, as it was found, and not as it was
// ordered: only the type "unmanaged" and an ordered architecture are left alone (new in
// PVE/LXC/Setup.pm).
func setUp(r *content.RootSystem, conf perl.Config, t *core.Task) error {
	found := r.Ostype
	switch ordered := conf["ostype"]; {
	case ordered == "unmanaged", r.Guessed && ordered != "":
		found = ordered
	default:
		for _, note := range r.Notes {
			t.Logf("%s", note)
		}
		if r.Failure != "" {
			return perl.Fail("%s", r.Failure)
		}
		if ordered != "" && ordered != found {
			t.Logf("got unexpected ostype (%s != %s)", found, ordered)
		}
	}
	if found != "" {
		conf["ostype"] = found
	}
	switch {
	case conf["arch"] != "":
	case r.Arch == "" || found == "unmanaged": // That type has no code to find out.
		t.Logf("Falling back to amd64.\nUse `pct set VMID --arch ARCH` to change.")
		conf["arch"] = "amd64"
	default:
		t.Logf("Detected container architecture: %s", r.Arch)
		conf["arch"] = r.Arch
	}
	return nil
}

// unpackFails is the error of a create whose template tar cannot unpack; nil if it goes on
// with what there is. PVE 9 lists a file without compression first, to see whether it is an
// image of OCI (restore_archive and archive_is_oci_format in PVE/LXC/Create.pm).
func unpackFails(w *core.World, vmid int, file string, order ctOrder, log func(string, ...any)) error {
	if at, onPBS := strings.CutPrefix(file, "pbs://"); onPBS { // restore_proxmox_backup_archive
		return perl.Fail("command 'lxc-usernsexec -- /usr/bin/proxmox-backup-client restore %s root.pxar /var/lib/lxc/%d/rootfs' failed: exit code 255", at, vmid)
	}
	packer := content.Packers[path.Ext(file)]
	if packer.Option == "" && w.V9() {
		return perl.Fail("command 'tar -tf %s' failed: exit code 2", file)
	}
	log("extracting archive '%s'", file)
	if order.ignore {
		return nil
	}
	command := "tar xpf - "
	if order.set["unprivileged"] == "1" {
		command = "lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- " + command
	}
	if packer.Option != "" {
		command += packer.Option + " "
	}
	command += "--totals --one-file-system -p --sparse --numeric-owner --acls --xattrs '--xattrs-include=user.*' '--xattrs-include=security.capability' " +
		"'--warning=no-file-ignored' '--warning=no-xattr-write' -C /var/lib/lxc/" + perl.Itoa(vmid) + "/rootfs --skip-old-files --anchored --exclude './dev/*'"
	return perl.Fail("command '%s' failed: exit code 2", command)
}
