#!/bin/sh
# repository.sh DIR [GPG-KEY]  makes an apt repository of the packages in the folder DIR.
#
# With the file of a private OpenPGP key, it is signed, and DIR gets the public key and a
# .sources file for /etc/apt/sources.list.d, if URL says where DIR will be served.
set -eu

dir=$(cd "$1" && pwd)
key=${2:+$(realpath "$2")}
now=${SOURCE_DATE_EPOCH:?}
cd "$dir"

for deb in *.deb; do
  dpkg-deb -f "$deb"
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" "$(stat -c %s "$deb")" "$(sha256sum <"$deb" | cut -d' ' -f1)"
done >Packages
gzip -9nk -f Packages
{
  printf 'Origin: homestak\nLabel: homestak-gitops\nSuite: stable\nCodename: stable\nArchitectures: amd64 arm64\n'
  printf 'Date: %s\nSHA256:\n' "$(LC_ALL=C date -u -d "@$now" '+%a, %d %b %Y %H:%M:%S UTC')"
  for file in Packages Packages.gz; do
    printf ' %s %s %s\n' "$(sha256sum <"$file" | cut -d' ' -f1)" "$(stat -c %s "$file")" "$file"
  done
} >Release
rm -f InRelease Release.gpg
if [ -z "$key" ]; then
  echo "$dir is not signed: apt does not accept it" >&2
  exit
fi

GNUPGHOME=$(mktemp -d)
export GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME"' EXIT
gpg --batch --quiet --import "$key"
sign() { gpg --batch --quiet --yes --digest-algo SHA512 "$@"; }
sign --clearsign --output InRelease Release
sign --armor --detach-sign --output Release.gpg Release
gpg --batch --armor --export >homestak-gitops.asc
if [ -z "${URL:-}" ]; then
  echo "$dir has no .sources file: URL does not say where it will be served" >&2
  exit
fi
{
  printf 'Types: deb\nURIs: %s\nSuites: ./\nSigned-By:\n' "$URL"
  sed 's/^$/./; s/^/ /' homestak-gitops.asc
} >homestak-gitops.sources
