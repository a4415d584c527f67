package pve_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestNoWorker: a request goes as far as the start of its task. What is written before
// that stays (create_and_lock_config in PVE/API2/Qemu.pm and PVE/API2/LXC.pm).
func TestNoWorker(t *testing.T) {
	rule, err := pve.ParseFault("* /nodes/** no-worker")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Guests: 1, Fault: pve.Faults(rule)})
	before := c.h.Snapshot()
	failed := func(method, path string, f form) {
		t.Helper()
		a := c.ask(method, path, f)
		require.Equal(t, 500, a.status, a.raw)
		require.Equal(t, "got no worker upid - start worker failed", a.reason)
	}
	failed("POST", "/nodes/father/qemu", form{"vmid": "200", "name": "web", "cores": "2"})
	failed("POST", "/nodes/father/qemu/200/status/start", nil)
	failed("DELETE", "/nodes/father/qemu/200", nil)
	failed("POST", "/nodes/father/storage/local/download-url", form{"content": "iso", "filename": "a.iso", "url": "https://images.example/a.iso"})
	c.ok("GET", "/nodes/father/qemu/200/config", nil)

	after := c.h.Snapshot()
	require.Len(t, after.Guests, len(before.Guests)+1)
	for _, g := range after.Guests {
		if g.VMID == 200 {
			require.Equal(t, map[string]string{"lock": "create"}, g.Config)
		}
	}
	require.Equal(t, before.Volumes, after.Volumes)
	require.Empty(t, c.ok("GET", "/nodes/father/tasks?source=all", nil))
}
