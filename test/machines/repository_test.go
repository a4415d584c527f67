package machines_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// content is what a package has.
type content struct {
	fields string // further ones of its control file
	files  map[string]string
}

// archive is what the repository has: packages by name, with their further fields and files.
var archive = map[string]content{
	"hs-lib":    {files: map[string]string{"usr/share/hs-lib/data": "data\n"}},
	"hs-tool":   {fields: "Depends: hs-lib\n", files: map[string]string{"usr/bin/hs-tool": "#!/bin/sh\necho tool\n"}},
	"hs-other":  {fields: "Depends: hs-lib\n", files: map[string]string{"usr/bin/hs-other": "#!/bin/sh\necho other\n"}},
	"hs-needer": {fields: "Depends: hs-tool\n", files: map[string]string{"usr/bin/hs-needer": "#!/bin/sh\n"}},
	// The second takes the place of the first (Debian Policy, 7.6.2), the third only drives it out.
	"hs-mailer":  {fields: "Provides: hs-mail\nConflicts: hs-mail\nReplaces: hs-mail\n", files: map[string]string{"usr/bin/hs-mailer": "#!/bin/sh\necho mailer\n"}},
	"hs-postman": {fields: "Provides: hs-mail\nConflicts: hs-mail\nReplaces: hs-mail (<< 9), hs-other-mail\n", files: map[string]string{"usr/bin/hs-postman": "#!/bin/sh\necho postman\n"}},
	"hs-enemy":   {fields: "Conflicts: hs-mailer\n", files: map[string]string{"usr/bin/hs-enemy": "#!/bin/sh\n"}},
	"hs-daemon": {files: map[string]string{
		"lib/systemd/system/hs-daemon.service": "[Unit]\nDescription=test\n[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
		"etc/hs-daemon.conf":                   "shipped\n",
		"DEBIAN/conffiles":                     "/etc/hs-daemon.conf\n",
		// As debhelper writes it: enabled and started when it is installed. A test that kills dpkg on the way
		// asks it to stop there.
		"DEBIAN/postinst": "#!/bin/sh\nset -e\nif [ -e /run/stop-in-postinst ]; then touch /run/stopped; exec sleep 1000; fi\nif [ \"$1\" = configure ]; then systemctl daemon-reload; systemctl enable --now --quiet hs-daemon.service; fi\n",
		"DEBIAN/prerm":    "#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then systemctl disable --now --quiet hs-daemon.service; fi\n",
		"DEBIAN/postrm":   "#!/bin/sh\nset -e\nsystemctl daemon-reload\n",
	}},
	"hs-socket": {files: map[string]string{
		"lib/systemd/system/hs-socket.service": "[Unit]\nDescription=test\n[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
		"lib/systemd/system/hs-socket.socket":  "[Socket]\nListenStream=/run/hs-socket\n[Install]\nWantedBy=sockets.target\n",
	}},
	// The lines of the web interface that ask for a subscription, as Proxmox VE 9 has them.
	"proxmox-widget-toolkit": {files: map[string]string{"usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js": webLibrary9}},
	"hs-broken":              {files: map[string]string{"DEBIAN/postinst": "#!/bin/sh\necho it cannot be configured >&2\nexit 1\n"}},
	"hs-unmet":               {fields: "Depends: hs-missing (>= 2)\n"},
	// It is larger than the small file system of a test.
	"hs-big":              {files: map[string]string{"usr/share/hs-big/data": strings.Repeat("0123456789abcdef", 1<<16)}},
	"unattended-upgrades": {files: map[string]string{"usr/share/unattended-upgrades/20auto-upgrades": "APT::Periodic::Unattended-Upgrade \"1\";\n"}},
}

// built is the folder that apt reads and the key that signs, the same for all machines, which only
// read it. The first machine builds it, and TestMain removes it.
var built struct {
	once     sync.Once
	dir, key string
	whole    bool
}

func TestMain(m *testing.M) {
	m.Run()
	_ = os.RemoveAll(built.dir)
}

// repository gives the folder that apt reads. Nothing of it is signed, and nothing is
// fetched. Its folder extra is a repository of its own, which is signed by the key, where
// this machine has gpg.
func repository(t *testing.T) (dir, key string) {
	t.Helper()
	built.once.Do(func() {
		var err error
		built.dir, err = os.MkdirTemp("", "homestak-apt-")
		require.NoError(t, err)
		built.key = buildRepository(t, built.dir)
		built.whole = true
	})
	require.True(t, built.whole, "the test that built the packages failed")
	return built.dir, built.key
}

// buildRepository builds the packages in a folder, and gives the key; "" without gpg.
func buildRepository(t *testing.T, dir string) (key string) {
	t.Helper()
	require.NoError(t, os.Chmod(dir, 0o755)) // apt reads as a user of its own
	build(t, dir, archive)
	extra := filepath.Join(dir, "extra")
	require.NoError(t, os.Mkdir(extra, 0o755))
	index := build(t, extra, map[string]content{"hs-extra": {files: map[string]string{"usr/bin/hs-extra": "#!/bin/sh\necho extra\n"}}})
	release(t, extra, map[string]string{"Packages": index})
	// A repository with components, as most have it.
	parts := filepath.Join(dir, "parts")
	require.NoError(t, os.Mkdir(parts, 0o755))
	part := build(t, parts, map[string]content{"hs-part": {files: map[string]string{"usr/bin/hs-part": "#!/bin/sh\necho part\n"}}})
	suite, lists := filepath.Join(parts, "dists/stable"), map[string]string{}
	for component, index := range map[string]string{"main": part, "other": ""} {
		for _, architecture := range []string{"amd64", "arm64", "all"} {
			name := component + "/binary-" + architecture + "/Packages"
			lists[name] = index
			write(t, filepath.Join(suite, name), index, 0o644)
		}
	}
	release(t, suite, lists)
	if _, err := exec.LookPath("gpg"); err != nil {
		return ""
	}
	home := t.TempDir()
	gpg := func(args ...string) string {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, string(said))
		return string(said)
	}
	gpg("--quick-generate-key", "test <test@example.org>", "ed25519", "sign", "never")
	for _, signed := range []string{extra, suite} {
		gpg("--clearsign", "--output", filepath.Join(signed, "InRelease"), filepath.Join(signed, "Release"))
		require.NoError(t, os.Chmod(filepath.Join(signed, "InRelease"), 0o644))
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run() })
	return gpg("--armor", "--export")
}

// release writes the file that names the lists of a repository.
func release(t *testing.T, dir string, lists map[string]string) {
	t.Helper()
	text := "Origin: test\nSuite: stable\nCodename: stable\nComponents: main other\nArchitectures: all amd64 arm64\nDate: Sun, 01 Nov 2026 00:00:00 UTC\nSHA256:\n"
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		text += fmt.Sprintf(" %x %d %s\n", sha256.Sum256([]byte(lists[name])), len(lists[name]), name)
	}
	write(t, filepath.Join(dir, "Release"), text, 0o644)
}

// build makes packages and their index in a folder, and gives the index.
func build(t *testing.T, dir string, packages map[string]content) string {
	t.Helper()
	var index strings.Builder
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		p := packages[name]
		root := filepath.Join(t.TempDir(), name)
		control := fmt.Sprintf("Package: %s\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.org>\n%sDescription: for tests\n", name, p.fields)
		write(t, filepath.Join(root, "DEBIAN/control"), control, 0o644)
		for file, text := range p.files {
			mode := os.FileMode(0o644)
			if strings.HasPrefix(text, "#!") {
				mode = 0o755
			}
			write(t, filepath.Join(root, file), text, mode)
		}
		deb := name + "_1.0_all.deb"
		said, err := exec.Command("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, filepath.Join(dir, deb)).CombinedOutput()
		require.NoError(t, err, string(said))
		b, err := os.ReadFile(filepath.Join(dir, deb))
		require.NoError(t, err)
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", control, deb, len(b), sha256.Sum256(b))
	}
	write(t, filepath.Join(dir, "Packages"), index.String(), 0o644)
	return index.String()
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), mode))
	require.NoError(t, os.Chmod(name, mode))
}
