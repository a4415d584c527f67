package proxmox_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// TestTheLogOfATaskSaysWhy: the exit status of a start that failed names QEMU alone, its log
// the bridge. Where the log cannot be seen the status stands by itself.
func TestTheLogOfATaskSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		dark bool
		says string
	}{
		"seen":   {false, "QEMU exited with code 1: bridge 'vmbr7' does not exist"},
		"unseen": {true, "QEMU exited with code 1 (log: `pvenode task log 'UPID:father:"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, pvesim.Config{Version: "8.4"}) // Later ones name the bridge in the status.
			w.node("web-1", func(v *proxmox.VM) { v.NICs = []proxmox.NIC{{Name: "lan", Bridge: "vmbr7"}} })
			if c.dark {
				w.answers(1, "/log", `{"data":null}`, http.StatusForbidden)
			}
			failed := w.run(w.plan())
			require.Len(t, failed, 1)
			for _, err := range failed {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}
