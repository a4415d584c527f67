package nspawn

import (
	"testing"
	"testing/fstest"

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
				m = Rootfs{Packages: Systemd}.Boot(t)
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

func TestTheMirrorIsThatOfTheMachine(t *testing.T) {
	for _, c := range []struct {
		name, file, text, want string
	}{
		{"one line", "sources.list", "# deb http://old.example/debian bookworm main\ndeb http://a.example/debian bookworm main\n", "http://a.example/debian"},
		{"options", "sources.list.d/x.list", "deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main\n", "http://a.example/debian"},
		{"another suite", "sources.list", "deb http://a.example/debian-security trixie-security main\ndeb http://a.example/debian trixie main\n", "http://a.example/debian"},
		{"sources of programs only", "sources.list", "deb https://a.example/program stable main\ndeb-src http://a.example/debian bookworm main\ndeb cdrom:[x] bookworm main\n", ""},
		{"stanza", "sources.list.d/debian.sources", "Types: deb\n# a comment: of it\nURIs: https://a.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n", "https://a.example/debian"},
		{"the stanza that names it", "sources.list.d/debian.sources", "Types: deb\nURIs: http://a.example/debian\nSuites: trixie\n\nTypes: deb\nURIs: http://b.example/d\nSuites: bookworm\n", "http://b.example/d"},
		{"stanza that is off", "sources.list.d/debian.sources", "Enabled: no\nTypes: deb\nURIs: http://a.example/debian\nSuites: bookworm\n", ""},
		{"nothing", "sources.list", "deb\ndeb [x\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			apt := fstest.MapFS{c.file: &fstest.MapFile{Data: []byte(c.text)}}
			require.Equal(t, c.want, mirrorOf(apt, "bookworm"))
		})
	}
}
