#!/bin/sh
# install.sh [BINARY]     installs program, units and an example agent.hcl
# install.sh --uninstall  removes them again
#
# PREFIX (/usr/local) is the folder for program and units. DESTDIR is a folder to put
# everything under, for packages: then the script does not call the systemd of this
# machine. Both can be run any number of times. Your files in /etc/homestak-gitops stay.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
units="homestak-gitops.service homestak-gitops-once.service homestak-gitops.timer homestak-gitops-host.socket homestak-gitops-host.service homestak-gitops-upgrade.timer homestak-gitops-upgrade.service"

bin=$root$prefix/bin
unitdir=$root$prefix/lib/systemd/system
userdir=$root$prefix/lib/sysusers.d
etc=$root/etc/homestak-gitops

# live reports whether the script installs on this machine itself, and systemd runs.
live() {
  [ -z "$root" ] && [ -d /run/systemd/system ]
}

# place MODE FILE TARGET replaces TARGET in one step, also while the old file is in use.
place() {
  install -D -m "$1" "$2" "$3.new"
  mv -f "$3.new" "$3"
}

put() {
  program=${1:-$here/../bin/homestak-gitops}
  if [ ! -x "$program" ]; then
    echo "$program is not there: run make build, or name the program: install.sh FILE" >&2
    exit 1
  fi
  runs=no # before its file is another one, which makes it end and start again
  if live && systemctl --quiet is-active homestak-gitops.service; then
    runs=yes
  fi
  if ! cmp -s "$program" "$bin/homestak-gitops"; then
    place 0755 "$program" "$bin/homestak-gitops"
  fi
  for unit in $units; do
    place 0644 "$here/$unit" "$unitdir/$unit"
  done
  place 0644 "$here/homestak-gitops.sysusers.conf" "$userdir/homestak-gitops.conf"
  if [ ! -e "$etc/agent.hcl" ]; then
    place 0644 "$here/agent.hcl" "$etc/agent.hcl"
  fi
  if live; then
    systemd-sysusers "$userdir/homestak-gitops.conf"
    systemctl daemon-reload
    if [ $runs = yes ]; then
      echo "the agent starts this program once no pass and no command is at work; at once: systemctl restart homestak-gitops"
      return
    fi
  fi
  echo "installed. Next: edit /etc/homestak-gitops/agent.hcl, put secrets into"
  echo "/etc/homestak-gitops/secrets.yaml (root's, mode 0600), or for a secrets.sops.yaml in"
  echo "the site an age identity into age-keys.txt there, then"
  echo "systemctl enable --now homestak-gitops"
}

take() {
  if live; then
    # Stopping waits for the steps that run. A unit that does not exist is not an error.
    for unit in homestak-gitops-upgrade.timer homestak-gitops-upgrade.service homestak-gitops-host.socket homestak-gitops-host.service homestak-gitops.timer homestak-gitops-once.service homestak-gitops.service; do
      if [ -e "$unitdir/$unit" ]; then
        systemctl disable --quiet --now "$unit"
      fi
    done
  fi
  for unit in $units; do
    rm -f "$unitdir/$unit"
  done
  rm -f "$bin/homestak-gitops" "$userdir/homestak-gitops.conf"
  if cmp -s "$here/agent.hcl" "$etc/agent.hcl"; then
    rm -f "$etc/agent.hcl"
  fi
  if [ -d "$etc" ]; then
    rmdir --ignore-fail-on-non-empty "$etc"
  fi
  if live; then
    systemctl daemon-reload
    systemctl reset-failed homestak-gitops.service homestak-gitops-once.service homestak-gitops.timer 2>/dev/null || true
  fi
  echo "removed. What it made stays: /var/lib/homestak-gitops (history, its clone), the"
  echo "user homestak-gitops, and what you wrote in /etc/homestak-gitops."
}

case ${1:-} in
--uninstall) take ;;
-*)
  echo "usage: install.sh [BINARY] | install.sh --uninstall" >&2
  exit 1
  ;;
*) put "${1:-}" ;;
esac
