"""The name of a model as it may be recorded: what a client sends there may be any text."""

import re
from collections.abc import Callable

OTHER = "other"
"""The word that stands for a name that is not recorded."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._:/+-]{0,63}")
_MOST_REMEMBERED = 1000


class ModelNames:
    """Returns names of models as they may stand in a log that cannot be erased."""

    def __init__(
        self,
        is_known: Callable[[str], bool] = lambda _: False,
        scrub: Callable[[str], str] | None = None,
    ) -> None:
        """Decide by what the gateway knows, and by what a name looks like.

        Args:
            is_known: whether an upstream or the recipe names this model.
            scrub: removes personal data; without it only known names are recorded.
        """
        self._is_known = is_known
        self._scrub = scrub
        self._recorded: set[str] = set()

    def recorded(self, name: str) -> str:
        """Return the name if it is known, or has the form of a name and no personal data."""
        if name in self._recorded:
            return name
        scrub = self._scrub
        has_form = scrub is not None and NAME.fullmatch(name) is not None and scrub(name) == name
        if not (self._is_known(name) or has_form):
            return OTHER
        # Clients choose the names, so what is remembered must have a bound.
        if len(self._recorded) < _MOST_REMEMBERED:
            self._recorded.add(name)
        return name
