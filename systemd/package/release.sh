#!/bin/sh
# release.sh VERSION OUT  makes all files of a release in the folder OUT.
#
# GPG_KEY is the file of the private OpenPGP key that signs the apt repository, and
# MINISIGN_KEY that of the minisign key, which has no password, that signs the checksums.
# Without them nothing is signed. URL is where the folder apt will be served. GO is the
# go command, ARCHES are the architectures. VERSION has a section in CHANGELOG.md.
#
# These make the keys, as gpg.asc and minisign.key:
#
#   gpg --batch --passphrase '' --quick-generate-key releases ed25519 sign never
#   gpg --armor --export-secret-keys releases >gpg.asc
#   minisign -G -W -s minisign.key
set -eu

version=$1
out=$(mkdir -p "$2" && cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
go=${GO:-go}
SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
case $version in
[0-9]*.[0-9]*.[0-9]*) ;;
*) echo "$version is not a version such as 1.2.3" >&2 && exit 1 ;;
esac
awk -v head="## [$version]" '/^## / { on = index($0, head) == 1 } on' "$top/CHANGELOG.md" >"$out/notes.md"
if [ ! -s "$out/notes.md" ]; then
  echo "CHANGELOG.md has no section [$version]" >&2
  exit 1
fi

for arch in ${ARCHES:-amd64 arm64}; do
  "$here/package.sh" "$version" "$arch" "$out"
done
mkdir -p "$out/apt"
cp "$out"/*.deb "$out/apt/"
"$here/repository.sh" "$out/apt" ${GPG_KEY:+"$GPG_KEY"}
(cd "$top" && ${SBOM:-"$go" run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0} \
  app -json -licenses -noserial -main cmd/homestak-gitops -output "$out/homestak-gitops-$version.cdx.json" .)
sed -i '/"timestamp": /d' "$out/homestak-gitops-$version.cdx.json"
(cd "$out" && sha256sum ./*.deb ./*.tar.gz ./*.json | sed 's|\./||' >SHA256SUMS)
if [ -n "${MINISIGN_KEY:-}" ]; then
  minisign -S -s "$MINISIGN_KEY" -m "$out/SHA256SUMS" -t "homestak-gitops $version"
else
  echo "SHA256SUMS is not signed: MINISIGN_KEY names no key" >&2
fi
