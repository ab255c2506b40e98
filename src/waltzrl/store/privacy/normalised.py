"""Texts reduced to one byte per character, which the patterns of the scanner read."""

import unicodedata

from waltzrl.store.privacy.hints import MARKS, SMALL, mark_words

CAPITAL, UNCASED, OTHER = "\xc0", "\xaa", "\xb7"
"""The characters that in normalised text, with `SMALL`, stand for any non-ASCII capital, small
letter, letter of a script without case, and other character."""


class NormalisedText:
    """A text reduced to one byte per character, with a map back to the original positions.

    Digits of every script become 0 to 9, wide letters become narrow, and every space and dash
    becomes the ASCII one. Of other letters only the class remains: capital, small or uncased.
    Characters without a width are dropped. Words that announce something, in scripts without case,
    become the marks of `waltzrl.store.privacy.hints`.
    """

    def __init__(self, original: str) -> None:
        self._positions: list[int] | None = None
        """[characters + 1] in the original; None if no character was dropped."""
        # Most texts are ASCII, and need neither a translation nor a map.
        if original.isascii():
            self.text = original.encode()
            return
        self.text = mark_words(original).translate(_REPLACEMENTS).encode("latin-1")
        # Each character becomes one byte or none, so equal lengths mean that none was dropped.
        if len(self.text) != len(original):
            visible = [
                n for n, c in enumerate(mark_words(original)) if _REPLACEMENTS[ord(c)] is not None
            ]
            self._positions = [*visible, len(original)]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end in the original, including dropped characters at the end."""
        if self._positions is None:
            return start, end
        return self._positions[start], self._positions[end]


_BY_CATEGORY = {
    **dict.fromkeys(("Lu", "Lt"), CAPITAL),
    **dict.fromkeys(("Ll", "Lm"), SMALL),
    "Lo": UNCASED,
    **dict.fromkeys(("Zs", "Cc"), " "),
    **dict.fromkeys(("Zl", "Zp"), "\n"),
    "Pd": "-",
}
# Zero-width characters and combining marks would hide a number from the patterns.
_INVISIBLE = ("Cf", "Mn", "Me")
# Its category is Sm, mathematical symbols, and not Pd like that of the dashes.
_MINUS = "\u2212"


class _Replacements(dict[int, str | None]):
    """A translation table that is filled with each character when it is first met."""

    def __missing__(self, code: int) -> str | None:
        self[code] = _find_replacement(chr(code))
        return self[code]


def _find_replacement(character: str) -> str | None:
    """Return the Latin-1 character that replaces this one, or None for an invisible one."""
    category = unicodedata.category(character)
    if character.isascii() or character in MARKS:
        return character
    if category in _INVISIBLE:
        return None
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    compatible = unicodedata.normalize("NFKC", character)
    # One byte for each character, so a form that becomes several is no replacement.
    if len(compatible) == 1 and compatible.isascii():
        return compatible
    return "-" if character == _MINUS else _BY_CATEGORY.get(category, OTHER)


_REPLACEMENTS = _Replacements()
