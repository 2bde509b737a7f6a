#!/usr/bin/env bash
# Installs the servers that the tests of stores talk to where they are missing, into .servers/:
# nginx by apt (its files alone: nothing is configured, no service is started) and azurite by npm.
# moto comes with the tests' requirements. Says what cannot be had and why, and never fails: the tests
# that need it are skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 0
azurite_version=3.37.0
places=.servers
mkdir -p "$places" || exit 0
work="$(mktemp -d "$places/work.XXXXXX")" || exit 0
trap 'rm -rf "$work"' EXIT
export DEBIAN_FRONTEND=noninteractive
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -r "$certificates" ]; then
    export NODE_EXTRA_CA_CERTS="$certificates"  # Beside its own ones, node trusts those of the system.
fi

missing() {
    echo "servers: $1 cannot be had: $2"
    [ ! -s "$work/log" ] || tail -n 3 "$work/log" | sed 's/^/servers:     /'
}

# Whether an nginx runs, given the root directory of its files (none: the system's).
nginx_runs() {
    local libraries
    libraries="$(find "${1:-/nonexistent}" -name 'lib*.so.*' -exec dirname {} + 2>/dev/null | sort -u | paste -sd:)"
    LD_LIBRARY_PATH="$libraries" "${1:-}/usr/sbin/nginx" -v >>"$work/log" 2>&1
}

# Packages as files in $work.
fetch() {
    (cd "$work" && timeout 120 apt-get download -qq "$@") >>"$work/log" 2>&1
}

install_nginx() {
    : >"$work/log"
    if command -v nginx >/dev/null || nginx_runs "" || nginx_runs "$PWD/$places/nginx"; then
        return
    fi
    : >"$work/log"
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        missing nginx "there is no apt here"
        return
    fi
    local attempt package library
    if ! fetch nginx && [ "$(id -u)" = 0 ]; then
        for attempt in 1 2 3; do  # Somebody else may hold the lock.
            : >"$work/log"
            timeout 120 apt-get update -qq >>"$work/log" 2>&1 && break
            [ "$attempt" = 3 ] || sleep 5
        done
        fetch nginx
    fi
    for package in nginx nginx-light nginx-core; do  # Which of them has the program depends on the release.
        fetch "$package"
        for library in "$work/${package}"_*.deb; do
            [ -e "$library" ] && dpkg -x "$library" "$work/nginx" >>"$work/log" 2>&1
        done
        [ ! -x "$work/nginx/usr/sbin/nginx" ] || break
    done
    if [ ! -x "$work/nginx/usr/sbin/nginx" ]; then
        missing nginx "apt does not give it"
        return
    fi
    if ! nginx_runs "$PWD/$work/nginx"; then
        for library in $(apt-cache depends "$package" 2>/dev/null | sed -n 's/^ *Depends: \(lib[a-z0-9.+-]*\|zlib1g\)$/\1/p'); do
            [ "$library" = libc6 ] || fetch "$library"
        done
        for library in "$work"/lib*.deb "$work"/zlib*.deb; do
            [ -e "$library" ] && dpkg -x "$library" "$work/nginx" >>"$work/log" 2>&1
        done
    fi
    if nginx_runs "$PWD/$work/nginx"; then
        rm -rf "$places/nginx" && mv "$work/nginx" "$places/nginx"
    else
        missing nginx "what apt gives does not run"
    fi
}

install_azurite() {
    : >"$work/log"
    local manifest="$places/node_modules/azurite/package.json"
    if grep -qs "\"version\": \"$azurite_version\"" "$manifest" || command -v azurite-blob >/dev/null; then
        return
    fi
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        missing azurite "there is no node with npm here"
        return
    fi
    mkdir "$work/npm"
    if timeout 300 npm install --prefix "$work/npm" --ignore-scripts --no-audit --no-fund --no-save \
        --loglevel=error --fetch-retries=1 --fetch-timeout=60000 "azurite@$azurite_version" >>"$work/log" 2>&1; then
        rm -rf "$places/node_modules" && mv "$work/npm/node_modules" "$places/node_modules"
    else
        missing azurite "npm does not install it"
    fi
}

install_nginx
install_azurite
exit 0
