"""Names of a package that are imported when they are first used (PEP 562).

The commands of a package stand inside it, so the command line imports every package; what the names
need is imported by those who use them.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from waltzrl.errors import MissingExtraError


def imported_on_first_use(
    package: str, modules: Mapping[str, Sequence[str]], needs: tuple[str, str] | None = None
) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    A name must not be that of a module of the package, which would take its place.

    Args:
        package: the package's `__name__`.
        modules: the names of each module; one of the package begins with a dot.
        needs: what a name needs where it cannot be imported, and the extra that brings it.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def import_name(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(places[name], package)
        except (ModuleNotFoundError, MissingExtraError) as missing:
            if needs is None:
                raise
            raise MissingExtraError(f"{package}.{name}", *needs) from missing
        value: object = getattr(module, name)
        return value

    return import_name
