#!/bin/sh
# reproducible.sh ARCH  makes the files of a commit twice, in clones in two folders, and
#                       fails if they differ in one byte.
set -eu

top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export COMPRESSION=gzip
commit=$(git -C "$top" rev-parse HEAD)

for clone in one "two of them"; do
  git clone --quiet --no-hardlinks "$top" "$work/$clone"
  git -C "$work/$clone" checkout --quiet --detach "$commit"
  "$work/$clone/systemd/package/package.sh" 0.0.0 "$1" "$work/out-$clone"
  SOURCE_DATE_EPOCH=$(git -C "$work/$clone" log -1 --format=%ct) "$work/$clone/systemd/package/repository.sh" "$work/out-$clone" 2>/dev/null
done
diff -r "$work/out-one" "$work/out-two of them"
(cd "$work/out-one" && sha256sum -- *)
