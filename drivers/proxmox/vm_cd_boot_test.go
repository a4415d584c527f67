package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestBootOrderOfDrivesThatGo: CD drives that stand in the boot order in force go while
// another order is pending. PVE refuses to revert the order in the request that deletes one
// of its devices.
func TestBootOrderOfDrivesThatGo(t *testing.T) {
	const a, b, empty = "local:iso/a.iso,media=cdrom", "local:iso/b.iso,media=cdrom", "none,media=cdrom"
	for name, c := range map[string]struct {
		lives   [3]map[string]string
		restart string
		boot    string
	}{
		"an appended drive goes, too": {
			lives: [3]map[string]string{
				{"ide0": empty, "sata0": a},
				{"boot": "order=scsi0;ide0;sata0", "ide0": b, "sata0": a, "scsi2": a},
				{"boot": "order=scsi0"},
			},
			restart: "allowed", boot: "order=scsi0",
		},
		"another one comes": {
			lives: [3]map[string]string{
				{"ide0": a, "boot": "order=scsi0;ide0"},
				{"scsi2": a, "boot": "order=scsi0"},
				{"scsi2": b, "boot": "order=scsi0"},
			},
			restart: "never", boot: "order=scsi0;scsi2",
		},
		"one comes back that is not in the order": {
			lives: [3]map[string]string{
				{"ide0": a, "ide1": a, "boot": "order=scsi0;ide0"},
				{"ide0": a, "boot": "order=scsi0;ide0"},
				{"ide1": a, "boot": "order=scsi0"},
			},
			restart: "never", boot: "order=scsi0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.iso("local:iso/a.iso", "local:iso/b.iso")
				w.Node("win", func(v *guest.VM) { v.Restart = c.restart })
				for _, options := range c.lives {
					w.VM("win").Options = options
					w.Apply()
					w.Converged()
				}
				for _, verb := range []string{"stop", "start"} {
					upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/"+verb, nil)
					require.NoError(t, err)
					require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
				}
				g := w.Guest(10000)
				require.Empty(t, g.Config["ide0"])
				require.Equal(t, c.boot, g.Config["boot"])
				w.Converged()
			})
		})
	}
}
