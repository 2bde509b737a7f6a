#!/usr/bin/env bash
# Builds the package: its source, a wheel for each platform that native code is compiled for, and one for all others.
# Checks them, installs the wheel that pip chooses here in a new environment without compilers, sees that native code
# is in use, and runs the demonstration. `bash ci/package.sh DIR` keeps the packages in DIR. VENV names another
# directory for the tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
python="$(find_python)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
packages="${1:-$work/packages}"
tools="${VENV:-.venv-package}"
pip=(-m pip install --quiet --disable-pip-version-check --only-binary :all:)

if [ ! -x "$tools/bin/twine" ] || [ ! -d "$tools"/lib/python*/site-packages/ziglang ]; then
    echo "== installing build, hatchling, twine and ziglang into $tools"
    "$python" -m venv --clear "$tools"
    "$tools/bin/python" "${pip[@]}" build hatchling twine ziglang
fi
echo "== building"
build() {
    "$tools/bin/python" -m build --no-isolation --outdir "$work/built" "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
build --sdist .
tar -xf "$work"/built/*.tar.gz -C "$work"
targets="$(PYTHONPATH=ci "$tools/bin/python" -c 'import hatch_build; print(*hatch_build.TAGS, "any")')"
for target in $targets; do
    XZARR3_TARGET="$target" build --wheel "$work"/xzarr3-*
done
"$tools/bin/twine" check --strict "$work"/built/*
wc -c "$work"/built/*
mkdir -p "$packages"
cp "$work"/built/* "$packages"

echo "== installing the wheel of this machine in a new environment, binaries only"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" "${pip[@]}" --no-index --no-deps --find-links "$work/built" xzarr3
"$work/venv/bin/python" "${pip[@]}" "xzarr3[demo]"  # It is there: adds what it needs.
cd "$work"
versions="$(PATH="$work/venv/bin" python -c "import xzarr3; xzarr3.show_versions()")"  # No compiler is in this PATH.
echo "$versions"
grep -qx "native rows: in use" <<<"$versions" || { echo "native code is not in use" >&2; exit 1; }
PATH="$work/venv/bin" python "$OLDPWD/notebooks/demo.py" --keep "$work/kept"
