#!/usr/bin/env bash
# Makes an environment in .venv-test, then checks lint, format, types and layers and runs the default tests.
# `bash ci/test.sh --all` runs every test: those with servers (installed in .servers), a browser, clusters, other
# libraries and killed processes as well. Other arguments go to pytest (`bash ci/test.sh --all -k demo`).
# VENV names another directory for the environment, JOBS another number of processes than there are cores.
set -euo pipefail
all=false
if [ "${1:-}" = --all ]; then
    all=true
    shift
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
venv="${VENV:-.venv-test}"
prepare_test_venv "$venv"
bin="$venv/bin"
unset PYTHONDONTWRITEBYTECODE  # With it each process that a test starts compiles the package anew.

echo "== ruff check"
"$bin/ruff" check .
echo "== ruff format"
"$bin/ruff" format --check .
echo "== mypy"
"$bin/mypy"
echo "== imports between layers"
"$bin/lint-imports" --no-cache >"$venv/imports.log" || { cat "$venv/imports.log"; exit 1; }
run=("$bin/python" -m pytest -n "${JOBS:-logical}" --maxprocesses 8 --dist worksteal --durations=25)
if ! "$all"; then
    echo "== pytest: the default tests (--all adds those with servers, clusters, other libraries and kills)"
    exec "${run[@]}" "$@"
fi
echo "== servers and a browser"
bash ci/servers.sh || true
bash ci/browser.sh || true
echo "== pytest: every test"
"${run[@]}" -m "slow or not slow" "$@"
if [ $# -eq 0 ]; then
    sanitizer="$(cc -print-file-name=libasan.so 2>/dev/null || true)"
    if [ -f "$sanitizer" ]; then
        echo "== pytest: native code with sanitizers"
        "$bin/python" ci/hatch_build.py --check
        LD_PRELOAD="$sanitizer $(cc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
            XZARR3_NATIVE="$PWD/build/checked/_native.so.1" \
            "${run[@]}" -m "slow or not slow" tests/io/test_native.py
    else
        echo "== no AddressSanitizer here: native code is not tested with it"
    fi
fi
