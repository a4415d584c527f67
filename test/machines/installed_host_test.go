package machines_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/nspawn"
)

// hostWith is the block of the host with a spec, the spec, and its posture. More are further blocks of the spec.
func (w *installed) hostWith(motd string, more ...string) string {
	return fmt.Sprintf(`host "father" {
  api         = "https://127.0.0.1:8006"
  fingerprint = %q
  node        = %q
  spec        = spec.machine
}
posture "strict" {
  ssh { port = 2222 }
  fail2ban { enabled = true }
}
spec "machine" {
  identity { hostname = "father" }
  %s
  access {
    posture = posture.strict
    user "ann" {
      sudo     = true
      ssh_keys = []
      groups   = ["video"]
    }
  }
  platform {
    packages = ["hs-tool", "hs-daemon", "hs-extra"]
    services { disable = ["hs-daemon"] }
  }
  check "api" { tcp = "8006" }
  check "unit" { command = "hs-extra && [ $(id -un) = homestak-gitops ]" }
  config {
    unattended_upgrades = true
    repository "extra" {
      url    = "http://127.0.0.1:8080/extra"
      suites = ["./"]
      key    = %q
    }
    timezone = "Asia/Tokyo"
    sysctl   = { "net.ipv4.conf.lo.arp_ignore" = "1" }
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
`, w.host.Fingerprint(), w.host.Node(), strings.Join(more, "\n"), w.key, motd)
}

// ask sends a request to the helper as a user, by the interpreter that every Debian has. The digest is of no
// spec, and a nonce is of an earlier connection.
func (w *installed) ask(user, commit string, nonce ...string) string {
	w.t.Helper()
	const script = `use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => "/run/homestak-gitops-host.sock") or die "no: $!"; my $l = <$s>;
if ($l =~ /"nonce":"([^"]+)"/) { my $n = $ARGV[1] // $1; print $s qq({"version":1,"nonce":"$n","commit":"$ARGV[0]","digest":"sha256:00","dry_run":false}\n); $s->flush; $l = <$s>; } print $l;`
	said, _ := w.Try(append([]string{"runuser", "-u", user, "--", "perl", "-e", script, commit}, nonce...)...) // it ends badly where it may not connect
	return said
}

// A spec of the host is applied to the machine on which the agent runs, by the helper, and withdrawn. The helper is started by its
// socket, and refuses everything but the commit in force for the agent.
func TestInstalledHostItself(t *testing.T) {
	nspawn.Need(t)
	archive, key := repository(t)
	if key == "" {
		nspawn.Without(t, "gpg is missing, to sign a repository with")
	}
	w := beginInstalledIn(t, networked(withIfupdown), nspawn.Bind{From: archive, To: "/srv/apt"},
		nspawn.Bind{From: ofDebian(t, debian(""), "fail2ban", "python3-systemd"), To: "/srv/debian"})
	_, armored, found := strings.Cut(key, "-----BEGIN") // gpg may say something before
	require.True(t, found, key)
	w.key = "-----BEGIN" + armored
	net := lan{&world{t: t, Machine: w.Machine}}
	net.connect(eniStatic, "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*", "printf 'deb [trusted=yes] file:%s ./\\n' /srv/apt /srv/debian >/etc/apt/sources.list")
	w.Run("systemd-run", "--unit=mirror", "python3", "-m", "http.server", "--directory", "/srv/apt", "8080")
	const facts = "stat -c '%a %U %G' /etc/motd; cat /etc/motd; readlink /etc/localtime || :; sshd -T | grep '^port'; cat /proc/sys/net/ipv4/conf/lo/arp_ignore; cat /etc/network/interfaces; ls /etc/apt/sources.list.d /etc/network/interfaces.d; ls /etc/apt/keyrings || :; apt-config dump | grep Unattended || :; ip -4 -o addr show dev eth0 | awk '{print $4}'"
	before := w.Run("sh", "-c", facts)
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
	w.Run("sh", "-c", "hs-tool && ! systemctl is-enabled hs-daemon && ! systemctl is-active hs-daemon && sshd -T | grep -qx 'port 2222' && [ $(cat /proc/sys/net/ipv4/conf/lo/arp_ignore) = 1 ] && sudo -l -U ann | grep -q ALL")
	w.Run("sh", "-c", "hs-extra && apt-config dump | grep -q 'APT::Periodic::Unattended-Upgrade \"1\"'")
	w.Run("sh", "-c", "systemctl is-active fail2ban && fail2ban-client status sshd && fail2ban-client get sshd maxretry | grep -qx 5")
	require.Equal(t, "700 root", w.Run("stat", "-c", "%a %U", "/var/lib/homestak-gitops-host"))
	require.Equal(t, "755 root", w.Run("stat", "-c", "%a %U", "/var/lib/homestak-gitops-spec"))

	// Drift.
	w.Write("/etc/motd", 0o644, "mine\n")
	w.Run("homestak-gitops", "reconcile")
	require.Equal(t, "welcome", w.Run("cat", "/etc/motd"))

	// Checks of the spec are made by the agent now and then, and by verify.
	require.Contains(t, w.Run("homestak-gitops", "verify"), "host.father")
	w.Until("the agent makes them, too", func() bool {
		checks := w.status().Checks
		return len(checks) == 2 && checks[0].Address == "host.father" && checks[0].State == "passing" && checks[1].State == "passing"
	})

	// An address is changed. One that cuts the machine off is taken back, as in a guest.
	address := func(ip, gateway string) string {
		return fmt.Sprintf("network {\n    ip      = %q\n    gateway = %q\n  }", ip, gateway)
	}
	w.push("host.hcl", w.hostWith("welcome\n", address("10.9.0.6/24", "10.9.0.1")))
	w.Run("systemctl", "reload", service)
	w.settled()
	require.True(t, net.ping("10.9.0.6"))
	w.push("host.hcl", w.hostWith("welcome\n", address("10.7.0.5/24", "10.7.0.1")))
	w.Run("systemctl", "reload", service)
	w.Until("the agent says that it was taken back", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		return strings.Contains(said, "the gateway 10.7.0.1 does not answer")
	})
	w.Until("it answers again", func() bool { return net.address() == "10.9.0.6/24" && net.ping("10.9.0.6") })

	// A next commit, and requests that the helper refuses.
	second := w.push("host.hcl", w.hostWith("hello\n", address("10.9.0.6/24", "10.9.0.1")))
	w.Run("systemctl", "reload", service)
	w.settled()
	require.Equal(t, "hello", w.Run("cat", "/etc/motd"))
	require.Contains(t, w.ask("root", second), "user 0 may not ask the helper: only the agent may")
	require.Contains(t, w.ask("nobody", second), "Permission denied")
	require.Contains(t, w.ask("homestak-gitops", first), "is not in force")
	require.Contains(t, w.ask("homestak-gitops", second, "ANOTHER"), "the request was made for another connection")
	require.Contains(t, w.ask("homestak-gitops", second), "the spec is not that of commit "+second)
	require.Equal(t, "hello", w.Run("cat", "/etc/motd"))

	// The machine is a container, whose swap is not its own.
	w.push("host.hcl", strings.Replace(w.hostWith("hello\n", address("10.9.0.6/24", "10.9.0.1")), "    timezone", "    swap = 64\n    timezone", 1))
	w.Run("systemctl", "reload", service)
	w.Until("the agent says what is wrong with swap", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		return strings.Contains(said, "this machine is a container (systemd-nspawn), and its swap is that of its host: take swap out of the spec")
	})

	w.push("host.hcl", strings.Replace(w.hostWith("hello\n"), "  spec        = spec.machine\n", "", 1))
	w.Run("systemctl", "reload", service)
	w.settled()
	require.Equal(t, before, w.Run("sh", "-c", facts))
	w.Run("sh", "-c", "[ ! -e /etc/homestak-test/app.conf ] && ! command -v hs-tool && ! command -v hs-extra && ! command -v fail2ban-server && [ ! -e /etc/fail2ban/jail.d/zz-homestak-gitops.local ] && passwd -S ann | grep -q '^ann L' && [ ! -e /etc/sudoers.d/zz-homestak-gitops ]")
	w.quiet()
}
