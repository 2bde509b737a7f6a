#!/usr/bin/env bash
# Builds the site of the documentation in build/docs, from notebooks/ and the docstrings, in the environment
# .venv-docs. A warning is an error. The notebooks are shown with the outputs that they have. Arguments go to Sphinx.
# VENV names another directory for the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/_venv.sh
venv="${VENV:-.venv-docs}"
prepare_venv "$venv" codecs,ml-dtypes,object docs
"$venv/bin/python" -m sphinx -b html -W --keep-going -q -j auto -d build/doctrees notebooks build/docs "$@"
echo "== the site is in build/docs/index.html"
