package aspect

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// checkLogins keeps a change of the SSH server only if it responds and a login is possible, as far as they were
// before. It is used if there is no login from outside.
func (s *Step) checkLogins() {
	const runs, end = "runs", "--"
	ask, learn := s.Ask, s.Learn
	s.Ask = logins + script("logins", "echo "+end, "if "+sshdRuns+"; then echo "+runs+"; fi", "echo "+end) + ask
	s.Learn = func(answer string, s *Step) {
		before, rest, _ := strings.Cut(answer, end+"\n")
		state, rest, _ := strings.Cut(rest, end+"\n")
		if slices.Contains(strings.Fields(state), runs) {
			s.Check = sshdAnswers
		}
		if users := strings.Fields(before); len(users) > 0 {
			s.Check += logins + script(`[ -n "$(logins)" ] || die `+guest.Quote("no user could log in by SSH any more, as "+list(users)+" can now: give a user of the spec a key, or let root log in"))
		}
		if learn != nil {
			learn(rest, s)
		}
	}
}

// sshdRuns is a condition: the server runs, or systemd listens for it.
const sshdRuns = `command -v sshd >/dev/null && { systemctl is-active --quiet ssh.service || systemctl is-active --quiet ssh.socket; }`

// logins lists the users who can log in: with a key, or with a password if the server accepts it. sshd evaluates
// its configuration for each of them (sshd(8), -T and -C), as for a login from the default gateway, so that Match
// blocks count. A rule for certain addresses counts if it allows a login. Programs and certificates that provide
// keys are assumed to do so.
const logins = settingValue + theirs + `# hits NAME... <patterns: says yes if one is for a name
hits() { tr ' ' '\n' | while read -r _p; do for _n; do case $_n in ${_p%%@*}) echo yes ;; esac; done; done; }
admitted() {
  [ -z "$(value denyusers | sed /@/d | hits "$_u")" ] || return
  [ -z "$(value denygroups | hits $_groups)" ] || return
  [ -z "$(value allowusers)" ] || [ -n "$(value allowusers | hits "$_u")" ] || return
  [ -z "$(value allowgroups)" ] || [ -n "$(value allowgroups | hits $_groups)" ]
}
keyed() {
  [ "$(value pubkeyauthentication)" = yes ] || return
  case $(value authorizedkeyscommand)$(value trustedusercakeys) in ''|none|nonenone) ;; *) return 0 ;; esac
  for _f in $(value authorizedkeysfile | sed -e "s,%h,$_home,g" -e "s,%u,$_u,g"); do
    case $_f in /*) ;; *) _f=$_home/$_f ;; esac
    if theirs "$_u" dd if="$_f" iflag=nonblock,fullblock,count_bytes count=65536 bs=65536 status=none 2>/dev/null | grep -qE '^[^#]*(ssh-|ecdsa-|sk-)'; then return 0; fi
  done
  return 1
}
# enough METHOD...: whether the user has what each of them asks for
enough() { for _m; do case $_m in publickey) [ -n "$_key" ] ;; password) [ -n "$_word" ] ;; keyboard-interactive*) [ -n "$_talk" ] ;; *) false ;; esac || return; done; }
logins() (
  command -v sshd >/dev/null || return 0
  set -f
  [ -d /run/sshd ] || mkdir -m 0755 /run/sshd
  _from=$(ip -4 route show default 2>/dev/null | sed -n 's/.* via \([0-9.]*\).*/\1/p' | head -n 1)
  _from=${_from:-127.0.0.1}
  _here=$(ip -4 route get "$_from" 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p')
  _today=$(($(date +%s) / 86400)) _port=$(` + sshdSettings + ` 2>/dev/null | sed -n 's/^port //p' | head -n 1)
  while IFS=: read -r _u _ _id _ _ _home _shell; do
    case $_u in ''|[+-]*) continue ;; esac # of NIS (nsswitch.conf(5), compat): no account
    case $_shell in *nologin|*false|*sync) continue ;; esac
    _shadow=$(grep "^$_u:" /etc/shadow || :)
    _until=$(printf '%s\n' "$_shadow" | cut -d: -f8)
    if [ -n "$_until" ] && [ "$_until" -le "$_today" ]; then continue; fi
    _set=$(sshd -T -C "user=$_u,host=$_from,addr=$_from,laddr=${_here:-127.0.0.1},lport=$_port,rdomain=" 2>/dev/null) || continue
    case $(value usepam)$_shadow in no$_u:!*) continue ;; esac
    case $(value forcecommand) in internal-sftp*) continue ;; esac
    _groups=$(id -Gn -- "$_u") _key= _word= _talk=
    admitted || continue
    if keyed; then _key=yes; fi
    case $_shadow in $_u:\$*)
      if [ "$(value passwordauthentication)" = yes ]; then _word=yes; fi
      if [ "$(value kbdinteractiveauthentication)$(value usepam)" = yesyes ]; then _talk=yes; fi ;;
    esac
    if [ "$_id" = 0 ]; then
      case $(value permitrootlogin) in
      no|forced-commands-only) continue ;;
      yes) ;;
      *) _word= _talk= ;;
      esac
    fi
    _ways=$(value authenticationmethods)
    case $_ways in ''|any) _ways="publickey password keyboard-interactive" ;; esac
    for _way in $_ways; do
      if enough $(printf %s "$_way" | tr , ' '); then echo "$_u"; break; fi
    done
  done </etc/passwd
)
`

// sshdAnswers connects to the SSH server, which has to answer with a host key of this machine at each of its ports. IPv6 may be
// switched off, so it counts only where the server listens on nothing else. One that has no public half beside it is read for that.
const sshdAnswers = settingValue + `if ! command -v ssh-keyscan >/dev/null; then
  ` + sshdRuns + ` || die 'the SSH server ended'
else
  _n=0 # a server that just ended takes its folder away
  until { [ -d /run/sshd ] || mkdir -m 0755 /run/sshd; } && _set=$(` + sshdSettings + `); do
    _n=$((_n + 1)); [ $_n -lt 10 ] || die 'the settings of the SSH server cannot be read'
    sleep 0.5
  done
  _mine=$(value hostkey | while read -r _f; do { cut -d' ' -f2 "$_f.pub" || ssh-keygen -y -f "$_f" | cut -d' ' -f2; } 2>/dev/null || :; done)
  [ -n "$_mine" ] || die 'the SSH server has no host key'
  for _port in $(value port | sort -u); do
    read -r _now _ </proc/uptime
    _end=$((${_now%.*} + 20))
    _at=$(value listenaddress | sed -n "s/:$_port\$//p" | tr -d '[]')
    case $_at in *0.0.0.0*) _at=$(printf '%s\n' "$_at" | sed -e '/^::$/d' -e 's/^0.0.0.0$/127.0.0.1/') ;; ::) _at=::1 ;; esac
    until for _ip in $_at; do
      ssh-keyscan -T 2 -p "$_port" "$_ip" 2>/dev/null
    done | cut -d' ' -f3 | grep -qxF -e "$_mine"; do
      read -r _now _ </proc/uptime
      [ "${_now%.*}" -lt "$_end" ] || die "the SSH server does not answer on port $_port with a host key of this machine"
      sleep 0.5
    done
  done
fi
`

// settingValue gives the values of a setting of what sshd -T says.
const settingValue = `value() { printf '%s\n' "$_set" | sed -n "s/^$1 //p"; }
`
