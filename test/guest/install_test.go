package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// On a machine: what was installed is what systemd verifies, installing again changes
// nothing that runs, and removing ends the agent and leaves what it made.
func TestInstallingOnAMachine(t *testing.T) {
	w := begin(t)
	require.Empty(t, w.run("systemd-analyze", "verify", service, once, timer))
	w.run("systemctl", "enable", "--now", service)
	w.has("web-1")
	pid := w.pid()
	require.Contains(t, w.run(installer, binary), "systemctl restart")
	require.Equal(t, pid, w.pid())
	w.run("systemctl", "restart", service)
	require.NotEqual(t, pid, w.pid())

	w.run(installer, "--uninstall")
	for _, unit := range []string{service, once, timer} {
		require.Equal(t, "not-found", w.show(unit, "LoadState"))
		require.Equal(t, "inactive", w.show(unit, "ActiveState"))
	}
	w.run("test", "-d", "/var/lib/homestak-gitops")
	w.run("test", "-f", "/etc/homestak-gitops/agent.hcl")
	_, code := w.try("sh", "-c", "command -v homestak-gitops")
	require.NotZero(t, code)
	w.run(installer, "--uninstall")
	w.quiet()
}
