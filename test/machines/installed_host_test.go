package machines_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostWith is the block of the host with a spec, and the spec.
func (w *installed) hostWith(motd string) string {
	return fmt.Sprintf(`host "father" {
  api         = "https://127.0.0.1:8006"
  fingerprint = %q
  node        = %q
  spec        = spec.machine
}
spec "machine" {
  identity { hostname = "father" }
  access {
    user "ann" {
      ssh_keys = []
      groups   = ["video"]
    }
  }
  config {
    timezone = "Asia/Tokyo"
    file "/etc/motd" { content = %q }
    file "/etc/homestak-test/app.conf" {
      content = "new"
      mode    = "0600"
    }
    command "once" {
      run     = "echo ran >/var/tmp/once"
      creates = "/var/tmp/once"
    }
  }
}
`, w.host.Fingerprint(), w.host.Node(), motd)
}

// ask sends a request to the helper as a user, by the interpreter that every Debian has. COMMIT and DIGEST are of no commit in force.
func (w *installed) ask(user, commit string) string {
	w.t.Helper()
	const script = `use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => "/run/homestak-gitops-host.sock") or die "no: $!"; my $l = <$s>;
if ($l =~ /"nonce":"([^"]+)"/) { print $s qq({"version":1,"nonce":"$1","commit":"$ARGV[0]","digest":"sha256:00","dry_run":false}\n); $s->flush; $l = <$s>; } print $l;`
	said, _ := w.Try("runuser", "-u", user, "--", "perl", "-e", script, commit) // it ends badly where it may not connect
	return said
}

// A spec of the host is applied to the machine on which the agent runs, by the helper, and withdrawn. The helper is started by its
// socket, and refuses everything but the commit in force for the agent.
func TestInstalledHostItself(t *testing.T) {
	w := beginInstalled(t)
	before := w.Run("sh", "-c", "stat -c '%a %U %G' /etc/motd; cat /etc/motd; readlink /etc/localtime || :")
	first := w.push("host.hcl", w.hostWith("welcome\n"))
	w.Run("systemctl", "enable", "--now", service)
	w.has("web-1")
	w.Until("the agent says what is missing", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		return strings.Contains(said, "systemctl enable --now homestak-gitops-host.socket")
	})
	require.NotContains(t, w.Run("cat", "/etc/motd"), "welcome")

	w.Run("systemctl", "enable", "--now", helperSocket)
	w.Run("systemctl", "reload", service)
	w.settled()
	require.Equal(t, "welcome", w.Run("cat", "/etc/motd"))
	require.Equal(t, "600 root new", w.Run("sh", "-c", "stat -c '%a %U' /etc/homestak-test/app.conf | tr '\\n' ' '; cat /etc/homestak-test/app.conf"))
	w.Run("sh", "-c", "id -nG ann | grep -qw video && [ $(hostname) = father ] && [ $(date +%Z) = JST ] && [ $(cat /var/tmp/once) = ran ]")
	require.Equal(t, "700 root", w.Run("stat", "-c", "%a %U", "/var/lib/homestak-gitops-host"))
	require.Equal(t, "755 root", w.Run("stat", "-c", "%a %U", "/var/lib/homestak-gitops-spec"))

	// Drift.
	w.Write("/etc/motd", 0o644, "mine\n")
	w.Run("homestak-gitops", "reconcile")
	require.Equal(t, "welcome", w.Run("cat", "/etc/motd"))

	// A next commit, and requests that the helper refuses.
	second := w.push("host.hcl", w.hostWith("hello\n"))
	w.Run("systemctl", "reload", service)
	w.settled()
	require.Equal(t, "hello", w.Run("cat", "/etc/motd"))
	require.Contains(t, w.ask("root", second), "user 0 may not ask the helper: only the agent may")
	require.Contains(t, w.ask("nobody", second), "Permission denied")
	require.Contains(t, w.ask("homestak-gitops", first), "is not in force")
	require.Contains(t, w.ask("homestak-gitops", second), "the spec is not that of commit "+second)
	require.Equal(t, "hello", w.Run("cat", "/etc/motd"))

	w.push("host.hcl", strings.Replace(w.hostWith("hello\n"), "  spec        = spec.machine\n", "", 1))
	w.Run("systemctl", "reload", service)
	w.settled()
	require.Equal(t, before, w.Run("sh", "-c", "stat -c '%a %U %G' /etc/motd; cat /etc/motd; readlink /etc/localtime || :"))
	w.Run("sh", "-c", "[ ! -e /etc/homestak-test/app.conf ] && passwd -S ann | grep -q '^ann L' && [ ! -e /etc/sudoers.d/zz-homestak-gitops ]")
	w.quiet()
}
