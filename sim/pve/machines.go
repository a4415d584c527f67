package pve

import (
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// machineVersions are those of QEMU 9.2, the newest first as PVE sorts them; 4.0.1 is
// there for q35 only (hw/i386/pc_q35.c of QEMU).
var machineVersions = strings.Fields("9.2+pve1 9.2 9.1 9.0 8.2 8.1 8.0 7.2 7.1 7.0 6.2 6.1 6.0 5.2 5.1 5.0 4.2 4.1+pve2 4.1+pve1 4.1 4.0.1 4.0 " +
	"3.1 3.0 2.12 2.11 2.10 2.9 2.8 2.7 2.6 2.5 2.4")

// machineChanges are what PVE says of its own revisions (PVE/QemuServer/Machine.pm).
var machineChanges = map[string]string{
	"9.2+pve1": "Disables S3/S4 power states by default.",
	"4.1+pve2": "Increases the number of SCSI drives supported.",
	"4.1+pve1": "Introduction of pveX versioning, no changes.",
}

// apiMachines is GET /nodes/{node}/capabilities/qemu/machines.
func apiMachines(w *core.World, _ *core.Call) (any, error) {
	versions := machineVersions
	if w.V9() {
		versions = append([]string{"10.1", "10.0+pve1", "10.0"}, versions...)
	}
	list := []map[string]any{}
	for _, kind := range []string{"q35", "i440fx"} {
		for _, version := range versions {
			if version == "4.0.1" && kind != "q35" {
				continue
			}
			entry := map[string]any{"id": "pc-" + kind + "-" + version, "type": kind, "version": version}
			if changes := machineChanges[version]; changes != "" {
				entry["changes"] = changes
			}
			list = append(list, entry)
		}
	}
	return list, nil
}
