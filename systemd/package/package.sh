#!/bin/sh
# package.sh VERSION ARCH OUT  makes the package of Debian and the archive of one
#                              architecture (amd64, arm64) in the folder OUT.
#
# GO is the go command. COMPRESSION is that of the package, xz at level 1 unless set: level 6 saves a
# tenth, and takes five times as long. The same commit gives the same bytes, in any folder:
# all times are that of the commit, and all files belong to root.
set -eu

version=$1 arch=$2
out=$(mkdir -p "$3" && cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
go=${GO:-go}
SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build ARCH FILE builds the program.
build() {
  CGO_ENABLED=0 GOOS=linux GOARCH=$1 "$go" -C "$top" build -trimpath -buildvcs=true \
    -ldflags "-s -w -X main.release=$version" -o "$2" ./cmd/homestak-gitops
}

build "$arch" "$work/bin/homestak-gitops"
# The pages are written by the program: by this one where it can run, else by one that can.
program=$work/bin/homestak-gitops
if [ "$arch" != "$("$go" env GOHOSTARCH)" ]; then
  program=$work/native
  build "$("$go" env GOHOSTARCH)" "$program"
fi
"$program" docs "$work/docs"
mkdir "$work/completions"
for shell in bash zsh fish; do
  "$program" completion "$shell" >"$work/completions/$shell"
done

# The package has what make install installs, and pages and completions beside it.
root=$work/root
DESTDIR=$root PREFIX=/usr "$here/../install.sh" "$work/bin/homestak-gitops" >"$work/log"
share=$root/usr/share
# An example that everybody edits is no conffile: dpkg would ask at each change of it.
install -D -m 0644 "$root/etc/homestak-gitops/agent.hcl" "$share/homestak-gitops/agent.hcl"
rm -r "$root/etc"
mkdir -p "$share/man/man1" "$share/lintian/overrides"
for page in "$work"/docs/man/*.1; do
  gzip -9n <"$page" >"$share/man/man1/$(basename "$page").gz"
done
install -D -m 0644 "$work/completions/bash" "$share/bash-completion/completions/homestak-gitops"
install -D -m 0644 "$work/completions/zsh" "$share/zsh/vendor-completions/_homestak-gitops"
install -D -m 0644 "$work/completions/fish" "$share/fish/vendor_completions.d/homestak-gitops.fish"
install -m 0644 "$here/lintian-overrides" "$share/lintian/overrides/homestak-gitops"
doc=$share/doc/homestak-gitops
install -D -m 0644 "$here/copyright" "$doc/copyright"
maintainer="homestak <homestak@users.noreply.github.com>"
gzip -9n >"$doc/changelog.gz" <<EOF
homestak-gitops ($version) unstable; urgency=medium

  * See https://github.com/homestak/homestak-gitops/blob/main/CHANGELOG.md

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF

mkdir "$root/DEBIAN"
format=$(sed -n 's/^const Format = \([0-9]*\).*/\1/p' "$top/engine/durable/format.go")
for script in preinst postinst prerm postrm; do
  sed "s/@FORMAT@/$format/; s/@VERSION@/$version/" "$here/$script" >"$root/DEBIAN/$script"
  chmod 0755 "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
cat >"$root/DEBIAN/control" <<EOF
Package: homestak-gitops
Version: $version
Architecture: $arch
Section: admin
Priority: optional
Depends: systemd (>= 252)
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Maintainer: $maintainer
Homepage: https://github.com/homestak/homestak-gitops
Description: GitOps for Proxmox VE
 The agent follows a branch of a git repository, and makes the virtual
 machines, containers and other objects of a Proxmox VE host as the branch
 declares them. Without an agent, plan and apply do the same once.
EOF
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
# shellcheck disable=SC2086 # it may be two words
dpkg-deb --root-owner-group -Z${COMPRESSION:-xz -z1} --build "$root" "$out/homestak-gitops_${version}_$arch.deb" >"$work/log"

# The archive has the folder that install.sh expects.
name=homestak-gitops-$version
mkdir -p "$work/$name/share"
mv "$work/bin" "$work/$name/bin"
cp -R "$top/systemd" "$work/$name/systemd"
cp -R "$work/docs/man" "$work/completions" "$work/$name/share/"
cp "$top/LICENSE" "$top/CHANGELOG.md" "$top/README.md" "$work/$name/"
rm -r "$work/$name/systemd/package" "$work/$name/systemd/files.go"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=go-w -cf - "$name" |
  gzip -9n >"$out/${name}_linux_$arch.tar.gz"
