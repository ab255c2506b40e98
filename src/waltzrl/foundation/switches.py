"""Switches in environment variables: true, 1, yes or on; false, 0, no or off."""

from collections.abc import Mapping

from waltzrl.errors import InputError

_VALUES = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def parse_switch(text: str) -> bool:
    """Return whether a text means on.

    Raises:
        ValueError: it means neither on nor off.
    """
    value = _VALUES.get(text.strip().lower())
    if value is None:
        raise ValueError(f"got {text!r}, need true or false")
    return value


def read_switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether a variable is on; an empty one counts as not set.

    Raises:
        InputError: it is neither on nor off; a misspelt value must not switch safety off.
    """
    text = environ.get(name, "")
    if not text.strip():
        return default
    try:
        return parse_switch(text)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
