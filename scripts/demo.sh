#!/usr/bin/env bash
# Installs the program and shows its main job on what needs no server: a volume on SQLite and local
# files is formatted and mounted, a tree copied in, read back and compared, and unmounted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh run
jfs=$PWD/.venv/bin/jfs

demo=$(mktemp -d "${TMPDIR:-/tmp}/juicepy-demo.XXXXXX")
mount_point=$demo/mnt
meta=sqlite3://$demo/meta.db
finished=no

say() { printf '\n== %s\n' "$*"; }

clean_up() {
    if grep -q " $mount_point " /proc/mounts; then "$jfs" umount --force "$mount_point" || true; fi
    if [ $finished = no ]; then
        echo "DEMO FAILED; the end of the log:" >&2
        tail -n 20 "$demo/jfs.log" >&2 2>/dev/null || true
    fi
    rm -rf "$demo"
}
trap clean_up EXIT

mount_volume() { # cache directory
    "$jfs" --quiet mount -d "$meta" "$mount_point" --log "$demo/jfs.log" --cache-dir "$demo/$1"
}

sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum); }

say "Format a volume: metadata in SQLite, data in local files"
"$jfs" --quiet format "$meta" demo --bucket "$demo/objects"
"$jfs" config "$meta" | head -n 3

say "Mount it"
mkdir "$mount_point"
mount_volume cache1
df -h "$mount_point" | sed 's/^/   /'

say "Copy a tree in (the Python standard library) and read it back"
source=$demo/tree
mkdir "$source"
library=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
tar -C "$library" --exclude=site-packages --exclude=dist-packages --exclude=test \
    --exclude=__pycache__ --exclude='*.so' --exclude='config-*' -cf - . | tar -C "$source" -xf -
begin=$(date +%s%N)
cp -a "$source" "$mount_point/tree"
took=$((($(date +%s%N) - begin) / 1000000))
count=$(find "$source" -type f | wc -l)
echo "   $count files, $(du -sh --apparent-size "$source" | cut -f1) in $took ms"
diff -r "$source" "$mount_point/tree"
echo "   diff -r: no difference"

say "What the mount tells of itself (.stats, status, info)"
grep -E '^juicefs_(fuse_ops_total|meta_ops_total|object_request_data_bytes|blockcache_hits)' \
    "$mount_point/.stats" | grep -Ei 'create|write|lookup|put|hits' | sed 's/^/   /' | head -n 12
"$jfs" status "$meta" | grep -A 6 '"Stat"' | sed 's/^/   /'
"$jfs" info "$mount_point/tree/os.py" | sed 's/^/   /'

say "Unmount, mount again with an empty cache, compare every file by SHA-256"
sums "$source" >"$demo/before.sha256"
"$jfs" umount "$mount_point"
mount_volume cache2
sums "$mount_point/tree" >"$demo/after.sha256"
cmp "$demo/before.sha256" "$demo/after.sha256"
echo "   $(wc -l <"$demo/after.sha256") files are the same"

say "Unmount"
"$jfs" umount "$mount_point"
! grep -q " $mount_point " /proc/mounts
finished=yes
echo
echo "DEMO PASSED: $count files went in and came back the same"
