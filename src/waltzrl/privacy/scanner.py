"""Finds personal data: patterns propose candidates in linear time, checks accept them.

A set of short keys is matched first. It tells which patterns can match; in most texts none can.
"""

import unicodedata
from collections.abc import Collection, Iterator, Sequence

import re2

from waltzrl.privacy.detection import KINDS, DataPattern, Detection, Kind, PatternHit, disjoint
from waltzrl.privacy.patterns import CAPITAL, OTHER, SMALL, UNCASED, all_patterns

_SET_MEMORY = 16 << 20
"""Bytes for the set's program and its states, which re2 builds while it reads and then keeps."""
_LONGEST_NUMBER = 80
"""Bytes. A rejected candidate of at most this length may contain another one; a longer one is
skipped as a whole."""


class PersonalDataScanner:
    """Finds personal data by patterns and check digits; needs no model and no network."""

    def __init__(
        self, kinds: Collection[Kind] = KINDS, *, regions: Sequence[str] = ("US",)
    ) -> None:
        """Compile the patterns.

        Args:
            kinds: the kinds to look for.
            regions: ISO 3166 codes of the countries whose telephone numbers are recognised without
                `+` and country code.

        Raises:
            InputError: a region is unknown.
        """
        patterns = [pattern for pattern in all_patterns(regions) if pattern.kind in kinds]
        self._finders = [_Finder(pattern) for pattern in patterns]
        self._keys = re2.Set.SearchSet(_options(_SET_MEMORY))
        for pattern in patterns:
            self._keys.Add((pattern.key or pattern.regex).encode("latin-1"))
        if patterns:
            self._keys.Compile()

    def find(self, text: str) -> list[Detection]:
        """Return detections in order of position, without overlaps; see `disjoint`."""
        normalised = NormalisedText(text)
        detections = []
        matching = self._keys.Match(normalised.text) if self._finders else None
        for number in matching or ():
            finder = self._finders[number]
            for hit in finder.hits(normalised.text):
                start, end = normalised.origin(hit.start, hit.end)
                detections.append(
                    Detection(
                        kind=finder.kind,
                        start=start,
                        end=end,
                        score=hit.score,
                        validator=hit.validator,
                    )
                )
        return disjoint(detections)


class _Finder:
    """One compiled pattern."""

    def __init__(self, pattern: DataPattern) -> None:
        self.kind = pattern.kind
        self._check = pattern.check
        self._regex = re2.compile(pattern.regex.encode("latin-1"), _options())
        self._group = min(self._regex.groups, 1)

    def hits(self, text: bytes) -> Iterator[PatternHit]:
        """Yield the accepted candidates in order."""
        position = 0
        while match := self._regex.search(text, position):
            start, end = match.span(self._group)
            hit = self._check(text, start, end)
            if hit is not None:
                yield hit
                position = max(hit.end, position + 1)
            else:
                position = end if end - start > _LONGEST_NUMBER else start + 1


def _options(memory: int = 0) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    if memory:
        options.max_mem = memory
    return options


class NormalisedText:
    """A text reduced to one byte per character, with a map back to the original positions.

    Digits of every script become 0 to 9, wide letters become narrow, and every space and dash
    becomes the ASCII one. Of other letters only the class remains: capital, small or uncased.
    Characters without a width are dropped.
    """

    def __init__(self, original: str) -> None:
        self._positions: list[int] | None = None
        """[characters + 1] in the original; None if no character was dropped."""
        if original.isascii():
            self.text = original.encode()
            return
        self.text = original.translate(_REPLACEMENTS).encode("latin-1")
        if len(self.text) != len(original):
            visible = [n for n, c in enumerate(original) if _REPLACEMENTS[ord(c)] is not None]
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
_INVISIBLE = ("Cf", "Mn", "Me")
_MINUS = "\u2212"


class _Replacements(dict[int, str | None]):
    """A translation table that is filled with each character when it is first met."""

    def __missing__(self, code: int) -> str | None:
        self[code] = _replacement(chr(code))
        return self[code]


def _replacement(character: str) -> str | None:
    """Return the Latin-1 character that replaces this one, or None for an invisible one."""
    category = unicodedata.category(character)
    if character.isascii():
        return character
    if category in _INVISIBLE:
        return None
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    compatible = unicodedata.normalize("NFKC", character)
    if len(compatible) == 1 and compatible.isascii():
        return compatible
    return "-" if character == _MINUS else _BY_CATEGORY.get(category, OTHER)


_REPLACEMENTS = _Replacements()
