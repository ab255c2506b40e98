#!/usr/bin/env bash
# Installs Prometheus and promtool, on which the tests play the alerts and run the dashboards.
#
# bash tools/install_prometheus.sh .venv/bin
#
# Links to those on the path; otherwise takes those from Debian's package `prometheus`, which is
# unpacked and not installed, so that no server starts and no root is needed.
set -euo pipefail

target=$(realpath --no-symlinks "$1")
programs=(promtool prometheus)
if installed=$(command -v "${programs[@]}") && [ "$(wc -l <<<"$installed")" = 2 ]; then
  xargs -I{} ln -sf {} "$target" <<<"$installed"
  exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
download() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
download 2>/dev/null || { apt-get update -qq && download; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract "${programs[@]/#/./usr/bin/}"
mv "${programs[@]/#/usr/bin/}" "$target"
