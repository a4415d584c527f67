package aspect

import (
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const jailFile = "/etc/fail2ban/jail.d/zz-homestak-gitops.local"

// fail2ban is its jail for sshd. The package and the service are those of the resolved
// spec: aspects of their own have them.
var fail2ban = Of[jailFound]{
	Name: "fail2ban", Doc: "Ban of addresses that guess passwords.",
	Paths: []string{"posture.fail2ban"},
	Probe: func(*Query) string {
		return script("if [ -f " + jailFile + " ]; then row file <" + jailFile + "; fi")
	},
	Parse: func(_ *Query, rows [][]string) (jailFound, error) {
		var f jailFound
		for _, r := range rows {
			f.text, f.there = r[1], true
		}
		return f, nil
	},
	Fill: func(q *Query, f jailFound, have *spec.Spec) {
		want := q.Want.Posture.Fail2ban
		e := q.Record.Get("fail2ban", jailFile)
		switch {
		case want == nil && (e == nil || !f.there), want != nil && !f.there:
		case want != nil && f.text == jailText(q.Want) && (e == nil || e.Put["restart"] == ""):
			have.Posture.Fail2ban = &spec.Fail2ban{Jail: "on"}
		case want != nil && f.text == jailText(q.Want):
			have.Posture.Fail2ban = &spec.Fail2ban{Jail: "not in force"}
		default:
			have.Posture.Fail2ban = &spec.Fail2ban{Jail: "changed"}
		}
	},
	Steps: func(q *Query, _ jailFound) []Step {
		e := guest.RecordEntry{Aspect: "fail2ban", Item: jailFile, Identity: "name"}
		if q.Want.Posture.Fail2ban == nil {
			return []Step{{
				Stage: StageWithdrawFiles, Text: "remove the jail of sshd", Drop: []guest.RecordKey{e.Key()},
				Script: script("drop "+jailFile, "systemctl try-restart fail2ban.service || :"),
			}}
		}
		waits := e
		waits.Put = map[string]string{"restart": "fail2ban"}
		return []Step{{
			Stage: StageJail, Text: "set the jail of sshd", Needs: "[ -d /etc/fail2ban/jail.d ]", Keep: []guest.RecordEntry{waits}, After: []guest.RecordEntry{e},
			Script: script(
				"[ -d /etc/fail2ban/jail.d ] || die 'fail2ban is not installed'",
				guest.PutFile(jailFile, jailText(q.Want), "0644", "root", "root"), restartUnit("fail2ban")),
		}}
	},
}

type jailFound struct {
	text  string
	there bool
}

// jailText reads the journal: Debian 12 writes no auth.log any more.
func jailText(s *spec.Spec) string {
	port := "ssh"
	if s.Posture.SSH != nil {
		port = s.Posture.SSH.Port
	}
	return heading + "[sshd]\nenabled = true\nbackend = systemd\nport = " + port + "\nmaxretry = 5\nbantime = 3600\n"
}
