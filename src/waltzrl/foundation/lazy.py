"""Names of a package that are imported when they are first used (PEP 562).

So the command line starts without what its other commands need, and a package can be imported
where an extra of one of its modules is not installed.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from waltzrl.errors import MissingExtraError


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], needs: tuple[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, the `__dir__` and the `__all__` of a package.

    Args:
        package: its `__name__`.
        names: module of the package -> the names in it that the package has too.
        needs: what a module that cannot be imported lacks, and the extra that installs it; None
            leaves the error as it is.

    A name must not be that of a module of the package, which would take its place.

    Example:
        if TYPE_CHECKING:
            from waltzrl_routing.router import Router as Router
        else:
            __getattr__, __dir__, __all__ = lazy_names(__name__, {"router": ("Router",)})
    """
    modules = {name: module for module, within in names.items() for name in within}

    def get_name(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        except (ModuleNotFoundError, MissingExtraError) as missing:
            if needs is None:
                raise
            raise MissingExtraError(f"{package}.{name}", *needs) from missing

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get_name, list_names, sorted(modules)
