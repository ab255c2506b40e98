#!/usr/bin/env bash
# Installs promtool, which plays the tests of the alerts in deploy/.
#
# bash tools/install_promtool.sh .venv/bin/promtool
#
# Links to the one on the path; otherwise takes the one from Debian's package `prometheus`, which
# is unpacked and not installed, so that no server starts and no root is needed.
set -euo pipefail

target=$(realpath --no-symlinks "$1")
if installed=$(command -v promtool); then
  ln -sf "$installed" "$target"
  exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
download() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
download 2>/dev/null || { apt-get update -qq && download; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract ./usr/bin/promtool
mv usr/bin/promtool "$target"
