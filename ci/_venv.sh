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

# prepare_venv DIR EXTRAS [GROUP]: makes the environment DIR with this checkout, its extras EXTRAS (comma between them)
# and what the dependency group GROUP of pyproject.toml lists.
# An environment that is there already is installed into again only if pyproject.toml, native code, these words
# or the place of the checkout changed, and made anew only if its Python does not run or PYTHON names one.
prepare_venv() {
    local dir="$1" extras="$2" group="${3:-}" stamp wanted python pip
    stamp="$dir/installed"
    wanted="$(cat pyproject.toml xzarr3/io/_native.c ci/hatch_build.py | cksum) $extras $group $PWD ${PYTHON:-}"
    if [ -x "$dir/bin/python" ] && usable_python "$dir/bin/python" && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ -n "${PYTHON:-}" ] || ! usable_python "$dir/bin/python"; then
        python="$(find_python)" || return 1
        echo "== making $dir with $("$python" --version)"
        "$python" -m venv --clear "$dir" || return 1
    fi
    rm -f "$stamp"
    echo "== installing xzarr3[$extras]${group:+ and the group $group} into $dir"
    pip=("$dir/bin/python" -m pip install --quiet --disable-pip-version-check)
    if [ -n "$group" ]; then
        "${pip[@]}" "pip>=25.1" || return 1  # The first that knows groups.
    fi
    "${pip[@]}" --editable ".[$extras]" ${group:+--group "$group"} || return 1
    printf '%s' "$wanted" >"$stamp"
}

# prepare_test_venv DIR: the environment of the tests.
prepare_test_venv() {
    prepare_venv "$1" codecs,demo,ml-dtypes,object test
}
