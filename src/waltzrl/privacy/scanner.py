"""Finds personal data: patterns propose in linear time, validators decide.

One set of keys is read first. It says which patterns can match; in most texts none can.
"""

from collections.abc import Collection, Iterator, Sequence

import re2

from waltzrl.privacy.detection import KINDS, Detection, Kind, disjoint
from waltzrl.privacy.pattern import DataPattern, PatternHit
from waltzrl.privacy.patterns import all_patterns
from waltzrl.privacy.plain import PlainText

_SET_MEMORY = 16 << 20
"""Bytes for the set's program and its states, which re2 makes while it reads and then keeps."""
_LONGEST_NUMBER = 80
"""Bytes. A candidate that is no longer may hide another; a longer one is refused as a whole."""


class PersonalDataScanner:
    """Finds personal data by pattern and check digit; needs no model and no network."""

    def __init__(
        self, kinds: Collection[Kind] = KINDS, *, regions: Sequence[str] = ("US",)
    ) -> None:
        """Compile the patterns.

        Args:
            kinds: to look for.
            regions: ISO 3166 codes of countries whose telephone numbers are known without `+`
                and the country's code.

        Raises:
            InputError: a region is unknown.
        """
        patterns = [p for p in all_patterns(regions) if p.kind in kinds]
        self._finders = [_Finder(pattern) for pattern in patterns]
        self._keys = re2.Set.SearchSet(_options(_SET_MEMORY))
        for pattern in patterns:
            self._keys.Add((pattern.key or pattern.regex).encode("latin-1"))
        if patterns:
            self._keys.Compile()

    def find(self, text: str) -> list[Detection]:
        """Return findings in order, none overlapping another.

        Of findings that overlap the longest stays, then the surest, then the first kind.
        """
        plain = PlainText(text)
        found = []
        for number in (self._keys.Match(plain.text) or ()) if self._finders else ():
            finder = self._finders[number]
            for hit in finder.hits(plain.text):
                start, end = plain.origin(hit.start, hit.end)
                found.append(
                    Detection(
                        kind=finder.kind,
                        start=start,
                        end=end,
                        score=hit.score,
                        validator=hit.validator,
                    )
                )
        return disjoint(found)


class _Finder:
    """One pattern, compiled."""

    def __init__(self, pattern: DataPattern) -> None:
        self.kind = pattern.kind
        self._check = pattern.check
        self._regex = re2.compile(pattern.regex.encode("latin-1"), _options())
        self._group = min(self._regex.groups, 1)

    def hits(self, text: bytes) -> Iterator[PatternHit]:
        """Yield what the check takes, in order."""
        place = 0
        while match := self._regex.search(text, place):
            start, end = match.span(self._group)
            hit = self._check(text, start, end)
            if hit is not None:
                yield hit
                place = max(hit.end, place + 1)
            else:
                place = end if end - start > _LONGEST_NUMBER else start + 1


def _options(memory: int = 0) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    if memory:
        options.max_mem = memory
    return options
