package proxmox_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestTheLogOfATaskSaysWhy: the exit status of a start that failed names QEMU alone, its log
// the bridge. Where the log cannot be seen the status stands by itself. PVE 9 says it in the
// status, where the card is a virtio one.
func TestTheLogOfATaskSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		config pve.Config
		nic    guest.NIC
		dark   bool
		says   string
	}{
		"8.4":        {pve.Config{Version: "8.4"}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, false, "QEMU exited with code 1: bridge 'vmbr7' does not exist (log"},
		"8.4 unseen": {pve.Config{Version: "8.4"}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, true, "QEMU exited with code 1 (log: `pvenode task log 'UPID:father:"},
		"9.2":        {pve.Config{}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, false, "task qmstart ended with: bridge 'vmbr7' does not exist (log"},
		"no port":    {pve.Config{Address: "10.0.0.1/24"}, guest.NIC{Name: "lan", Bridge: "vmbr0", VLAN: 7}, false, "QEMU exited with code 1: no physical interface on bridge 'vmbr0' (log"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Fault = pve.Faults(pve.Fault{Method: "GET", Pattern: "/nodes/father/network", Status: 403}) // so the plan does not refuse the bridge
			w := newWorld(t, c.config)
			w.Node("web-1", func(v *guest.VM) {
				v.NICs = []guest.NIC{c.nic}
				v.Options = map[string]string{"tpmstate0": "local-lvm:1,version=v2.0"}
			})
			if c.dark {
				w.answers(1, "/log", `{"data":null}`, http.StatusForbidden)
			}
			failed := w.Run(w.Plan())
			require.Len(t, failed, 1)
			for _, err := range failed {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}
