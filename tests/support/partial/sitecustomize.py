"""Leaves only some distributions to be found by this process, as if no others were installed.

The environment variable `PARTIAL_INSTALLATION` names a file with what is hidden, as JSON:
`{"modules": [dotted names], "distributions": [normalised names]}`. Processes that are started from
such a process begin with this file too.
"""

import importlib
import json
import os
import re
import sys

VARIABLE = "PARTIAL_INSTALLATION"


class Partial:
    """A finder without the modules and distributions that are hidden."""

    modules = distributions = frozenset()

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name in self.modules else self.finder.find_spec(name, path, target)

    def find_distributions(self, context):
        for distribution in self.finder.find_distributions(context):
            name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
            if name not in self.distributions:
                yield distribution

    def invalidate_caches(self):
        self.finder.invalidate_caches()


def hide(file):
    """Hide what a file names, here and in processes that are started from here."""
    with open(file) as read:  # noqa: PTH123 (pathlib is not imported otherwise)
        hidden = json.load(read)
    Partial.modules = frozenset(hidden["modules"])
    Partial.distributions = frozenset(hidden["distributions"])
    os.environ[VARIABLE] = file


if VARIABLE in os.environ:
    sys.meta_path[:] = [
        Partial(finder) if hasattr(finder, "find_distributions") else finder
        for finder in sys.meta_path
    ]
    hide(os.environ[VARIABLE])
    importlib.invalidate_caches()
