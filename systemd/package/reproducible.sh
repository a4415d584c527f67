#!/bin/sh
# reproducible.sh ARCH  makes the files of a commit twice, in clones in two folders, and
#                       fails if they differ in one byte.
#
# The second build compiles all packages of this module again: its build cache is a copy of
# the entries that other modules and the standard library need.
set -eu

arch=$1
top=$(cd "$(dirname "$0")/../.." && pwd)
go=${GO:-go}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git -C "$top" rev-parse HEAD)
module=$(cd "$top" && "$go" list -m)

# files CLONE makes the files of a commit into out-CLONE.
files() {
  git clone --quiet --shared "$top" "$work/$1"
  git -C "$work/$1" checkout --quiet --detach "$commit"
  "$work/$1/systemd/package/package.sh" 0.0.0 "$arch" "$work/out-$1"
  SOURCE_DATE_EPOCH=$(git -C "$work/$1" log -1 --format=%ct) "$work/$1/systemd/package/repository.sh" "$work/out-$1" 2>/dev/null
}

# needed FORMAT lists what the program is made of.
needed() {
  (cd "$work/one" && CGO_ENABLED=0 GOARCH=$arch "$go" list -trimpath -deps -export -f "$1" ./cmd/homestak-gitops)
}

files one
# A build ID begins with the first 15 bytes of the name of its entry, and an export file is the entry's content.
mkdir "$work/cache"
needed '{{if and .Export (or .Standard (not .Module.Main))}}{{.BuildID}} {{.Export}}{{end}}' |
  perl -MMIME::Base64 -ne '
    ($id, $file) = split;
    ($cache) = $file =~ m{(.*)/../};
    ($action = $id) =~ s{/.*}{};
    $action =~ tr{_-}{/+};
    $action = unpack "H*", decode_base64($action);
    print map { s{^\Q$cache\E/}{}r . "\0" } glob("$cache/" . substr($action, 0, 2) . "/$action*-a"), $file' |
  (cd "$("$go" env GOCACHE)" && xargs -0 cp --parents -t "$work/cache")
export GOCACHE="$work/cache" TZ=UTC-13
compiled() { find "$GOCACHE" -name '*-d' -exec grep -lm1 '^!<arch>$' {} + | wc -l; }
before=$(compiled)
files "two of them"
again=$(($(compiled) - before))

if [ "$again" -lt "$(needed '{{.ImportPath}}' | grep -c "^$module/")" ]; then
  echo "only $again packages were compiled again" >&2
  exit 1
fi
diff -r "$work/out-one" "$work/out-two of them"
(cd "$work/out-one" && sha256sum -- *)
echo "equal, though $again packages were compiled again"
