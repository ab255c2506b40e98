"""What installed packages provide is found by group and name; what is missing or broken is told."""

import os
import subprocess
import sys

import pytest

from waltzrl.errors import InputError
from waltzrl.foundation.plugins import find_plugin, load_plugin


@pytest.fixture
def install(tmp_path):
    """Put a package of one module, and its entry points, on the path of another process."""

    def write(name, code, entries):
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(entries)
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    return write


def run_waltzrl(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "waltzrl", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_provided_object_is_loaded():
    assert callable(load_plugin("waltzrl.services", "memory"))


def test_what_nobody_provides_is_none_or_an_error_of_one_line():
    assert find_plugin("waltzrl.upstreams", "teapot") is None
    with pytest.raises(InputError, match=r"no installed package provides 'teapot' for waltzrl\.up"):
        load_plugin("waltzrl.upstreams", "teapot")


def test_a_command_of_another_package_is_found(install):
    code = "def add(app):\n    app.command('tea')(lambda: print('poured'))\n"
    environment = install("teapot", code, "[waltzrl.commands]\ntea = teapot:add\n")
    done = run_waltzrl(environment, "tea")
    assert (done.returncode, done.stdout, done.stderr) == (0, "poured\n", "")


@pytest.mark.promise(
    "Bad input",
    "A package whose commands cannot be loaded: a warning with its name and the reason; all other "
    "commands work",
)
def test_a_package_whose_commands_cannot_be_loaded_is_left_out_with_a_warning(install):
    environment = install("teapot", "import no_leaves\n", "[waltzrl.commands]\ntea = teapot:add\n")
    done = run_waltzrl(environment, "--version")
    assert (done.returncode, done.stdout) == (0, "waltzrl 0.1.0\n")
    assert done.stderr == (
        "warning: the commands of tea are left out: No module named 'no_leaves'\n"
    )
