#!/usr/bin/env bash
# Sets up what the demo needs in .venv-demo and runs it. Arguments go to notebooks/demo.py.
set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
prepare_venv .venv-demo demo
root="$PWD"
cd "$here"
exec "$root/.venv-demo/bin/python" "$root/notebooks/demo.py" "$@"
