#!/usr/bin/env bash
# Installs what this repository needs on Debian 12 or newer, into the system (apt) and .venv (pip).
#   scripts/install.sh run     what the program needs
#   scripts/install.sh test    also the servers and tools of the tests, and azurite (npm)
# May be run again: what is there already is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-run}
case $mode in
run | test) ;;
*)
    echo "usage: $0 run|test" >&2
    exit 2
    ;;
esac

say() { printf '== %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# command:package, for what is not there under any path that is looked at
run_needs=(fusermount3:fuse3 python3:python3)
test_needs=(
    redis-server:redis-server redis-cli:redis-tools mariadbd:mariadb-server postgres:postgresql
    setfacl:acl getfattr:attr lsattr:e2fsprogs fio:fio git:git gcc:gcc make:make openssl:openssl
    node:nodejs npm:npm curl:curl ps:procps setpriv:util-linux
)

have() {
    PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null && return
    case $1 in
    postgres) compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
    *) return 1 ;;
    esac
}

missing=()
need() {
    local pair
    for pair in "$@"; do
        have "${pair%%:*}" || missing+=("${pair#*:}")
    done
}

need "${run_needs[@]}"
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
if [ "$mode" = test ]; then
    need "${test_needs[@]}"
    # llfuse, the second front end, is built from source
    [ -e /usr/include/fuse/fuse_lowlevel.h ] || missing+=(libfuse-dev)
    have pkg-config || missing+=(pkg-config)
    have gcc && echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1 || missing+=(libc6-dev)
    python3 -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' \
        2>/dev/null || missing+=(python3-dev)
fi
if [ ${#missing[@]} -gt 0 ]; then
    say "apt: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -qq
    as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "python3 is older than 3.11: $(python3 --version)" >&2
    exit 1
}

extras=""
[ "$mode" = test ] && extras="[test,llfuse]"
[ -x .venv/bin/python ] || {
    say "python: .venv"
    python3 -m venv .venv
}
stamp=".venv/.installed$extras"
wanted=$(cat setup.cfg pyproject.toml | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "pip: juicepy$extras"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip
    .venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".$extras"
    printf '%s' "$wanted" >"$stamp"
fi

if [ "$mode" = test ] && ! PATH="$PWD/.tools/node_modules/.bin:$PATH" command -v azurite-blob >/dev/null; then
    say "npm: azurite"
    mkdir -p .tools
    get_azurite() { npm install --loglevel=error --no-audit --no-fund --prefix .tools azurite; }
    get_azurite >/dev/null || get_azurite >/dev/null # the registry may have a bad moment
fi

if [ ! -e /dev/fuse ]; then
    as_root modprobe fuse 2>/dev/null || as_root mknod -m 666 /dev/fuse c 10 229 || true
    [ -e /dev/fuse ] || {
        echo "/dev/fuse is missing: load the module fuse, or give the container the device" >&2
        exit 1
    }
fi
