package systemd

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The package is refused where a newer program wrote, and nothing that the agent may put into its folder holds up or misleads the
// installation, which root runs.
func TestAPackageReadsTheFormat(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("package/preinst")
	require.NoError(t, err)
	for name, test := range map[string]struct {
		make func(file string) error
		want string // that it says; "": it is installed
	}{
		"none":      {func(string) error { return nil }, ""},
		"equal":     {written("3 1.0.0\n"), ""},
		"newer":     {written("4 1.1.0~rc1\n"), "version 1.1.0~rc1 introduced its format 4."},
		"terminal":  {written("4 1\x1b[2J\x07\n"), "version 12J introduced"},
		"no number": {written("x\n"), ""},
		"pipe":      {func(file string) error { return syscall.Mkfifo(file, 0o600) }, ""},
		"endless":   {func(file string) error { return os.Symlink("/dev/zero", file) }, ""},
		"not the agent's": {func(file string) error {
			if err := os.WriteFile(file+".other", []byte("4 secret\n"), 0o600); err != nil {
				return err
			}
			return os.Symlink(file+".other", file)
		}, ""},
	} {
		dir := t.TempDir()
		folder := filepath.Join(dir, "homestak-gitops")
		require.NoError(t, os.Mkdir(folder, 0o700))
		require.NoError(t, test.make(filepath.Join(folder, "format")), name)
		script := strings.NewReplacer("/var/lib", dir, "@FORMAT@", "3", "@VERSION@", "0.9.0").Replace(string(text))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it would hang
		said, err := exec.CommandContext(ctx, "sh", "-c", script, "preinst", "upgrade", "0.8.0").CombinedOutput()
		cancel()
		if test.want == "" {
			require.NoError(t, err, "%s: %s", name, said)
			require.Empty(t, string(said), name)
			continue
		}
		require.Error(t, err, name)
		require.Contains(t, string(said), test.want, name)
	}
}

// written writes a text.
func written(text string) func(file string) error {
	return func(file string) error { return os.WriteFile(file, []byte(text), 0o600) }
}

// The package stops each unit before its program goes, and purging disables it.
func TestAPackageTakesItsUnitsAway(t *testing.T) {
	t.Parallel()
	stops, err := os.ReadFile("package/prerm")
	require.NoError(t, err)
	disables, err := os.ReadFile("package/postrm")
	require.NoError(t, err)
	units, err := filepath.Glob("homestak-gitops*.*")
	require.NoError(t, err)
	require.Greater(t, len(units), 5)
	for _, unit := range units {
		if strings.HasSuffix(unit, ".conf") {
			continue
		}
		require.Contains(t, string(stops), " "+unit)
		text, err := os.ReadFile(unit)
		require.NoError(t, err)
		if _, target, wanted := strings.Cut(string(text), "WantedBy="); wanted {
			require.Contains(t, string(disables), "/"+strings.TrimSpace(target)+".wants/"+unit)
		}
	}
}
