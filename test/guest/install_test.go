package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// On a machine: what was installed is what systemd verifies, installing again changes
// nothing that runs, and removing ends the agent and leaves what it made.
func TestInstallingOnAMachine(t *testing.T) {
	w := begin(t)
	require.Empty(t, w.Run("systemd-analyze", "verify", service, once, timer))
	w.Run("systemctl", "enable", "--now", service)
	w.has("web-1")
	pid := w.pid()
	require.Contains(t, w.Run(installer, binary), "systemctl restart")
	require.Equal(t, pid, w.pid())
	w.Run("systemctl", "restart", service)
	require.NotEqual(t, pid, w.pid())

	w.Run(installer, "--uninstall")
	for _, unit := range []string{service, once, timer} {
		require.Equal(t, "not-found", w.show(unit, "LoadState"))
		require.Equal(t, "inactive", w.show(unit, "ActiveState"))
	}
	w.Run("test", "-d", "/var/lib/homestak-gitops")
	w.Run("test", "-f", "/etc/homestak-gitops/agent.hcl")
	_, code := w.Try("sh", "-c", "command -v homestak-gitops")
	require.NotZero(t, code)
	w.Run(installer, "--uninstall")
	w.quiet()
}
