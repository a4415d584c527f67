package aspect

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// sshdFile comes first, since the first value counts (sshd_config(5)); cloud-init writes
// 50-cloud-init.conf beside it.
const sshdFile = "/etc/ssh/sshd_config.d/00-homestak-gitops.conf"

// sshd is the SSH server: what is in force of the settings of the posture, whatever file
// says so. A machine without the server has none of them, and gets none.
var sshd = Of[sshdFound]{
	Name: "sshd", Doc: "The SSH server.",
	Paths: []string{"posture.ssh"},
	Probe: func(*Query) string {
		return script(
			"if ! command -v sshd >/dev/null; then exit 0; fi",
			// sshd does not even show its settings without this folder, which its unit makes.
			"[ -d /run/sshd ] || mkdir -m 0755 /run/sshd",
			`_said=$(`+sshdSettings+` 2>&1) && _ok=settings || _ok=broken`,
			`printf '%s\n' "$_said" | grep -E '^(port|permitrootlogin|passwordauthentication) ' | row "$_ok"`,
			`if [ "$_ok" = broken ]; then printf '%s\n' "$_said" | row why; fi`,
			"if [ -f "+sshdFile+" ]; then row file <"+sshdFile+"; fi")
	},
	Parse: func(_ *Query, rows [][]string) (sshdFound, error) {
		var f sshdFound
		for _, r := range rows {
			switch r[0] {
			case "settings", "broken":
				f.there = true
				for line := range strings.Lines(r[1]) {
					key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
					switch key {
					case "port":
						f.ports = append(f.ports, value)
					case "permitrootlogin":
						f.root = strings.Replace(value, "without-password", "prohibit-password", 1) // its older name
					case "passwordauthentication":
						f.password = value
					}
				}
			case "why":
				f.broken = firstLine(r[1])
			case "file":
				f.text, f.hasFile = r[1], true
			}
		}
		slices.Sort(f.ports)
		f.ports = slices.Compact(f.ports) // sshd_config may name the same one
		return f, nil
	},
	Fill: func(q *Query, f sshdFound, have *spec.Spec) {
		switch want := q.Want.Posture.SSH; {
		case !f.there: // no server: nothing to set
			have.Posture.SSH = want
		case want == nil && q.Record.Get("sshd", sshdFile) == nil:
		case want == nil && !f.hasFile:
		default:
			have.Posture.SSH = &spec.SSH{Port: strings.Join(f.ports, ","), PermitRootLogin: f.root, PasswordAuthentication: f.password}
			if f.broken != "" {
				have.Posture.SSH.Port = "broken: " + f.broken
			}
			// A modified line in our file counts even if another file overrides it.
			if want != nil && f.hasFile && f.text != sshdText(want) && have.Posture.SSH.Port == want.Port &&
				have.Posture.SSH.PermitRootLogin == want.PermitRootLogin && have.Posture.SSH.PasswordAuthentication == want.PasswordAuthentication {
				have.Posture.SSH.Port += " (" + sshdFile + " was changed)"
			}
		}
	},
	Steps: func(q *Query, f sshdFound) []Step {
		e := guest.RecordEntry{Aspect: "sshd", Item: sshdFile, Identity: "name"}
		want := q.Want.Posture.SSH
		if want == nil {
			s := Step{
				Stage: StageSSHD, Text: "remove the settings of the SSH server", Drop: []guest.RecordKey{e.Key()},
				Restore: f.restore(), Script: script("drop "+sshdFile, sshdCheck, sshdReload),
			}
			s.checkLogins()
			return []Step{s}
		}
		text := sshdText(want)
		s := Step{
			Stage: StageSSHD, Text: "set the SSH server to port " + want.Port + ", root login " + want.PermitRootLogin + ", passwords " + want.PasswordAuthentication,
			Keep: []guest.RecordEntry{e}, Restore: f.restore(),
			Script: script(
				"[ -d /etc/ssh/sshd_config.d ] || mkdir -m 0755 /etc/ssh/sshd_config.d",
				guest.PutFile(sshdFile, text, "0644", "root", "root"),
				sshdCheck,
				`_now=$(`+sshdSettings+` 2>/dev/null | grep -E '^(port|permitrootlogin|passwordauthentication) ' | sed s/without-password/prohibit-password/ | sort -u)`,
				`_want=$(printf '%s\n' `+guest.QuoteWords([]string{"port " + want.Port, "permitrootlogin " + want.PermitRootLogin, "passwordauthentication " + want.PasswordAuthentication})+` | sort)`,
				`if [ "$_now" != "$_want" ]; then`,
				`  _lines=$(grep -niE '^[[:space:]]*(port|permitrootlogin|passwordauthentication|include)[[:space:]=]' /etc/ssh/sshd_config /etc/ssh/sshd_config.d/*.conf 2>/dev/null | grep -v '^`+sshdFile+`')`,
				`  undo "the SSH server does not take these settings from `+sshdFile+`: another line adds a port, or sshd_config does not include that folder at its beginning. Remove what is wrong of: $_lines"`,
				`fi`,
				sshdReload),
		}
		s.checkLogins()
		return []Step{s}
	},
}

// sshdSettings prints the settings that apply to all users. With a Match block on a port, sshd -T requires one; no
// server listens on this one.
const sshdSettings = "sshd -T -C lport=1"

// sshdCheck and sshdReload are parts of a script: they check what it wrote, and apply it without ending sessions.
// If systemd listens for the server, as on newer Ubuntu, the ports are those of its socket.
const (
	sshdCheck = `[ -d /run/sshd ] || mkdir -m 0755 /run/sshd
_said=$(sshd -t 2>&1) || undo "sshd refuses the settings: $_said"`
	sshdReload = `if systemctl is-active --quiet ssh.socket 2>/dev/null; then systemctl daemon-reload && systemctl restart ssh.socket || undo "ssh.socket does not restart"; fi
if systemctl is-active --quiet ssh.service 2>/dev/null; then systemctl reload ssh.service || undo "the SSH server does not reload"; fi`
)

// sshdRestart puts in force what was restored, also where the server or its socket failed in between.
const sshdRestart = `case $(systemctl is-active ssh.socket 2>/dev/null) in
active|failed)
  systemctl daemon-reload; systemctl reset-failed ssh.socket ssh.service 2>/dev/null || :
  if systemctl restart ssh.socket; then systemctl try-reload-or-restart ssh.service || :; else systemctl restart ssh.service || :; fi ;;
*) systemctl reload ssh.service || systemctl restart ssh.service || : ;;
esac`

type sshdFound struct {
	there          bool // the server is installed
	ports          []string
	root, password string
	broken         string // why sshd does not take its files
	text           string // of our file
	hasFile        bool
}

func sshdText(s *spec.SSH) string {
	return heading + "Port " + s.Port + "\nPermitRootLogin " + s.PermitRootLogin + "\nPasswordAuthentication " + s.PasswordAuthentication + "\n"
}

// restore is the script that sets back what was there.
func (f sshdFound) restore() string {
	first := "drop " + sshdFile
	if f.hasFile {
		first = guest.PutFile(sshdFile, f.text, "0644", "root", "root")
	}
	return script(first, sshdRestart)
}
