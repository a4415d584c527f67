package guest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// shipped is the folder of what is installed beside the program.
const shipped = "../../systemd"

// systemd-analyze ends well even where it complains, so that what it says counts. The
// program need not be installed here: a path to it is written into a copy.
func TestSystemdTakesTheUnits(t *testing.T) {
	dir := analyzed(t)
	said, err := exec.Command("systemd-analyze", "verify",
		filepath.Join(dir, service), filepath.Join(dir, once), filepath.Join(dir, timer)).CombinedOutput()
	require.NoError(t, err, string(said))
	require.Empty(t, string(said))
}

// exposed is what a unit may have of exposure, as systemd-analyze reckons it: 0 is
// nothing at all, 10 is root without any bounds.
const exposed = 2.0

func TestTheUnitsAreExposedLittle(t *testing.T) {
	dir := analyzed(t)
	for _, unit := range []string{service, once} {
		said, err := exec.Command("systemd-analyze", "security", "--offline=true", filepath.Join(dir, unit)).CombinedOutput()
		require.NoError(t, err, string(said))
		level := regexp.MustCompile(`Overall exposure level for ` + regexp.QuoteMeta(unit) + `: ([0-9.]+)`).FindSubmatch(said)
		require.NotNil(t, level, string(said))
		n, err := strconv.ParseFloat(string(level[1]), 64)
		require.NoError(t, err)
		t.Logf("%s: %.1f", unit, n)
		require.LessOrEqual(t, n, exposed, string(said))
	}
}

// analyzed gives copies of the units that systemd-analyze can look at on any machine.
func analyzed(t *testing.T) (dir string) {
	t.Helper()
	said, err := exec.Command("systemd-analyze", "--version").Output()
	if err != nil {
		nspawn.Without(t, "systemd-analyze is missing")
	}
	var version int
	if words := strings.Fields(string(said)); len(words) > 1 {
		version, _ = strconv.Atoi(words[1])
	}
	if version < 252 {
		nspawn.Without(t, "systemd here is older than 252, which the units are written for")
	}
	dir = t.TempDir()
	program := filepath.Join(dir, "homestak-gitops")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	for _, unit := range []string{service, once, timer} {
		text := unitText(t, unit)
		if unit != timer {
			require.Equal(t, 1, strings.Count(text, "\nExecStart=homestak-gitops "), unit)
		}
		text = strings.Replace(text, "\nExecStart=homestak-gitops ", "\nExecStart="+program+" ", 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, unit), []byte(text), 0o600))
	}
	return dir
}

func unitText(t *testing.T, unit string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, unit))
	require.NoError(t, err)
	return string(text)
}

// Both forms of the agent are in the same box.
func TestBothUnitsAreBoundAlike(t *testing.T) {
	box := func(unit string) []string {
		_, text, found := strings.Cut(unitText(t, unit), "\nUser=")
		require.True(t, found, unit)
		text, _, _ = strings.Cut(text, "\n[Install]")
		var keys []string
		for line := range strings.SplitSeq("User="+text, "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				keys = append(keys, line)
			}
		}
		return keys
	}
	require.Greater(t, len(box(service)), 30)
	require.Equal(t, box(service), box(once))
}

// The example is a whole agent.hcl, also with every line of it taken in.
func TestTheExampleIsAnAgentFile(t *testing.T) {
	text := unitText(t, "agent.hcl")
	off := regexp.MustCompile(`(?m)^(\s*)# (\s*(?:[a-z_]+\s+= |auth \{|\}).*)$`)
	require.Len(t, off.FindAllString(text, -1), 11)
	for name, text := range map[string]string{"as it is": text, "all of it": off.ReplaceAllString(text, "$1$2")} {
		t.Run(name, func(t *testing.T) {
			file, found := hcl.ParseAgent("agent.hcl", []byte(text))
			require.Empty(t, found)
			require.Contains(t, file.Repository.URL, "https://")
		})
	}
}

// Installing puts all in place, as often as one likes, and keeps what was written;
// removing takes it away again, and nothing else.
func TestInstallingAndRemoving(t *testing.T) {
	root := t.TempDir()
	install := func(args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(shipped, "install.sh"), args...)
		cmd.Env = append(os.Environ(), "DESTDIR="+root, "PREFIX=/usr")
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, string(said))
	}
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("first"), 0o755))
	installed := []string{
		"etc/homestak-gitops/agent.hcl", "usr/bin/homestak-gitops",
		"usr/lib/systemd/system/homestak-gitops-once.service", "usr/lib/systemd/system/homestak-gitops.service",
		"usr/lib/systemd/system/homestak-gitops.timer", "usr/lib/sysusers.d/homestak-gitops.conf",
	}
	slices.Sort(installed)
	install(program)
	require.Equal(t, installed, files(t, root))

	config := filepath.Join(root, installed[0])
	require.NoError(t, os.WriteFile(config, []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(program, []byte("second"), 0o755))
	install(program)
	require.Equal(t, installed, files(t, root))
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
	text, err = os.ReadFile(filepath.Join(root, "usr/bin/homestak-gitops"))
	require.NoError(t, err)
	require.Equal(t, "second", string(text))

	install("--uninstall")
	require.Equal(t, installed[:1], files(t, root), "what somebody wrote stays")
	require.NoError(t, os.Remove(config))
	install(program)
	install("--uninstall")
	install("--uninstall")
	require.Empty(t, files(t, root))
	require.NoDirExists(t, filepath.Dir(config))
}

// files lists what is in a folder, without the folders.
func files(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, err = filepath.Rel(root, name)
			all = append(all, name)
		}
		return err
	}))
	return all
}
