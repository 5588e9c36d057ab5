#!/usr/bin/env bash
# Formats META_URL as VOLUME where that is not done yet, and mounts it at MOUNT_POINT.
# STORAGE, BUCKET, ACCESS_KEY, SECRET_KEY: the object store. META_PASSWORD: of the database.
set -euo pipefail

: "${META_URL:?}" "${VOLUME:=demo}" "${STORAGE:=file}" "${BUCKET:=/var/jfs}" "${MOUNT_POINT:=/jfs}"

mkdir -p "$MOUNT_POINT"
jfs format --no-update --storage "$STORAGE" --bucket "$BUCKET" "$META_URL" "$VOLUME"
exec jfs mount --metrics 0.0.0.0:9567 "$META_URL" "$MOUNT_POINT"
