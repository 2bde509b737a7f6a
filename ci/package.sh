#!/usr/bin/env bash
# Builds the package, checks it, installs the wheel in a new environment without compilers, and runs the demonstration
# that it holds. `bash ci/package.sh DIR` keeps the packages in DIR. VENV names another directory for the tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
python="$(find_python)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
packages="${1:-$work/packages}"
tools="${VENV:-.venv-package}"
pip=(-m pip install --quiet --disable-pip-version-check --only-binary :all:)

if [ ! -x "$tools/bin/twine" ]; then
    echo "== installing build and twine into $tools"
    "$python" -m venv --clear "$tools"
    "$tools/bin/python" "${pip[@]}" build twine
fi
echo "== building"
rm -rf "$work/built"
"$tools/bin/python" -m build --outdir "$work/built" . >"$work/log" || { cat "$work/log"; exit 1; }
"$tools/bin/twine" check --strict "$work"/built/*
wc -c "$work"/built/*
mkdir -p "$packages"
cp "$work"/built/* "$packages"

echo "== installing the wheel in a new environment, binaries only"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" "${pip[@]}" "$(echo "$work"/built/*.whl)[demo]"
cd "$work"
PATH="$work/venv/bin" xzarr3 versions  # No compiler is in this PATH.
PATH="$work/venv/bin" xzarr3 demo --keep "$work/kept"
