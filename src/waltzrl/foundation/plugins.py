"""Finds what installed packages provide, by the entry points of a group and a name.

| group | what an entry point names |
| --- | --- |
| `waltzrl.commands` | a function that adds commands to the command line |
| `waltzrl.drawings` | a function that draws a record as SVG |
| `waltzrl.judges` | a function that opens a judge |
| `waltzrl.presets` | a module with settings of a gateway, and what to verify it with |
| `waltzrl.reviewers` | a function that loads a classifier |
| `waltzrl.rewards` | a reward of the feedback agent |
| `waltzrl.routes` | a function that returns the handler of further routes of a gateway |
| `waltzrl.services` | a function that opens what a gateway does with what it has served |
| `waltzrl.sets` | how a set of prompts is read from its published file |
| `waltzrl.upstreams` | a function that opens an upstream which is no server |
"""

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from waltzrl.errors import InputError, MissingPackageError, missing_extra

DISTRIBUTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "waltzrl-attack": {"waltzrl.commands": ("attack",)},
    "waltzrl-demo": {"waltzrl.commands": ("demo", "study"), "waltzrl.presets": ("demo",)},
    "waltzrl-evolution": {"waltzrl.commands": ("evolve",), "waltzrl.upstreams": ("program",)},
    "waltzrl-mcp": {"waltzrl.commands": ("mcp", "mcp-proxy")},
    "waltzrl-routing": {"waltzrl.commands": ("route",), "waltzrl.routes": ("routing",)},
    "waltzrl-smollm2": {"waltzrl.reviewers": ("smollm2",)},
    "waltzrl-specialists": {
        "waltzrl.commands": ("specialists",),
        "waltzrl.upstreams": ("specialists",),
    },
    "waltzrl-verify": {"waltzrl.commands": ("verify",)},
}
"""What our other distributions provide, by group: named in errors where one is not installed. The
names of commands are those that users type, the others those of the entry points."""


def find_distribution(group: str, name: str) -> str | None:
    """Return the distribution of ours that provides a name; None if none does."""
    return next(
        (key for key, provided in DISTRIBUTIONS.items() if name in provided.get(group, ())), None
    )


def find_entry(group: str, name: str) -> EntryPoint | None:
    """Return the entry point of an installed package; None if there is none."""
    return next(iter(entry_points(group=group, name=name)), None)


def load_entry(entry: EntryPoint) -> object:
    """Load what an entry point names.

    Raises:
        MissingExtraError: it needs an extra that is not installed.
    """
    try:
        loaded: object = entry.load()
    except ModuleNotFoundError as missing:
        raise missing_extra(missing) or missing from missing
    return loaded


def find_plugin(group: str, name: str) -> object | None:
    """Load what an installed package provides; None if there is none.

    Raises:
        MissingExtraError: it needs an extra that is not installed.
    """
    entry = find_entry(group, name)
    return None if entry is None else load_entry(entry)


def load_plugin(group: str, name: str) -> object:
    """Load what an installed package provides.

    Raises:
        InputError: no installed package provides it.
        MissingPackageError: a distribution of ours provides it, which is not installed.
        MissingExtraError: it needs an extra that is not installed.
    """
    if (plugin := find_plugin(group, name)) is None:
        if (distribution := find_distribution(group, name)) is not None:
            kind = group.removeprefix("waltzrl.").removesuffix("s")
            raise MissingPackageError(f"the {kind} {name!r}", distribution)
        raise InputError(
            f"no installed package provides {name!r} for {group}; install one that does, or "
            "waltzrl again if it was installed in part"
        )
    return plugin


def import_function(what: str, name: str) -> object | None:
    """Import `MODULE:FUNCTION`, also from a module in the current folder; None: it has no such.

    Raises:
        InputError: the module cannot be imported; says that it is `what`'s.
    """
    module, _, function = name.partition(":")
    # At the end, so that no module there takes the place of an installed one.
    if (folder := str(Path.cwd())) not in sys.path:  # a console script's path lacks it
        sys.path.append(folder)
    try:
        found: object | None = getattr(import_module(module), function, None)
    except Exception as error:  # the module is the user's own, and may raise anything
        raise InputError(f"the {what} {name!r} cannot be imported: {error}") from error
    return found
