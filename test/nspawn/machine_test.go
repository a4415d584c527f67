package nspawn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A guest is gone when its test is over: its processes, its mounts, its cgroups; also
// when nspawn had no time to clean up.
func TestNothingStaysOfAGuest(t *testing.T) {
	Need(t)
	for _, c := range []struct {
		name string
		kill bool
	}{{name: "powered off"}, {name: "killed", kill: true}} {
		t.Run(c.name, func(t *testing.T) {
			var m *Machine
			t.Run("while it runs", func(t *testing.T) {
				m = Boot(t, Rootfs{Packages: Systemd})
				require.NotEmpty(t, processesIn(t, m.space))
				require.Equal(t, "running", m.Run("systemctl", "is-system-running"))
				require.NotEmpty(t, m.cgroups)
				for _, dir := range m.cgroups {
					require.DirExists(t, dir)
				}
				if c.kill {
					require.NoError(t, m.nspawn.Process.Kill())
				}
			})
			if m == nil {
				t.Skip("no guest was booted")
			}
			require.Empty(t, processesIn(t, m.space))
			for _, dir := range m.cgroups {
				require.NoDirExists(t, dir)
			}
			for _, mount := range mounts(t) {
				require.NotContains(t, mount.at, m.name)
				require.NotContains(t, mount.at, "nspawn-volatile")
			}
		})
	}
}
