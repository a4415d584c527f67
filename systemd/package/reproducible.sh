#!/bin/sh
# reproducible.sh ARCH  makes the files of a commit twice, in clones in two folders, and
#                       fails if they differ in one byte.
#
# The second build compiles everything again: its build cache is empty.
set -eu

arch=$1
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git -C "$top" rev-parse HEAD)

# files CLONE makes the files of a commit into out-CLONE.
files() {
  git clone --quiet --shared "$top" "$work/$1"
  git -C "$work/$1" checkout --quiet --detach "$commit"
  "$work/$1/systemd/package/package.sh" 0.0.0 "$arch" "$work/out-$1"
  SOURCE_DATE_EPOCH=$(git -C "$work/$1" log -1 --format=%ct) "$work/$1/systemd/package/repository.sh" "$work/out-$1" 2>/dev/null
}

files one
GOCACHE="$work/cache" TZ=UTC-13 files "two of them"
diff -r "$work/out-one" "$work/out-two of them"
(cd "$work/out-one" && sha256sum -- *)
