"""A text as the patterns read it: one byte a character, and nothing that only looks different.

Digits of every script become 0 to 9, wide letters narrow ones, every space and dash the plain one.
Other letters are told apart only as capitals, small ones and those without case. Characters
without a width are left out.
"""

import unicodedata

CAPITAL, SMALL, UNCASED, OTHER = "\xc0", "\xe0", "\xaa", "\xb7"
"""Stand for any capital, small letter, letter of a script without case, and other character."""

_BY_CATEGORY = {
    **dict.fromkeys(("Lu", "Lt"), CAPITAL),
    **dict.fromkeys(("Ll", "Lm"), SMALL),
    "Lo": UNCASED,
    **dict.fromkeys(("Zs", "Cc"), " "),
    **dict.fromkeys(("Zl", "Zp"), "\n"),
    "Pd": "-",
}
_INVISIBLE = ("Cf", "Mn", "Me")
_MINUS = "\u2212"


class _Shapes(dict[int, str | None]):
    """What stands for each character, worked out when it is first met."""

    def __missing__(self, code: int) -> str | None:
        self[code] = _shape(chr(code))
        return self[code]


def _shape(character: str) -> str | None:
    """Return the plain character, or None for one that cannot be seen."""
    category = unicodedata.category(character)
    if character.isascii():
        return character
    if category in _INVISIBLE:
        return None
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    same = unicodedata.normalize("NFKC", character)
    if len(same) == 1 and same.isascii():
        return same
    return "-" if character == _MINUS else _BY_CATEGORY.get(category, OTHER)


_SHAPES = _Shapes()


class PlainText:
    """The plain form of a text, which knows where its characters come from."""

    def __init__(self, given: str) -> None:
        self._places: list[int] | None = None
        """[characters + 1] of the text as given; None where nothing was left out."""
        if given.isascii():
            self.text = given.encode()
            return
        self.text = given.translate(_SHAPES).encode("latin-1")
        if len(self.text) != len(given):
            seen = [place for place, c in enumerate(given) if _SHAPES[ord(c)] is not None]
            self._places = [*seen, len(given)]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end in the text as given, unseen characters at the end included."""
        if self._places is None:
            return start, end
        return self._places[start], self._places[end]
