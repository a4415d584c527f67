package machines_test

import (
	"fmt"
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
func TestInstalledSystemdTakesTheUnits(t *testing.T) {
	dir := analyzed(t)
	said, err := exec.Command("systemd-analyze", "verify",
		filepath.Join(dir, service), filepath.Join(dir, once), filepath.Join(dir, timer), filepath.Join(dir, helperSocket), filepath.Join(dir, helperUnit), filepath.Join(dir, upgradeTimer), filepath.Join(dir, upgradeUnit)).CombinedOutput()
	require.NoError(t, err, string(said))
	require.Empty(t, string(said))
}

// exposed is what a unit may have of exposure, as systemd-analyze reckons it: 0 is
// nothing at all, 10 is root without any bounds.
const exposed = 2.0

func TestInstalledUnitsAreExposedLittle(t *testing.T) {
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

// analyzed gives copies of the units that systemd-analyze can read on any machine.
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
	for _, unit := range []string{service, once, timer, helperSocket, helperUnit, upgradeTimer, upgradeUnit} {
		text := unitText(t, unit)
		if strings.HasSuffix(unit, ".service") && unit != upgradeUnit { // which has a shell choose the program
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
func TestInstalledBothUnitsAreBoundAlike(t *testing.T) {
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
func TestInstalledExampleIsAnAgentFile(t *testing.T) {
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
func TestInstalledFilesAndTheirRemoval(t *testing.T) {
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
		"usr/lib/systemd/system/homestak-gitops-host.socket", "usr/lib/systemd/system/homestak-gitops-host.service",
		"usr/lib/systemd/system/homestak-gitops-upgrade.service", "usr/lib/systemd/system/homestak-gitops-upgrade.timer",
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
	require.Equal(t, installed[:1], files(t, root), "files of others stay")
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

// On a machine: what was installed is what systemd verifies, installing again changes
// nothing that runs, and removing ends the agent and leaves what it made.
func TestInstalledOnAMachine(t *testing.T) {
	w := beginInstalled(t)
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

// reached is the address of the guest beside its loopback, as a PVE host has one on its bridge.
const reached = "192.0.2.10"

// A node in mode pull reaches the agent at the address of the host's API, which is one of this machine. The
// installed unit must permit to list those, or no such node is created.
func TestR8TheInstalledUnitServesNodesThatPull(t *testing.T) {
	w := beginInstalled(t)
	w.Write("/etc/systemd/network/lo.network", 0o644, "[Match]\nName=lo\n[Network]\nAddress="+reached+"/32\n")
	w.Run("systemctl", "start", "systemd-networkd.service")
	w.Write("/run/systemd/system/pveproxy.socket.d/reached.conf", 0o644, "[Socket]\nFreeBind=yes\nListenStream="+reached+":8006\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "stop", "pveproxy.socket", "pveproxy.service")
	w.Run("systemctl", "start", "pveproxy.socket")

	host, err := os.ReadFile(filepath.Join(w.site, "host.hcl"))
	require.NoError(t, err)
	w.push("host.hcl", strings.Replace(string(host), "127.0.0.1", reached, 1))
	w.push("specs.hcl", "spec \"base\" {\n  config {\n    timezone = \"UTC\"\n  }\n}\n")
	w.push("web.hcl", strings.Replace(manifestOf("web-1"), "    image", "    spec   = spec.base\n    execution {\n      mode = \"pull\"\n    }\n    image", 1))
	w.Run("systemctl", "start", service)
	w.has("web-1")

	key, pin := "/var/lib/homestak-gitops/server/read.key", ""
	w.Until("the server for nodes shows its pin", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		_, after, found := strings.Cut(said, "sha256:")
		pin, _, _ = strings.Cut("sha256:"+after, "\n")
		pin = strings.Fields(pin)[0]
		return found
	})
	said, code := w.Try("homestak-gitops", "tree", "--server", fmt.Sprintf("https://%s:44443", reached), "--pin", pin, "--key-file", key)
	require.Zero(t, code, said)
	require.Contains(t, said, "father")
	for _, e := range w.journal(service) {
		require.NotContains(t, e.Message, "it is not known where nodes reach")
	}
}

// The timer makes a pass now and then. A bad commit makes the unit fail, says why, and
// changes nothing; the next good one is converged by the next pass.
func TestInstalledTimerMakesPasses(t *testing.T) {
	w := beginInstalled(t)
	w.Write("/etc/systemd/system/"+timer+".d/soon.conf", 0o644, "[Timer]\nOnCalendar=\nOnCalendar=*:*:*\nAccuracySec=100ms\nRandomizedDelaySec=0\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "enable", "--now", timer)
	w.has("web-1")
	w.Until("the pass ended well", func() bool { return w.show(once, "Result") == "success" && w.show(once, "ExecMainStatus") == "0" })

	w.push("bad.hcl", bad)
	w.Until("the unit failed", func() bool { return w.show(once, "ExecMainStatus") == "3" })
	w.Until("it says where", func() bool { return w.finding(once, "bad.hcl:6") != nil })
	require.Equal(t, "active", w.show(timer, "ActiveState"), "the timer goes on")
	require.Len(t, w.host.Snapshot().Guests, 2+1)

	w.push("bad.hcl", manifestOf("good-1"))
	w.has("good-1")
	w.Until("the unit is well again", func() bool { return w.show(once, "ExecMainStatus") == "0" && w.show(once, "Result") == "success" })
	require.Empty(t, w.Run("systemctl", "list-units", "--failed", "--no-legend", "homestak-gitops*"))
}

// Agent and timer exclude each other: the one that is started ends the other.
func TestInstalledAgentAndTimerExcludeEachOther(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.Run("systemctl", "start", timer)
	w.Until("the agent has ended", func() bool { return w.show(service, "ActiveState") == "inactive" })
	require.Equal(t, "success", w.show(service, "Result"))
	require.Equal(t, "active", w.show(timer, "ActiveState"))
	w.Run("systemctl", "start", once) // what the timer does, now
	w.Run("systemctl", "start", service)
	require.Equal(t, "inactive", w.show(timer, "ActiveState"))
	require.Equal(t, "inactive", w.show(once, "ActiveState"))
	w.has("web-1")
}
