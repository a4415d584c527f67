package aspect

// aptLog has what the apt that runs says; only root reads it.
const aptLog = "/run/homestak-gitops.apt"

// AptState is the last line that apt wrote: "Get:3 http://deb.debian.org/debian …", "Unpacking jq (1.7.1-3) ...".
const AptState = "tail -n 1 " + aptLog + " 2>/dev/null | cut -c1-160\n"

// AptGet is the functions apt_get and reach.
//
// apt_get runs apt without questions, keeps modified configuration files, waits for another apt, and retries while
// a mirror responds. apt itself only waits for the lock of dpkg (apt.conf(5), DPkg::Lock::Timeout), so apt_get
// waits for the other two.
//
// reach [OPTION...] fails with a sentence in _net if no mirror can be read: apt would take minutes to say so. It
// requests the first file of at most two mirrors as apt does, through its proxy if there is one, and twice if need
// be. A mirror that refuses counts as reachable.
const AptGet = `reach() {
  _proxy=$(apt-config dump 2>/dev/null | sed -nE 's/^Acquire::https?::[Pp]roxy(::[^ ]*)? "([^"]+)";.*/\2/p' | head -n 1)
  for _round in 1 2; do
    _net= _hosts=' '
    for _uri in $(apt-get -q --print-uris "$@" update 2>/dev/null | sed -nE "s,^'(https?://[^']*/(In)?Release)'.*,\1,p"); do
      _host=${_uri#*://} _host=${_host%%/*} _host=${_host##*@}
      case $_hosts in *" $_host "*) continue ;; *" "*" "*" "*) break ;; esac
      _hosts="$_hosts$_host "
      _name=${_host%:*}
      case $_host in \[*) _name= ;; esac
      if [ -z "$_proxy" ] && [ -n "$_name" ] && ! timeout 10 getent ahosts "$_name" >/dev/null 2>&1; then
        _servers=$(sed -n 's/^nameserver *//p' /etc/resolv.conf 2>/dev/null | tr '\n' ' ')
        _servers=${_servers:-none }
        _net="${_net:-the name $_name cannot be resolved on this machine: check its name servers in /etc/resolv.conf (${_servers% })}"
        continue
      fi
      _got=/run/homestak-gitops.reach.$$
      _said=$(timeout 30 /usr/lib/apt/apt-helper -q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 download-file "$_uri" "$_got" 2>&1 9>&-) && _said="  200  " || :
      rm -f "$_got"
      case $_said in *"  "[2345][0-9][0-9]"  "*) _net=; return 0 ;; esac # what refuses now is retried by apt_get
      _why=$(printf '%s\n' "$_said" | sed -n 's/^E: //p' | head -n 1)
      _net="${_net:-the mirror $_host of apt does not answer${_proxy:+ over the proxy ${_proxy##*@}}: ${_why:-it took more than 30 s}}"
    done
    if [ -z "$_net" ]; then return 0; fi
    if [ "$_round" = 1 ]; then sleep 2; fi
  done
  return 1
}
apt_get() {
  _try=0 _began=$(date +%s)
  rm -f ` + aptLog + ` && (umask 077 && : >` + aptLog + `)
  while :; do
    apt-get -q -y -o DPkg::Lock::Timeout="${APT_WAIT:-120}" -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold -o Acquire::Retries=3 -o APT::Color=0 -o Dpkg::Use-Pty=0 "$@" >` + aptLog + ` 2>&1 9>&- && { rm -f ` + aptLog + `; return 0; }
    _said=$(cat ` + aptLog + `)
    case $_said in
    *"E: Could not get lock"*|*"E: Unable to acquire"*|*"E: Unable to lock"*)
      if [ $(($(date +%s) - _began)) -ge "${APT_WAIT:-120}" ]; then
        say "another program holds the lock of apt: $(printf '%s\n' "$_said" | grep -m1 '^E:')"
        return 1
      fi ;;
    *"Temporary failure"*|*"Failed to fetch"*|*"Hash Sum mismatch"*|*"Connection failed"*|*"Could not connect"*|*"Some index files failed to download"*)
      _try=$((_try + 1))
      if [ "$_try" -ge 3 ]; then break; fi
      reach || { say "$_net"; break; } ;;
    *) break ;;
    esac
    sleep 2
  done
  rm -f ` + aptLog + `
  printf '%s\n' "$_said" | grep -vE '^(Get:|Hit:|Ign:|Fetched|Need to|After this|The following|Selecting|Preparing|Unpacking|Setting up|Reading|Building|\(Reading|Processing|debconf: delaying|[0-9]+ upgraded|  |$)' | tail -n 10 >&2
  return 1
}
`

const aptGet = AptGet
