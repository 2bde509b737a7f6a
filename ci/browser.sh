#!/usr/bin/env bash
# Installs the browser in which the tests open what notebooks show: chromium, by apt. Says why if it cannot be
# had, and never fails: the tests that need it are skipped, and say so.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    ! command -v "$name" >/dev/null || exit 0
done
if ! command -v apt-get >/dev/null; then
    echo "browser: chromium cannot be had: there is no apt here"
elif [ "$(id -u)" != 0 ]; then
    echo "browser: chromium cannot be had: only root may install it; run apt-get install chromium"
else
    log="$(mktemp)"
    install() { timeout 600 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >>"$log" 2>&1; }
    if ! install && ! { timeout 120 apt-get update -qq >>"$log" 2>&1 && install; }; then
        echo "browser: chromium cannot be had: apt does not give it"
        tail -n 3 "$log" | sed 's/^/browser:     /'
    fi
    rm -f "$log"
fi
exit 0
