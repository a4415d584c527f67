package machines_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBackupAndRestore runs the commands of the pages about backups: an agent that lost both of its folders has its
// keys, its settings and its history back.
func TestInstalledBackupAndRestore(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.has("web-1")
	w.settled()
	keys := func() string { return w.Run("sh", "-c", "sha256sum /var/lib/homestak-gitops/server/*.*") }
	before := keys()
	require.Contains(t, before, "server.pem")

	w.Run("sh", "-ec", "cd /root\n"+pageCommands(t, "back-up.md"))
	w.Run("systemctl", "stop", service)
	w.Run("rm", "-r", "/etc/homestak-gitops", "/var/lib/homestak-gitops")
	w.Run("sh", "-ec", "cd /root\n"+pageCommands(t, "restore-an-agent.md"))
	w.settled()
	require.Equal(t, before, keys())
	require.Equal(t, "600 root", w.Run("stat", "--format=%a %U", secrets))
	require.Contains(t, w.Run("homestak-gitops", "why", "web-1"), "create done")
}

// pageCommands returns the first block of commands of a how-to page.
func pageCommands(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/howto", page))
	require.NoError(t, err)
	_, block, found := strings.Cut(string(text), "\n\n    ")
	require.True(t, found, page)
	block, _, _ = strings.Cut(block, "\n\n")
	return block
}
