package aspect

import (
	"encoding/base64"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// gate is a program that controls access to the machine. Its files are changed as the aspects sshd and sudo change
// theirs: checked first, and restored unless a login succeeds afterwards.
type gate int

const (
	noGate gate = iota
	sshdGate
	sudoGate
	loginGate // accounts, keys and PAM: nothing but a login shows that they work
)

// gateOf finds the gate that a file belongs to.
func gateOf(name string) gate {
	below := func(folders ...string) bool {
		for _, f := range folders {
			if name == f || strings.HasPrefix(name, f+"/") {
				return true
			}
		}
		return false
	}
	switch {
	case below("/etc/ssh"):
		return sshdGate
	case below("/etc/sudoers", "/etc/sudoers.d"):
		return sudoGate
	case below("/etc/pam.d", "/etc/pam.conf", "/etc/security", "/etc/nsswitch.conf", "/etc/nologin", "/etc/hosts.allow", "/etc/hosts.deny",
		"/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/login.defs", "/root/.ssh"), strings.Contains(name, "/.ssh/"):
		return loginGate
	}
	return noGate
}

// candidate is a script that checks new content before it is in place, where that is possible: a file of sudo alone.
func (g gate) candidate(name, content string) string {
	if g != sudoGate {
		return ""
	}
	return script("if command -v visudo >/dev/null; then",
		"  _check=$(mktemp /run/homestak-sudoers.XXXXXX)",
		"  "+guest.PrintBytes(content)+` >"$_check"`,
		`  _said=$(visudo -c -f "$_check" 2>&1) || { rm -f "$_check"; die `+guest.Quote("visudo refuses "+name)+`": $_said"; }`,
		`  rm -f "$_check"`,
		"fi")
}

// enforce is a script that checks what is written together with all other files, and puts it in force.
func (g gate) enforce(name string) string {
	switch g {
	case sshdGate:
		return script("if command -v sshd >/dev/null; then", sshdCheck, sshdReload, "fi")
	case sudoGate:
		return script("if command -v visudo >/dev/null; then",
			`  _said=$(visudo -c 2>&1) || undo `+guest.Quote("sudo does not work with "+name)+`": $_said"`,
			"fi")
	case noGate, loginGate:
	}
	return ""
}

// guard makes a step that writes or removes a file of a gate one that is restored unless it is confirmed.
func (g gate) guard(s *Step, name string, restart []string) {
	if g == noGate {
		return
	}
	s.Part = guest.ContentSum(name)[:16]
	file := guest.Quote(name)
	at := "./" + guest.Quote(name[strings.LastIndexByte(name, '/')+1:])
	s.Ask = script(
		"(", "  enter "+guest.Quote(folder(name))+" || exit 0",
		"  if [ -L "+at+" ]; then die "+guest.Quote(name+" is a symbolic link")+"; fi",
		"  [ -f "+at+" ] || exit 0",
		`  [ "$(stat -c %s -- `+at+`)" -le 500000 ] || die `+guest.Quote(name+" is too large to be restored if no user can log in afterwards"),
		"  stat -c '%a %u %g' -- "+at, "  content "+at+" 500001 | base64 -w0", ")")
	back := sshdRestart
	if g != sshdGate {
		back = ":"
	}
	for _, u := range restart {
		back += "\nsystemctl try-restart -- " + guest.Quote(unitFile(u)) + " || :"
	}
	s.Learn = func(answer string, s *Step) {
		first, text, there := strings.Cut(answer, "\n")
		content, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		switch words := strings.Fields(first); {
		case !there:
			s.Restore = script("drop "+file, back)
		case err != nil || len(words) != 3: // it is not known what to restore
			s.Restore = ":\n"
			s.Script = "die " + guest.Quote(name+" could not be read") + "\n"
		default:
			s.Restore = script(guest.PutFile(name, string(content), words[0], words[1], words[2]), back)
		}
	}
	if g == sshdGate {
		s.checkLogins()
	}
}
