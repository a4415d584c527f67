package aspect

import (
	"encoding/base64"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest/record"
	"github.com/homestak/homestak-gitops/engine/guest/shell"
)

// gate is what decides who gets into the machine. A file of it is changed as the aspects sshd and sudo change theirs:
// checked first, and restored unless somebody gets in afterwards.
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
		"  "+shell.Data(content)+` >"$_check"`,
		`  _said=$(visudo -c -f "$_check" 2>&1) || { rm -f "$_check"; die `+shell.Quote("visudo refuses "+name)+`": $_said"; }`,
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
			`  _said=$(visudo -c 2>&1) || undo `+shell.Quote("sudo does not work with "+name)+`": $_said"`,
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
	s.Part = record.Sum(name)[:16]
	file := shell.Quote(name)
	s.Ask = script(
		"if [ -L "+file+" ]; then die "+shell.Quote(name+" is a symbolic link")+"; fi",
		"if [ -f "+file+" ]; then",
		`  [ "$(stat -c %s -- `+file+`)" -le 500000 ] || die `+shell.Quote(name+" is too large to be restored if nobody gets in afterwards"),
		"  stat -c '%a %u %g' -- "+file, "  base64 -w0 <"+file, "fi")
	back := sshdRestart
	if g != sshdGate {
		back = ":"
	}
	for _, u := range restart {
		back += "\nsystemctl try-restart -- " + shell.Quote(unitFile(u)) + " || :"
	}
	s.Learn = func(answer string, s *Step) {
		first, text, there := strings.Cut(answer, "\n")
		content, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		switch words := strings.Fields(first); {
		case !there:
			s.Restore = script("drop "+file, back)
		case err != nil || len(words) != 3: // it is not known what to restore
			s.Restore = ":\n"
			s.Script = "die " + shell.Quote(name+" could not be read") + "\n"
		default:
			s.Restore = script(shell.Put(name, string(content), words[0], words[1], words[2]), back)
		}
	}
	if g == sshdGate {
		s.checkLogins()
	}
}

// checkLogins makes a change of the SSH server hold only if it answers, and lets somebody in if it did so before. It counts where
// nobody logs in from outside to see it.
func (s *Step) checkLogins() {
	s.Check = sshdAnswers
	ask, learn := s.Ask, s.Learn
	const end = "--"
	s.Ask = logins + script("logins", "echo "+end) + ask
	s.Learn = func(answer string, s *Step) {
		before, rest, _ := strings.Cut(answer, end+"\n")
		if users := strings.Fields(before); len(users) > 0 {
			s.Check += logins + script(`[ -n "$(logins)" ] || die `+shell.Quote("nobody could log in by SSH any more, as "+list(users)+" can now: give a user of the spec a key, or let root log in"))
		}
		if learn != nil {
			learn(rest, s)
		}
	}
}

// logins lists the users who can log in: with a key, or with a password where the server takes it.
const logins = `logins() {
  command -v sshd >/dev/null || return 0
  _set=" $(sshd -T 2>/dev/null | grep -E '^(permitrootlogin|passwordauthentication) ' | tr ' \n' '= ')"
  while IFS=: read -r _u _ _id _ _ _home _shell; do
    case $_shell in *nologin|*false|*sync) continue ;; esac
    _key= _word=
    if [ -f "$_home/.ssh/authorized_keys" ] && grep -qE '^[^#]*(ssh-|ecdsa-|sk-)' "$_home/.ssh/authorized_keys"; then _key=yes; fi
    case "$_set" in *" passwordauthentication=yes "*) if grep -q "^$_u:\\$" /etc/shadow; then _word=yes; fi ;; esac
    if [ "$_id" = 0 ]; then
      case "$_set" in
      *" permitrootlogin=no "*|*" permitrootlogin=forced-commands-only "*) continue ;;
      *" permitrootlogin=yes "*) ;;
      *) _word= ;;
      esac
    fi
    if [ -n "$_key$_word" ]; then echo "$_u"; fi
  done </etc/passwd
}
`

// sshdAnswers connects to the SSH server, which has to answer with a host key of this machine at each of its ports. IPv6 may be
// switched off, so it counts only where the server listens on nothing else.
const sshdAnswers = `if command -v sshd >/dev/null && { systemctl is-active --quiet ssh.service || systemctl is-active --quiet ssh.socket; } && command -v ssh-keyscan >/dev/null; then
  _mine=$(sshd -T | sed -n 's/^hostkey //p' | while read -r _f; do cut -d' ' -f2 "$_f.pub"; done)
  [ -n "$_mine" ] || die 'the SSH server has no host key'
  for _port in $(sshd -T | sed -n 's/^port //p' | sort -u); do
    _n=0
    _at=$(sshd -T | sed -n "s/^listenaddress \(.*\):$_port\$/\1/p" | tr -d '[]')
    case $_at in *0.0.0.0*) _at=$(printf '%s\n' "$_at" | sed -e '/^::$/d' -e 's/^0.0.0.0$/127.0.0.1/') ;; ::) _at=::1 ;; esac
    until for _ip in $_at; do
      ssh-keyscan -T 3 -p "$_port" "$_ip" 2>/dev/null
    done | cut -d' ' -f3 | grep -qxF -e "$_mine"; do
      _n=$((_n + 1)); [ $_n -lt 30 ] || die "the SSH server does not answer on port $_port with a host key of this machine"
      sleep 0.5
    done
  done
fi
`
