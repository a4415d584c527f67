package machines_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// The agent starts, converges, and is told of a push by a reload: the same process goes
// on. What systemd shows of it says which commit the host is at.
func TestInstalledAgentConvergesAndReloads(t *testing.T) {
	w := beginInstalled(t)
	first := w.push("db.hcl", manifestOf("db-1"))
	w.Run("systemctl", "enable", "--now", service)
	require.Equal(t, "active", w.show(service, "ActiveState"))
	w.has("web-1")
	w.has("db-1")
	w.settled()
	w.says(first)
	pid := w.pid()

	second := w.push("cache.hcl", manifestOf("cache-1"))
	w.Run("systemctl", "reload", service)
	w.has("cache-1")
	w.settled()
	w.says(second)
	require.Equal(t, pid, w.pid(), "a reload starts nothing anew")
	require.Equal(t, "0", w.show(service, "NRestarts"))
	require.Equal(t, "active", w.show(service, "ActiveState"))
	w.quiet()
}

// says waits until systemd shows the commit in the status of the agent.
func (w *installed) says(commit string) {
	w.t.Helper()
	w.Until("the status of the unit tells of "+commit[:7], func() bool {
		return strings.Contains(w.show(service, "StatusText"), commit[:7])
	})
	w.t.Logf("StatusText=%s", w.show(service, "StatusText"))
}

// quiet requires that systemd had nothing to complain of while it ran our units.
func (w *installed) quiet() {
	w.t.Helper()
	said := w.Run("journalctl", "--output=cat", "--priority=warning", "_PID=1")
	require.NotContains(w.t, said, "homestak", "systemd complains")
}

// A hung agent is noticed: systemd ends it and starts another, which goes on. So does
// one that is killed.
func TestInstalledHungOrKilledAgentIsRestarted(t *testing.T) {
	nspawn.Need(t)
	for _, c := range []struct {
		name, signal, result string
	}{
		{"hung", "-STOP", "watchdog"},
		{"killed", "-KILL", "signal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := beginInstalled(t)
			w.dropIn("watch", "WatchdogSec=2s")
			w.Run("systemctl", "start", service)
			w.has("web-1")
			pid := w.pid()
			w.Run("kill", c.signal, strconv.Itoa(pid))
			w.Until("another process is the agent", func() bool {
				return w.pid() != 0 && w.pid() != pid && w.show(service, "ActiveState") == "active"
			})
			require.Equal(t, "1", w.show(service, "NRestarts"))
			require.Contains(t, w.Run("journalctl", "--output=cat", "_PID=1"), "Failed with result '"+c.result+"'")
			require.Equal(t, c.signal == "-STOP", w.finding(service, "goroutine ") != nil, "where it hung is written down")

			w.push("db.hcl", manifestOf("db-1"))
			w.Run("systemctl", "reload", service)
			w.has("db-1")
			w.settled()
			require.Len(t, w.host.Snapshot().Guests, 2+2, "nothing is listed twice")
		})
	}
}

// Stopping is an end in good order, with nothing left open.
func TestInstalledStoppingEndsTheAgentInGoodOrder(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.has("web-1")
	w.Run("systemctl", "stop", service)
	require.Equal(t, "inactive", w.show(service, "ActiveState"))
	require.Equal(t, "success", w.show(service, "Result"))
	require.Equal(t, "0", w.show(service, "ExecMainStatus"))
	_, code := w.Try("test", "-e", "/run/homestak-gitops")
	require.Equal(t, 1, code, "its socket is gone")
	w.quiet()
}

// Stopping does not tear a step apart: the guest that is being made is finished first.
func TestInstalledStoppingFinishesTheStepThatRuns(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.Until("a guest is being made", func() bool { return len(w.host.Snapshot().Guests) > 2 })
	w.Run("systemctl", "stop", service)
	require.Equal(t, "success", w.show(service, "Result"))
	for _, g := range w.host.Snapshot().Guests {
		require.Empty(t, g.Lock, "guest %d was left half made", g.VMID)
	}
	w.Run("systemctl", "start", service)
	w.has("web-1")
	require.Len(t, w.host.Snapshot().Guests, 2+1)
}

// The agent runs as an ordinary user and still has the secrets: it gets a copy of a file that only root can read, and no other user
// does.
func TestInstalledAgentIsNotRoot(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.has("web-1") // it could not be without the token

	uid := w.Run("id", "-u", "homestak-gitops")
	require.NotEqual(t, "0", uid)
	status := w.Run("cat", fmt.Sprintf("/proc/%d/status", w.pid()))
	require.Regexp(t, `\nUid:\t`+strings.Repeat(uid+`\t`, 3)+uid+`\n`, status)
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
		require.Regexp(t, `\n`+set+`:\t0{16}\n`, status)
	}
	require.Contains(t, status, "\nNoNewPrivs:\t1\n")
	require.Contains(t, status, "\nSeccomp:\t2\n")

	as := []string{"setpriv", "--reuid=homestak-gitops", "--regid=homestak-gitops", "--clear-groups", "cat"}
	said, code := w.Try(append(as, secrets)...)
	require.NotZero(t, code)
	require.Contains(t, said, "Permission denied")
	w.Run(append(as, "/run/credentials/"+service+"/secrets.yaml")...)
	said, code = w.Try("setpriv", "--reuid=nobody", "--clear-groups", "cat", "/run/credentials/"+service+"/secrets.yaml")
	require.NotZero(t, code, said)
	require.Equal(t, "700 homestak-gitops", w.Run("stat", "--format=%a %U", "/var/lib/homestak-gitops"))
	for _, e := range w.journal(service) {
		require.NotContains(t, e.Message, "can be read by others")
	}
}

// The secrets may be in git instead, encrypted for an identity of this machine, which only root
// can read. The placeholder of the unit for a file of secrets does not hide them.
func TestInstalledSecretsOfTheCommit(t *testing.T) {
	w := beginInstalled(t)
	key, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted, err := sopstest.Encrypt(released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\n", w.host.Token()), sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	w.push("secrets.sops.yaml", string(encrypted))
	w.Run("rm", secrets)
	w.Run("systemctl", "start", service)
	w.Until("the agent says what it misses", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		return strings.Contains(said, "no API token")
	})
	require.Equal(t, "active", w.show(service, "ActiveState"))

	w.Write("/etc/homestak-gitops/age-keys.txt", 0o600, key+"\n")
	w.Run("systemctl", "restart", service)
	w.has("web-1")
	w.settled()
	for _, e := range w.journal(service) {
		require.NotContains(t, e.Message, "can be read by others")
		require.NotContains(t, e.Message, key)
	}
}

// Without a file of secrets the unit starts: a site may need none, and the agent says
// which value it misses.
func TestInstalledAgentStartsWithoutSecrets(t *testing.T) {
	w := beginInstalled(t)
	w.Run("rm", secrets)
	w.Run("systemctl", "start", service)
	w.Until("the agent says what it misses", func() bool {
		for _, e := range w.journal(service) {
			if strings.Contains(e.Message, "api_tokens") {
				return true
			}
		}
		return false
	})
	require.Equal(t, "active", w.show(service, "ActiveState"))
}

// The journal knows how grave a line is: a refused commit stands out.
func TestInstalledLinesOfTheJournalHavePriorities(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.has("web-1")
	refused := w.push("bad.hcl", bad)
	w.Run("systemctl", "reload", service)
	w.Until("the finding is in the journal", func() bool { return w.finding(service, "bad.hcl:6") != nil })
	require.Contains(t, []string{"3", "4"}, w.finding(service, "bad.hcl:6").Priority)
	w.says(refused)

	uid := w.Run("id", "-u", "homestak-gitops")
	info := 0
	for _, e := range w.journal(service) {
		require.Equal(t, uid, e.UID)
		require.NotRegexp(t, `^<\d>`, e.Message)
		if e.Priority == "6" {
			info++
		}
	}
	require.NotZero(t, info)
}

// finding finds a line that tells of something in the site, nil if there is none.
func (w *installed) finding(unit, what string) *entry {
	w.t.Helper()
	for _, e := range w.journal(unit) {
		if strings.Contains(e.Message, what) {
			return &e
		}
	}
	return nil
}

// Only root and the members of the group may talk to the agent.
func TestInstalledWhoMayTalkToTheAgent(t *testing.T) {
	w := beginInstalled(t)
	w.Run("systemctl", "start", service)
	w.settled()
	require.Equal(t, w.pid(), w.status().PID)
	require.Equal(t, "660 homestak-gitops homestak-gitops", w.Run("stat", "--format=%a %U %G", "/run/homestak-gitops/agent.sock"))

	w.Run("useradd", "--groups=homestak-gitops", "watcher")
	w.Run("useradd", "stranger")
	said := w.Run("runuser", "--user=watcher", "--", "homestak-gitops", "status")
	require.Contains(t, said, "father")
	said, code := w.Try("runuser", "--user=stranger", "--", "homestak-gitops", "status")
	require.NotZero(t, code, said)
	require.NotContains(t, said, "web-1")
}
