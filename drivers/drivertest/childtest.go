package drivertest

// A stand-in for Proxmox VE on machines where tests install the agent of a child.

// PVEum is pveum(1) as far as that takes, for /usr/bin/pveum: a shell script that keeps users, roles, entries and tokens below /etc/pve, and user.cfg of them.
// It does not know the privileges of Proxmox VE 9 for the guest agent.
const PVEum = `#!/bin/sh
set -eu
d=/etc/pve
# config writes user.cfg
config() {
  {
    for f in "$d"/users/*; do if [ -f "$f" ]; then echo "user:${f##*/}:1:0::::agent of this machine::"; fi; done
    for f in "$d"/roles/*; do if [ -f "$f" ]; then echo "role:${f##*/}:$(tr '\n' ',' <"$f" | sed 's/,$//'):"; fi; done
    if [ -f "$d/acl" ]; then while read -r path who role; do echo "acl:1:$path:$who:$role:"; done <"$d/acl"; fi
  } >"$d/user.cfg"
}
mkdir -p $d/priv $d/roles $d/users
fail() { echo "$1" >&2; exit 255; }
case "$1 $2" in
'role add')
  [ ! -f "$d/roles/$3" ] || fail "create role failed: role '$3' already exists"
  case $5 in *VM.GuestAgent*) fail 'invalid privilege' ;; esac
  printf '%s\n' "$5" >"$d/roles/$3"
  config ;;
'role modify')
  [ -f "$d/roles/$3" ] || fail "role '$3' does not exist"
  case $7 in *VM.GuestAgent*) fail 'invalid privilege' ;; esac
  [ "$4 $5 $6" = '--append 1 --privs' ] || fail 'this takes privileges away'
  grep -qxF "$7" "$d/roles/$3" || printf '%s\n' "$7" >>"$d/roles/$3"
  config ;;
'role delete')
  rm "$d/roles/$3"
  config ;;
'user list')
  printf '['
  sep=
  for f in "$d"/users/*; do
    if [ -f "$f" ]; then printf '%s{"enable":1,"userid":"%s"}' "$sep" "${f##*/}"; sep=,; fi
  done
  echo ']' ;;
'user add')
  [ ! -f "$d/users/$3" ] || fail "user '$3' already exists"
  echo >"$d/users/$3"
  config ;;
'acl delete')
  grep -vxF "$3 $5 $7" "$d/acl" >"$d/acl.new" || :
  mv -f "$d/acl.new" "$d/acl"
  config ;;
'acl modify')
  [ -f "$d/users/$5" ] && [ -f "$d/roles/$7" ] || fail 'no such user or role'
  grep -qxF "$3 $5 $7" "$d/acl" 2>/dev/null || echo "$3 $5 $7" >>"$d/acl"
  config ;;
'user token')
  [ -f "$d/users/$4" ] || fail "no such user ('$4')"
  touch "$d/priv/token.cfg"
  case $3 in
  list)
    printf '['
    sep=
    while read -r id _; do
      if [ "${id%!*}" = "$4" ]; then printf '%s{"expire":0,"privsep":0,"tokenid":"%s"}' "$sep" "${id#*!}"; sep=,; fi
    done <"$d/priv/token.cfg"
    echo ']' ;;
  add)
    ! grep -qF "$4!$5 " "$d/priv/token.cfg" || fail 'Token already exists.'
    echo x >>"$d/tokens-made"
    value=canary-$(wc -l <"$d/tokens-made" | tr -d ' ')
    echo "$4!$5 $value" >>"$d/priv/token.cfg"
    printf '{"full-tokenid":"%s!%s","info":{"privsep":"0"},"value":"%s"}\n' "$4" "$5" "$value" ;;
  remove)
    grep -qF "$4!$5 " "$d/priv/token.cfg" || fail 'no such token'
    grep -vF "$4!$5 " "$d/priv/token.cfg" >"$d/priv/token.new" || :
    mv -f "$d/priv/token.new" "$d/priv/token.cfg" ;;
  esac ;;
*) fail "unknown command $*" ;;
esac
`
