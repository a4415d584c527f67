package machines_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/nspawn"
)

// shell runs a line of shell here, in a folder.
func shell(t *testing.T, dir, line string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// releases makes signed apt repositories of two versions: old has 0.9.0, new has 0.9.1 too, and in tampered and
// changed a file was changed after it was signed. The programs are the same but for the version of their package.
func releases(t *testing.T) string {
	t.Helper()
	scripts, err := filepath.Abs("../../systemd/package")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) // apt reads as a user of its own
	t.Setenv("COMPRESSION", "none")
	t.Setenv("SOURCE_DATE_EPOCH", "1795737600")
	t.Setenv("GNUPGHOME", t.TempDir())
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--kill", "all").Run() })
	shell(t, dir, `
		arch=$(dpkg --print-architecture)
		gpg --batch --quiet --passphrase '' --quick-generate-key releases ed25519 sign never
		gpg --batch --armor --export-secret-keys >key.asc
		`+scripts+`/package.sh 0.9.0 $arch old
		rm old/*.gz
		dpkg-deb -R old/*.deb tree
		sed -i 's/0\.9\.0/0.9.1/' tree/DEBIAN/control tree/DEBIAN/preinst
		mkdir new && cp old/*.deb new
		dpkg-deb --root-owner-group -Znone --build tree new/homestak-gitops_0.9.1_$arch.deb >/dev/null
		rm -r tree
		cp -R new tampered && cp -R new changed
		for repository in old new tampered changed; do
			URL=file:/srv/releases/$repository `+scripts+`/repository.sh $repository key.asc
		done
		sed -i 's/^Depends:.*/Depends: systemd, other/' tampered/Packages && gzip -9nkf tampered/Packages
		printf x >>changed/homestak-gitops_0.9.1_$arch.deb
		chmod -R a+rX .`)
	return dir
}

// The package on a real Debian: installed from a signed repository, upgraded under an agent that runs, refused where it cannot
// read what a newer program wrote, removed and purged.
func TestPackage(t *testing.T) {
	nspawn.Need(t)
	if _, err := exec.LookPath("gpg"); err != nil {
		nspawn.Without(t, "gpg is missing, which signs a repository")
	}
	dir := releases(t)
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			w := &world{t: t, Machine: nspawn.Rootfs{Packages: nspawn.Systemd, Suite: suite, Ready: "HOMESTAK_GUEST_ROOTFS"}.Boot(t, nspawn.Bind{From: dir, To: "/srv/releases"})}
			w.packages()
		})
	}
}

func (w *world) packages() {
	t := w.t
	t.Helper()
	// from makes apt know one repository, and returns what its update prints.
	from := func(repository string) (said string, code int) {
		w.Run0("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*; cp /srv/releases/" + repository + "/homestak-gitops.sources /etc/apt/sources.list.d/")
		return w.Try("apt-get", "update", "--error-on=any")
	}
	version := func() string { return w.Run("dpkg-query", "-Wf", "${Version}", "homestak-gitops") }
	pid := func() string {
		return w.Run("systemctl", "show", "--value", "--property=MainPID", "homestak-gitops")
	}
	install := []string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes"}

	said, code := from("tampered")
	require.NotZero(t, code, said)
	said, code = from("changed")
	require.Zero(t, code, said)
	said, code = w.Try(append(install, "homestak-gitops")...)
	require.NotZero(t, code, said)
	_, code = w.Try("test", "-e", "/usr/bin/homestak-gitops")
	require.NotZero(t, code)

	said, code = from("old")
	require.Zero(t, code, said)
	w.Run(append(install, "homestak-gitops")...)
	require.Equal(t, "0.9.0", version())
	require.Contains(t, w.Run("homestak-gitops", "version"), "homestak-gitops 0.9.0\n")
	require.Contains(t, w.Run("cat", "/etc/homestak-gitops/agent.hcl"), "identity")
	require.Empty(t, w.Run("systemd-analyze", "verify", "homestak-gitops.service", "homestak-gitops.timer"))
	require.Equal(t, "inactive", w.Run("systemctl", "show", "--value", "--property=ActiveState", "homestak-gitops"), "nothing is started")
	for _, name := range []string{"/usr/share/man/man1/homestak-gitops-plan.1.gz", "/usr/share/bash-completion/completions/homestak-gitops"} {
		w.Run("test", "-s", name)
	}

	// It has a repository that does not answer, and so no pass that is at work.
	const settings = "identity = \"father\"\nlisten = \"\"\nrepository { url = \"file:///srv/nothing.git\" }\n"
	w.Write("/etc/homestak-gitops/agent.hcl", 0o644, settings)
	w.Run("systemctl", "enable", "--now", "homestak-gitops")
	before := pid()
	require.Equal(t, "1 0.9.0", w.Run("cat", "/var/lib/homestak-gitops/format"))
	said, code = from("new")
	require.Zero(t, code, said)
	w.Run(append(install, "homestak-gitops")...)
	require.Equal(t, "0.9.1", version())
	require.Equal(t, strings.TrimSpace(settings), w.Run("cat", "/etc/homestak-gitops/agent.hcl"))
	w.Until("the agent runs the new program", func() bool { now := pid(); return now != "0" && now != before })

	// A newer program was here: the older package is refused, and so is the program that is installed.
	w.Run("systemctl", "stop", "homestak-gitops")
	w.Run0("echo '2 9.9.9' >/var/lib/homestak-gitops/format")
	state := func() string { return w.Run0("cd /var/lib/homestak-gitops && find . -type f | sort | xargs sha256sum") }
	kept := state()
	said, code = w.Try(append(install, "--allow-downgrades", "homestak-gitops=0.9.0")...)
	require.NotZero(t, code, said)
	require.Contains(t, said, "homestak-gitops 0.9.0 cannot read /var/lib/homestak-gitops: version 9.9.9 introduced its format 2.")
	require.Equal(t, "0.9.1", version())
	w.Run("dpkg", "--configure", "--pending")
	said, code = w.Try("homestak-gitops", "agent", "--data-dir", "/var/lib/homestak-gitops")
	require.NotZero(t, code)
	require.Contains(t, said, "have format 2, which version 9.9.9 introduced")
	require.Equal(t, kept, state(), "nothing was changed")
	w.Run0("echo '1 0.9.0' >/var/lib/homestak-gitops/format")
	w.Run(append(install, "--allow-downgrades", "homestak-gitops=0.9.0")...)
	require.Equal(t, "0.9.0", version())

	w.Run("systemctl", "start", "homestak-gitops")
	w.Run("apt-get", "remove", "--yes", "homestak-gitops")
	require.Equal(t, "not-found inactive", w.Run0("systemctl show --value --property=LoadState --property=ActiveState homestak-gitops | xargs"))
	w.Run("test", "-d", "/var/lib/homestak-gitops", "-a", "-f", "/etc/homestak-gitops/agent.hcl")
	w.Run("apt-get", "purge", "--yes", "homestak-gitops")
	w.Run("rm", "/etc/apt/sources.list.d/homestak-gitops.sources")
	require.Empty(t, w.Run0("find /etc /usr /var/lib -path /var/lib/dpkg -prune -o -path /var/lib/apt -prune -o -name '*homestak*' -print"))
}
