package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// TestR6DecisiveLines: of real logs of tasks that failed, the lines that say why.
func TestR6DecisiveLines(t *testing.T) {
	const plug = "kvm: -netdev type=tap,id=net0,ifname=tap100i0,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: network script /usr/libexec/qemu-server/pve-bridge failed with status "
	for name, c := range map[string]struct {
		status string
		log    []string
		want   string
	}{
		"bridge (8.4, recorded)": {
			"start failed: QEMU exited with code 1",
			[]string{"generating cloud-init ISO", "bridge 'nosuch' does not exist", plug + "512", "TASK ERROR: start failed: QEMU exited with code 1"},
			"bridge 'nosuch' does not exist",
		},
		"VLAN on a bridge without a port, TPM": {
			"start failed: QEMU exited with code 1",
			[]string{"generating cloud-init ISO", "no physical interface on bridge 'vmbr0'", plug + "6400", "stopping swtpm instance (pid 5034) due to QEMU startup error", "TASK ERROR: start failed: QEMU exited with code 1"},
			"no physical interface on bridge 'vmbr0'",
		},
		"no KVM (recorded)": {
			"start failed: QEMU exited with code 1",
			[]string{"kvm: warning: host doesn't support requested feature: CPUID.01H:ECX.pni [bit 0]", "kvm: Host doesn't support requested features", "TASK ERROR: start failed: QEMU exited with code 1"},
			"kvm: Host doesn't support requested features",
		},
		"container, LXC names the innermost first": {
			"startup for container '200' failed",
			[]string{
				"run_buffer: 571 Script exited with status 2", "lxc_create_network_priv: 3466 No such device - Failed to create network device",
				"lxc_spawn: 1852 Failed to create the network", "__lxc_start: 2119 Failed to spawn container \"200\"", "TASK ERROR: startup for container '200' failed",
			},
			"run_buffer: 571 Script exited with status 2; lxc_create_network_priv: 3466 No such device - Failed to create network device",
		},
		"only consequences": {
			"startup for container '200' failed",
			[]string{"__lxc_start: 2119 Failed to spawn container \"200\"", "TASK ERROR: startup for container '200' failed"},
			"__lxc_start: 2119 Failed to spawn container \"200\"",
		},
		"backup": {
			"job errors",
			[]string{"INFO: starting new backup job", "ERROR: Backup of VM 100 failed - no such volume", "INFO: Failed at 2026-11-20", "INFO: Backup job finished with errors", "TASK ERROR: job errors"},
			"ERROR: Backup of VM 100 failed - no such volume",
		},
		"R6, a long line keeps its end": {
			"start failed: QEMU exited with code 1",
			[]string{plug + "512 since " + strings.Repeat("x", 200) + " bridge vmbr7 does not exist"},
			"kvm: -netdev type=tap,id=net0,ifname=tap100i0,script=/usr/libexec/qemu-server/pve-bridge,downscript= … " + strings.Repeat("x", 169) + " bridge vmbr7 does not exist",
		},
		"nothing to read": {"start failed: QEMU exited with code 1", []string{"no content"}, ""},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, api.Decisive(c.log, c.status)) })
	}
}
