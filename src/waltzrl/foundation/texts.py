"""How texts and numbers are shown to people."""

import unicodedata
from datetime import UTC, datetime
from math import floor, log10
from urllib.parse import urlsplit

HIDDEN = "***"


def make_visible(text: str) -> str:
    """Replace every character that would hide or reorder the text after it.

    Those are controls, bidirectional overrides and other format characters, and lone surrogates.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}
        else "\N{REPLACEMENT CHARACTER}"
        for character in text.replace("\r\n", "\n")
    )


def number(value: float) -> str:
    """Return a number as people write it: 0.0123, 3.14, 812, 12,300, 4.5 million."""
    size = abs(value)
    if size >= 1e12:
        return "over a trillion"
    for power, name in ((1e9, " billion"), (1e6, " million")):
        if size >= power:
            return f"{value / power:.1f}{name}"
    if 0 < size < 1e-4:
        return "under 0.0001"
    # Three significant digits.
    digits = 2 - floor(log10(size)) if size else 0
    rounded = round(value, digits)
    text = f"{rounded:,.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text in UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def describe_error(error: Exception) -> str:
    """Return what an error says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def without_credentials(text: str) -> str:
    """Hide the password and the values of the query of a URL; other texts stay as they are."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return text
    query = "&".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in parts.query.split("&"))
    shown = parts._replace(query=query).geturl() if parts.query else text
    # `urlsplit` decodes no password, so this is how it stands in the URL.
    return shown.replace(f":{password}@", f":{HIDDEN}@") if password else shown
