#!/usr/bin/env bash
# Installs all that the tests need and passes them: format, lint, types, default tests, long tests.
# The last line is "ALL TESTS PASSED", or says which step failed; the exit code agrees.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit_s=${JFS_TEST_LIMIT_S:-5100} # of all steps together
export PATH="$PWD/.venv/bin:$PWD/.tools/node_modules/.bin:$PATH"
export PYTHONUNBUFFERED=1

left() { echo $((limit_s - SECONDS)); }

step() { # name, command...
    local name=$1
    shift
    printf '\n== %s (%d s)\n' "$name" "$SECONDS"
    if [ "$(left)" -le 0 ]; then
        echo "TESTS FAILED: no time left for: $name"
        exit 1
    fi
    timeout --kill-after=60 "$(left)" "$@"
    local code=$?
    if [ $code -ne 0 ]; then
        [ $code -eq 124 ] && echo "out of time after $SECONDS s"
        echo "TESTS FAILED: $name (exit code $code)"
        exit 1
    fi
}

step "install" bash scripts/install.sh test
step "format" ruff format --check .
step "lint" ruff check .
step "types" mypy --strict juicepy
# one process a core would do no harm, but two already wait most of their time for servers
pytest=(python -m pytest --numprocesses "${JFS_TEST_PROCESSES:-2}" --dist loadfile)
step "tests" "${pytest[@]}" -m "not long"
step "long tests" "${pytest[@]}" -m long
echo
echo "ALL TESTS PASSED in $SECONDS s"
