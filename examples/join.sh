#!/bin/sh
# Makes a machine join as a host below another one at its first boot; docs/howto/add-a-remote-host.md says how to use it.
# json is what "homestak-gitops token mint NAME --join --out FILE" writes.
set -eu
json='{"url": "https://192.0.2.10:44443", "pin": "sha256:…", "token": "…"}'
program=/usr/local/bin/homestak-gitops
value() { printf '%s' "$json" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }
mkdir -p /etc/homestak-gitops
(umask 077; printf '%s\n' "$json" >/etc/homestak-gitops/join.json)
if [ ! -x "$program" ]; then
  command -v curl >/dev/null || { apt-get update && apt-get install --yes curl; }
  pin=$(value pin | cut -d: -f2 | perl -ne 'chomp; print pack "H*", $_' | base64)
  printf 'Authorization: Bearer %s\n' "$(value token)" |
    curl -fsSk --retry 60 --retry-delay 5 --retry-all-errors --pinnedpubkey "sha256//$pin" -H @- \
      -o "$program.new" "$(value url)/agent/linux-$(dpkg --print-architecture)"
  chmod 755 "$program.new"
  mv "$program.new" "$program"
fi
"$program" join
