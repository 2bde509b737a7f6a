#!/usr/bin/env bash
# Sets up what the tests need in .venv-test and .servers, then checks lint, format, types and every test.
# Arguments go to pytest (`bash ci/test.sh -k demo`); VENV names another directory for the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
venv="${VENV:-.venv-test}"
prepare_venv "$venv" test
bin="$venv/bin"

echo "== ruff check"
"$bin/ruff" check .
echo "== ruff format"
"$bin/ruff" format --check .
echo "== mypy"
"$bin/mypy"
echo "== servers"
bash ci/servers.sh || true
echo "== pytest"
exec "$bin/python" -m pytest -m "slow or not slow" "$@"
