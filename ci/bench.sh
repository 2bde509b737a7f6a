#!/usr/bin/env bash
# Sets up xzarr3 and its peers in .venv-bench and measures them, as ci/bench/NOTES.md tells: forty minutes on two cores.
# Arguments go to ci/bench (`bash ci/bench.sh --only "full read"`); VENV names another directory for the environment.
# `--only cores` measures reads and writes by number of cores, `--only lock` those beside a thread that holds
# Python's lock; each replaces its own section of ci/bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh

# The peers need a newer Python than xzarr3: current releases of zarr-python ask for 3.12.
usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

venv="${VENV:-.venv-bench}"
if ! prepare_venv "$venv" object bench; then
    echo "the bench needs Python >= 3.12 and the package index" >&2
    exit 1
fi
exec "$venv/bin/python" ci/bench "$@"
