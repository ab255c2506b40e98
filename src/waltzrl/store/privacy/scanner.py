"""Finds personal data: patterns propose candidates in linear time, checks accept them.

A set of short keys is matched first. It tells which patterns can match; in most texts none can.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cache

import re2

from waltzrl.store.privacy.detection import (
    DEFAULT_REGIONS,
    KINDS,
    DataPattern,
    Detection,
    Kind,
    PatternHit,
    disjoint,
)
from waltzrl.store.privacy.normalised import NormalisedText
from waltzrl.store.privacy.patterns import all_patterns

_SET_MEMORY = 16 << 20
"""Bytes for the set's program and its states, which re2 builds while it reads and then keeps."""
_LONGEST_NUMBER = 80
"""Bytes. A rejected candidate of at most this length may contain another one; a longer one is
skipped as a whole."""


class PersonalDataScanner:
    """Finds personal data by patterns and check digits; needs no model and no network."""

    def __init__(
        self, kinds: Collection[Kind] = KINDS, *, regions: Sequence[str] = DEFAULT_REGIONS
    ) -> None:
        """Compile the patterns.

        Args:
            kinds: the kinds to look for.
            regions: ISO 3166 codes of the countries whose telephone numbers are recognised without
                `+` and country code, and whose national numbers need no word before them.

        Raises:
            InputError: a region is unknown.
        """
        patterns = [pattern for pattern in all_patterns(regions) if pattern.kind in kinds]
        self._finders = [_Finder(pattern) for pattern in patterns]
        self._keys = _set_of(tuple(pattern.key or pattern.regex for pattern in patterns))

    def find(self, text: str) -> list[Detection]:
        """Return detections in order of position, without overlaps; see `disjoint`."""
        normalised = NormalisedText(text)
        detections = []
        seen: set[tuple[Kind, int, int]] = set()
        matching = self._keys.Match(normalised.text) if self._finders else None
        for number in sorted(matching or ()):
            finder = self._finders[number]
            for hit in finder.hits(normalised.text, seen):
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
        self._regex = _compile_regex(pattern.regex)

    def hits(self, text: bytes, seen: set[tuple[Kind, int, int]]) -> Iterator[PatternHit]:
        """Yield the accepted candidates in order, and skip what an earlier pattern found."""
        position = 0
        while match := self._regex.search(text, position):
            start, end = match.span(match.lastindex or 0)
            # An earlier pattern of this kind has it; its check need not run again.
            if (self.kind, start, end) in seen:
                # One further at least: an empty match would be found again at the same place.
                position = max(end, position + 1)
                continue
            hit = self._check(text, start, end)
            if hit is not None:
                yield hit
                seen.add((self.kind, hit.start, hit.end))
                position = max(hit.end, position + 1)
            else:
                # Going on one byte later at every rejection would take quadratic time on a long
                # candidate.
                position = end if end - start > _LONGEST_NUMBER else start + 1


@cache
def _set_of(keys: tuple[str, ...]) -> re2.Set:
    keys_set = re2.Set.SearchSet(_make_options(_SET_MEMORY))
    for key in keys:
        keys_set.Add(key.encode("latin-1"))
    if keys:
        keys_set.Compile()
    return keys_set


@cache
def _compile_regex(regex: str) -> re2._Regexp:
    return re2.compile(regex.encode("latin-1"), _make_options())


def _make_options(memory: int = 0) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    if memory:
        options.max_mem = memory
    return options
