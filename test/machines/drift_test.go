package machines_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/nspawn"
)

// What somebody changed by hand is found, named, and put right; what somebody added is
// reported and stays.
func TestST10DriftInsideAMachine(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := w.whole()
	w.apply(s)
	good := w.snapshot()
	for _, c := range []struct{ name, do, change string }{
		{"a line of sshd", "sed -i s/^PermitRootLogin.*/PermitRootLogin\\ yes/ /etc/ssh/sshd_config.d/00-homestak-gitops.conf", "posture.ssh.permit_root_login yes → no"},
		{"a line of sshd that has no effect yet", "echo MaxSessions 1 >>/etc/ssh/sshd_config.d/00-homestak-gitops.conf", "posture.ssh.port \"2222 (/etc/ssh/sshd_config.d/00…\" → 2222"},
		{"a service stopped", "systemctl stop hs-daemon", "platform.services.hs-daemon \"enabled, stopped\" → enabled"},
		{"a service disabled", "systemctl disable hs-daemon", "platform.services.hs-daemon \"disabled, running\" → enabled"},
		{"a package removed", "apt-get -y remove hs-tool", "platform.packages +hs-tool"},
		{"a user removed from a group", "gpasswd -d ann ops", "access.user.ann.groups +ops"},
		{"a user made administrator", "usermod -aG sudo bob", "access.user.bob.groups -sudo"},
		{"another shell", "usermod -s /bin/sh ann", "access.user.ann.shell /bin/sh → /bin/bash"},
		{"a key removed", "sed -i /b@laptop/d /home/ann/.ssh/authorized_keys", "access.user.ann.ssh_keys +\"b@laptop SHA256:X75Mb3nqVpJG\""},
		{"a sudo rule", "sed -i 's/NOPASSWD: //' /etc/sudoers.d/zz-homestak-gitops", "access.user.ann.sudo \"\" → nopasswd"},
		{"a further sudo rule", "echo 'eve ALL=(ALL) ALL' >>/etc/sudoers.d/zz-homestak-gitops", "access.sudoers -\"eve ALL=(ALL) ALL\""},
		{"a kernel parameter", "echo 0 >/proc/sys/net/ipv4/ip_forward", "config.sysctl.net.ipv4.ip_forward \"0 (1 after the next restart)\" → 1"},
		{"the time zone", "ln -sf /usr/share/zoneinfo/UTC /etc/localtime", "config.timezone UTC → Europe/Berlin"},
		{"the name", "hostname other", "identity.hostname \"edge (running as other)\" → edge"},
		{"a file", "echo changed >/etc/motd", "config.file./etc/motd.content \"changed\\n\" → \"welcome\\n\""},
		{"the mode of a file", "chmod 600 /etc/motd", "config.file./etc/motd.mode 0600 → 0644"},
		{"a file removed", "rm /etc/homestak-test/app.conf", "config.file./etc/homestak-test/app.conf.content none → \"it's \\\"here\\\"\\n\""},
		{"the jail", "rm /etc/fail2ban/jail.d/zz-homestak-gitops.local", "posture.fail2ban.jail none → on"},
	} {
		w.Run0(c.do)
		require.Contains(t, changes(w.observe(s)), c.change, c.name)
		w.apply(s)
		same(t, good, w.snapshot(), c.name)
	}

	w.Run0("echo 'eve ALL=(ALL) ALL' >/etc/sudoers.d/eve; chmod 440 /etc/sudoers.d/eve; useradd eve; echo '" + keyB + "' >>/home/bob/.ssh/authorized_keys || { mkdir /home/bob/.ssh; echo '" + keyB + "' >/home/bob/.ssh/authorized_keys; chown -R bob: /home/bob/.ssh; }")
	state := w.observe(s)
	require.Empty(t, changes(state))
	require.ElementsMatch(t, []string{"sudoers file /etc/sudoers.d/eve", "user eve", "key b@laptop SHA256:X75Mb3nqVpJG of user bob"}, state.Unmanaged)
	w.unchanged(s)
}
