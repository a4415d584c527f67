package push_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// The key for guests is made on the machine, and stays when the agent loses its data folder.
func TestTheKeyForGuests(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, "600 homestak-gitops\n644 root\n", m.sh("stat -c '%a %U' /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub"))
	key := m.sh("cat /etc/homestak-gitops/ssh_key")
	require.Regexp(t, `^ssh-ed25519 \S+ homestak-gitops agent of inner\n$`, m.sh("cat /etc/homestak-gitops/ssh_key.pub"))
	line := strings.Split(key, "\n")[2]
	require.NotEmpty(t, line)
	m.sh("rm -rf /var/lib/homestak-gitops; rm /etc/homestak-gitops/parent.token")
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, key, m.sh("cat /etc/homestak-gitops/ssh_key"))
	m.sh("rm /etc/homestak-gitops/ssh_key.pub")
	require.NoError(t, m.install(w, programOf("1"), "good"))
	require.Equal(t, key, m.sh("cat /etc/homestak-gitops/ssh_key"), "its public half is made from it")
	require.NotContains(t, m.seen.String(), line, "the parent never sees it")
}

// A child that was installed by an earlier version has its key in the data folder: it goes on with that.
func TestTheKeyOfAnEarlierVersion(t *testing.T) {
	m, w := begin(t), want(t)
	require.NoError(t, m.install(w, programOf("1"), "good"))
	m.sh("mkdir -p /var/lib/homestak-gitops; mv /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub /var/lib/homestak-gitops; chown -R homestak-gitops /var/lib/homestak-gitops")
	const both = "cat /etc/homestak-gitops/ssh_key /etc/homestak-gitops/ssh_key.pub"
	before := m.sh(strings.ReplaceAll(both, "/etc/", "/var/lib/"))
	require.Equal(t, []string{"ssh_key: missing"}, m.changes(w))
	next := w
	next.Program.Sum, next.Program.Version = sumOf(programOf("2")), "2"
	require.NoError(t, m.install(next, programOf("2"), "good"))
	require.Empty(t, m.changes(next))
	require.Equal(t, before, m.sh(both))
	require.Empty(t, m.sh("ls -A /var/lib/homestak-gitops"), "once the new version has reported, that is the only one")

	// The agent may put a link there, which leads to what only root may read.
	m.sh("rm /etc/homestak-gitops/ssh_key*; echo canary-of-root >/root/secret; chmod 600 /root/secret; ln -s /root/secret /var/lib/homestak-gitops/ssh_key; chown -h homestak-gitops /var/lib/homestak-gitops/ssh_key")
	require.NoError(t, m.install(next, programOf("2"), "good"))
	require.NotContains(t, m.sh(both), "canary-of-root")
	require.Empty(t, m.changes(next))
	require.Equal(t, "canary-of-root\n", m.sh("cat /root/secret"))
}

// When the parent is cut off while the agent of a child is stopped, and stays away, the agent starts by itself.
func TestAnAgentThatWasStoppedStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := begin(t), want(t)
		defer m.Halt()
		require.NoError(t, m.install(w, programOf("1"), "good"))
		pid := m.sh("systemctl show -p MainPID --value homestak-gitops")
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops-resume.timer || :"), "it was called off")
		m.sh("rm /etc/homestak-gitops/parent.token")
		m.instead = func(c guest.Command) guest.Command {
			script := string(c.Stdin)
			if before, _, ok := strings.Cut(script, "systemctl stop homestak-gitops.service || :\n"); ok {
				c.Stdin = []byte(before + "systemctl stop homestak-gitops.service\nexit 99\n" + script[len(before):])
			}
			return c
		}
		require.Error(t, m.install(w, programOf("1"), "good"))
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops || :"))
		<-time.After(3 * time.Minute)
		synctest.Wait()
		m.sh("systemctl is-active homestak-gitops")

		// It reads what was changed in the meantime, when the step goes on.
		m.instead = nil
		require.NoError(t, m.install(w, programOf("1"), "good"))
		require.NotEqual(t, pid, m.sh("systemctl show -p MainPID --value homestak-gitops"))
		require.Empty(t, m.changes(w))
		require.Equal(t, "inactive\n", m.sh("systemctl is-active homestak-gitops-resume.timer || :"))
	})
}
