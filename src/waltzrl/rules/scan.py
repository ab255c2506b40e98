"""Runs patterns over bytes, one a character, in time that grows with the text and nothing else."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import re2

from waltzrl.rules.pattern import RulePattern

MOST_LOOKS = 100
"""Matches of one pattern that are looked at; a text that has more is no better for it."""
_SET_MEMORY = 8 << 20
"""Bytes for the set's program and its states, which re2 makes while it reads and then keeps."""
_PATTERN_MEMORY = 256 << 10
_PATTERN_MEMORY_PER_CHARACTER = 160
"""The same for one pattern: a long one has a larger program."""


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = memory
    return options


def compiled(regex: str) -> re2._Regexp:
    """Compile `regex` for text in Latin-1, without regard to case.

    Raises:
        ValueError: re2 does not take it.
    """
    memory = _PATTERN_MEMORY + _PATTERN_MEMORY_PER_CHARACTER * len(regex)
    try:
        return re2.compile(regex.encode("latin-1"), _options(memory))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"re2 refuses the pattern: {error}") from None


class _Finder:
    """One pattern: loosely first, then exactly where it matched loosely."""

    def __init__(self, pattern: RulePattern) -> None:
        self._loose = compiled(pattern.loose)
        self._longest = pattern.longest
        self._regex = pattern.regex

    @cached_property
    def _exact(self) -> re2._Regexp:
        return compiled(self._regex)

    def find(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of every match, one for each start."""
        place = 0
        for _look in range(MOST_LOOKS):
            loose = self._loose.search(text, place)
            if loose is None:
                return
            start, end = loose.span()
            exact = self._exact.match(text, start, start + self._longest + 1)
            if exact:
                yield exact.span()
            # No match ends before the loose one does, so none starts long before its end.
            place = max(start + 1, 0 if exact else end - self._longest)


class PatternScanner:
    """Many patterns at once: a set of keys says which can match, and only those run."""

    def __init__(self, patterns: Sequence[RulePattern], sign: str | None = None) -> None:
        """Compile the keys of `patterns`, and with them a `sign` that `keys` is to tell of."""
        self._patterns = patterns
        self._finders: dict[int, _Finder] = {}
        """Filled when a key is first found: few patterns are ever needed."""
        self._having: list[list[int]] = []
        """[keys] patterns that have the key."""
        numbers: dict[str, int] = {}
        self._keys = re2.Set.SearchSet(_options(_SET_MEMORY))
        for number, pattern in enumerate(patterns):
            if pattern.key not in numbers:
                numbers[pattern.key] = self._keys.Add(pattern.key.encode("latin-1"))
                self._having.append([])
            self._having[numbers[pattern.key]].append(number)
        self.sign = -1
        """The number of the sign among the keys."""
        if sign is not None:
            self.sign = self._keys.Add(sign.encode("latin-1"))
            self._having.append([])
        if self._having:
            self._keys.Compile()

    def keys(self, text: bytes) -> Sequence[int]:
        """Return the keys in `text`; none in most texts, and then nothing can match."""
        return (self._keys.Match(text) or ()) if self._having else ()

    def scan(
        self, text: bytes, keys: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end of every match, one for each start.

        Args:
            text: to look through.
            keys: those in `text`, where they are known.
        """
        for key in self.keys(text) if keys is None else keys:
            for number in self._having[key]:
                if number not in self._finders:
                    self._finders[number] = _Finder(self._patterns[number])
                for start, end in self._finders[number].find(text):
                    yield number, start, end
