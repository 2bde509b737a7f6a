#!/usr/bin/env bash
# Runs the tests of GDAL, in tests/interop/test_interop.py and tests/checks/test_readers.py, with GDAL 3.13, the
# first that knows shards.
# The package index has no binary GDAL of its own. The wheel of pyramids-core holds one with its bindings;
# these alone are used, so nothing that pyramids-core depends on is installed. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
venv="${VENV:-.venv-test}"
prepare_test_venv "$venv"

wheel="pyramids-core==0.72.0"
gdal="$venv/gdal"
if [ "$(cat "$gdal/installed" 2>/dev/null)" != "$wheel" ]; then
    echo "== installing the GDAL of $wheel into $gdal"
    rm -rf "$gdal"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --only-binary :all: --target "$gdal" "$wheel"
    printf '%s' "$wheel" >"$gdal/installed"
fi
export PYTHONPATH="$gdal/pyramids/_vendor"
"$venv/bin/python" -c 'from osgeo import gdal; print("== GDAL", gdal.__version__)'
exec "$venv/bin/python" -m pytest -n "${JOBS:-logical}" --maxprocesses 8 -m "slow or not slow" -k gdal \
    tests/interop/test_interop.py tests/checks/test_readers.py "$@"
