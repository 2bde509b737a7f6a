# Sourced by the scripts beside it: finds a Python and prepares a virtual environment.

# Whether the command $1 really runs (a pyenv shim may exist and still fail), is Python 3.11 or newer
# and can make virtual environments with pip in them.
usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the Python to use: $PYTHON if set, else the newest tried version in PATH or among pyenv's.
find_python() {
    local minor candidate pyenv_versions="${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}/versions"
    if [ -n "${PYTHON:-}" ]; then
        usable_python "$PYTHON" && echo "$PYTHON" && return
        echo "PYTHON=$PYTHON is not a Python >= 3.11 with the venv module" >&2
        return 1
    fi
    for minor in 13 12 11 14; do
        for candidate in "python3.$minor" "$pyenv_versions/3.$minor".*/bin/python; do
            usable_python "$candidate" && echo "$candidate" && return
        done
    done
    for candidate in python3 python; do
        usable_python "$candidate" && echo "$candidate" && return
    done
    echo "no Python >= 3.11 with the venv module found; name one: PYTHON=/path/to/python bash $0" >&2
    return 1
}

# prepare_venv DIR EXTRA: makes the environment DIR with this checkout and its extra EXTRA installed.
# An environment that is there already is installed into again only if pyproject.toml, native code, the extra
# or the place of the checkout changed, and made anew only if its Python does not run or PYTHON names one.
prepare_venv() {
    local dir="$1" extra="$2" stamp wanted python
    stamp="$dir/installed"
    wanted="$(cat pyproject.toml xzarr3/io/_native.c ci/hatch_build.py | cksum) $extra $PWD ${PYTHON:-}"
    if [ -x "$dir/bin/python" ] && usable_python "$dir/bin/python" && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ -n "${PYTHON:-}" ] || ! usable_python "$dir/bin/python"; then
        python="$(find_python)" || return 1
        echo "== making $dir with $("$python" --version)"
        "$python" -m venv --clear "$dir" || return 1
    fi
    rm -f "$stamp"
    echo "== installing xzarr3[$extra] into $dir"
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]" || return 1
    printf '%s' "$wanted" >"$stamp"
}
