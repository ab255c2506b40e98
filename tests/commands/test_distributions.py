"""The wheels of all our distributions, installed into an empty environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.timing import wait_until

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with the wheels, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [UV, "build", "--quiet", "--system-certs", "--wheel", "--all-packages", "-o", folder, ROOT],
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """The programs of an environment with the kernel and waltzrl-verify."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    install = [UV, "pip", "install", "--quiet", "--system-certs", "--find-links", wheels]
    python = folder / "bin" / "python"
    subprocess.run([*install, "--python", python, "waltzrl-verify"], check=True)
    return folder / "bin"


def run(installed, folder, *arguments):
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    command = [installed / "waltzrl", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_distribution_has_a_wheel(wheels):
    names = {"waltzrl", *(path.name for path in (ROOT / "packages").iterdir())}
    built = {path.name.partition("-0.1.0-")[0].replace("_", "-") for path in wheels.glob("*.whl")}
    assert built == names


def test_the_kernel_starts(installed, tmp_path):
    done = run(installed, tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "waltzrl 0.1.0\n", "")


def test_the_installation_passes_its_checks(installed, tmp_path):
    done = run(installed, tmp_path, "verify", "--limit", "5")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_gateway_serves(installed, tmp_path):
    with (
        upstream_process() as upstream,
        gateway_process(
            *("--upstream", f"{upstream.url}/v1"),
            log=tmp_path / "log",
            python=installed / "python",
        ) as gateway,
    ):
        wait_until(lambda: gateway.get("/readyz")[0] == 200)


def test_a_command_of_a_distribution_that_is_absent_names_it(installed, tmp_path):
    done = run(installed, tmp_path, "demo", "--seed", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the command demo is in the package waltzrl-demo: pip install waltzrl-demo\n"
    )
