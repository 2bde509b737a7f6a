#!/usr/bin/env bash
# Runs the default tests of xarray, dask, codecs and formats with the oldest versions that pyproject.toml permits:
# those of ci/floors.txt, with Python 3.11, in an environment of its own. Arguments go to pytest.
# VENV names another directory for the environment, PYTHON another Python, JOBS another number of processes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
venv="${VENV:-.venv-floors}"
if [ -z "${PYTHON:-}" ] && usable_python python3.11; then
    PYTHON=python3.11  # The oldest that the package permits.
fi
wanted="$(cksum <pyproject.toml) $(cksum <ci/floors.txt) $PWD"
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
    echo "== installing the oldest versions into $venv"
    "$(find_python)" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
        --constraint ci/floors.txt --editable . cftime crc32c hypothesis ml_dtypes netCDF4 pytest pytest-xdist scipy zarr
    printf '%s' "$wanted" >"$venv/installed"
fi
"$venv/bin/python" -m pip list --disable-pip-version-check --format freeze | grep -E '^(numpy|xarray|dask|zarr)='

# Left out are comparisons with the zarr engine of xarray 2026.9, which older ones do not have (its encodings, its
# arguments, booleans that stay booleans), xarray's own tests of it, and two errors that xarray itself raised: for text
# with a _FillValue, and for negative indices of points selected from points.
newer="zarr_engine or test_missing_text or test_selections_of_selections"
exec "$venv/bin/python" -m pytest -n "${JOBS:-logical}" --maxprocesses 8 --dist worksteal \
    tests/xarray tests/dask tests/codecs tests/formats \
    --ignore tests/xarray/test_xarray_corpus.py --ignore tests/xarray/test_xarray_own.py -k "not ($newer)" "$@"
