"""What `make dist` makes of all our distributions, installed into empty environments."""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from support.gateway_processes import gateway_process, upstream_process
from support.timing import wait_until
from waltzrl import __version__

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the source distributions, and the wheels that were built from them."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [UV, "build", "--quiet", "--system-certs", "--all-packages", "-o", folder, ROOT],
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The programs of an environment with the kernel and waltzrl-verify."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    install = [UV, "pip", "install", "--quiet", "--system-certs", "--find-links", built]
    python = folder / "bin" / "python"
    subprocess.run([*install, "--python", python, "waltzrl-verify"], check=True)
    return folder / "bin"


def run(installed, folder, *arguments):
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    command = [installed / "waltzrl", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_distribution_has_a_wheel_and_its_source_of_the_one_version(built):
    names = {"waltzrl", *(path.name for path in (ROOT / "packages").iterdir())}
    for ending in (f"-{__version__}-py3-none-any.whl", f"-{__version__}.tar.gz"):
        files = {path.name.removesuffix(ending) for path in built.glob(f"*{ending[-7:]}")}
        assert {name.replace("_", "-") for name in files} == names


def test_a_source_distribution_has_what_its_wheel_is_built_of_and_no_more(built):
    with tarfile.open(built / f"waltzrl-{__version__}.tar.gz") as source:
        parts = {name.split("/")[1] for name in source.getnames()}
    files = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert parts == {"src", *files}


def test_every_wheel_installs_alone_with_valid_metadata_and_the_modules_it_names(built, tmp_path):
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*install, *built.glob("*.whl")], check=True)
    found = list(distributions(path=[str(tmp_path)]))
    assert len(found) == len(list(built.glob("*.whl")))
    for distribution in found:
        text = distribution.read_text("METADATA")
        valid = Metadata.from_email(text, validate=True)
        assert (valid.license_expression, valid.description_content_type) == (
            "Apache-2.0",
            "text/markdown",
        )
        for entry in distribution.entry_points:
            module = tmp_path / entry.module.replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__init__.py").exists()


def test_the_kernel_starts(installed, tmp_path):
    done = run(installed, tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"waltzrl {__version__}\n", "")


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
