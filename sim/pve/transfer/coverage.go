package transfer

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiIncluded is GET /cluster/backup/{id}/included_volumes: the drives of the guests
// that a job backs up, and whether each goes along.
func apiIncluded(w *core.World, c *core.Call) (any, error) {
	job, err := jobOf(w, c)
	if err != nil {
		return nil, err
	}
	children := []map[string]any{}
	for _, word := range perl.SplitList(job["vmid"]) { // Of one that is gone there is no more to say.
		if vmid := perl.Atoi(word); w.Guests[vmid] == nil && job["pool"] == "" && c.Can(core.VMPath(vmid), "VM.Audit") {
			children = append(children, map[string]any{"id": vmid, "type": "unknown", "leaf": 1})
		}
	}
	for _, vmid := range w.Vmids {
		g := w.Guests[vmid]
		if !coveredBy(w, job, vmid) || job["node"] != "" && job["node"] != g.Node || !c.Can(core.VMPath(vmid), "VM.Audit") {
			continue
		}
		drives := []map[string]any{}
		for _, key := range g.Conf.DriveNames() {
			if g.Kind == "qemu" {
				d := perl.ParseDrive(key, g.Conf[key])
				if d.Cdrom() {
					continue
				}
				_, said := d.Opts["backup"]
				reason := map[bool]string{true: "backup=no", false: "backup=yes"}[said]
				if strings.HasPrefix(key, "efidisk") && g.Conf["bios"] != "ovmf" {
					d.Opts["backup"], reason = "0", "efidisk but no OVMF BIOS"
				}
				drives = append(drives, includedDrive(vmid, key, d.File, d.Opts["backup"] != "0", reason))
			}
		}
		if g.Kind == "lxc" {
			for _, key := range g.Conf.MountNames() {
				m := perl.ParseMount(key, g.Conf[key])
				included, reason := perl.OptionOf(g.Conf[key], "backup") == "1", "disabled"
				switch {
				case key == "rootfs":
					included, reason = true, "rootfs"
				case m.Kind() != "volume":
					included, reason = false, "not a volume"
				case included:
					reason = "enabled"
				}
				drives = append(drives, includedDrive(vmid, key, m.Volume, included, reason))
			}
		}
		name := any(g.Conf["name"])
		if name == "" {
			name = nil
		}
		if g.Kind == "lxc" {
			name = g.Conf["hostname"]
		}
		children = append(children, map[string]any{"id": vmid, "type": g.Kind, "name": name, "children": drives, "leaf": perl.BoolInt(len(drives) == 0)})
	}
	return map[string]any{"children": children}, nil
}

// includedDrive tells of a drive whether a backup has it, and why
// (get_volume_backup_included in PVE/API2/Backup.pm).
func includedDrive(vmid int, key, volume string, included bool, reason string) map[string]any {
	return map[string]any{"id": fmt.Sprint(vmid, ":", key), "name": volume, "included": perl.BoolInt(included), "reason": reason, "leaf": 1}
}

// coveredBy says whether a backup job has a guest.
func coveredBy(w *core.World, job perl.Config, vmid int) bool {
	named := perl.SplitList(job["vmid"])
	pool := w.Access.Pools[job["pool"]]
	switch {
	case strings.Contains(","+strings.Join(perl.SplitList(job["exclude"]), ",")+",", fmt.Sprintf(",%d,", vmid)):
		return false
	case job["all"] == "1", pool != nil && pool.Vms[vmid]:
		return true
	default:
		return strings.Contains(","+strings.Join(named, ",")+",", fmt.Sprintf(",%d,", vmid))
	}
}

// apiNotBackedUp is GET /cluster/backup-info/not-backed-up.
func apiNotBackedUp(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	covered := map[int]bool{}
	for _, job := range perl.Sorted(w.Sections["jobs"]) {
		for _, vmid := range w.Vmids {
			covered[vmid] = covered[vmid] || coveredBy(w, job, vmid)
		}
	}
	for _, vmid := range w.Vmids {
		if g := w.Guests[vmid]; !covered[vmid] && c.Can(core.VMPath(vmid), "VM.Audit") {
			list = append(list, map[string]any{"vmid": vmid, "type": g.Kind, "name": guests.Sample(w, g).Name})
		}
	}
	return list, nil
}
