"""Matches many patterns over Latin-1 bytes, in time that is linear in the text."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import re2

from waltzrl.rules.pattern import RulePattern

MOST_LOOKS = 100
"""Matches of one pattern that are examined; more would not change the verdict on a text."""
_SET_MEMORY = 8 << 20
"""Bytes for the set's program and its states, which re2 builds while it reads and then keeps."""
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
    """Compile `regex` for Latin-1 text, ignoring case.

    Raises:
        ValueError: re2 rejects it.
    """
    memory = _PATTERN_MEMORY + _PATTERN_MEMORY_PER_CHARACTER * len(regex)
    try:
        return re2.compile(regex.encode("latin-1"), _options(memory))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"re2 rejects the pattern: {error}") from None


class _Finder:
    """One pattern: a fast loose match first, then an exact one at the same place."""

    def __init__(self, pattern: RulePattern) -> None:
        self._loose = compiled(pattern.loose)
        self._longest = pattern.longest
        self._regex = pattern.regex

    @cached_property
    def _exact(self) -> re2._Regexp:
        return compiled(self._regex)

    def find(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of every match, one per start."""
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
    """Many patterns at once: a set of keys tells which can match, and only those run."""

    def __init__(self, patterns: Sequence[RulePattern], sign: str | None = None) -> None:
        """Compile the keys of `patterns`.

        Args:
            patterns: numbered in this order.
            sign: another regular expression for `keys` to look for.
        """
        self._patterns = patterns
        self._finders: dict[int, _Finder] = {}
        """Compiled when a key is first found: few patterns are ever needed."""
        self._patterns_of_key: list[list[int]] = []
        """[keys] numbers of the patterns with this key."""
        numbers: dict[str, int] = {}
        self._keys = re2.Set.SearchSet(_options(_SET_MEMORY))
        for number, pattern in enumerate(patterns):
            if pattern.key not in numbers:
                numbers[pattern.key] = self._keys.Add(pattern.key.encode("latin-1"))
                self._patterns_of_key.append([])
            self._patterns_of_key[numbers[pattern.key]].append(number)
        self.sign = -1
        """Number of the sign among the keys; -1 without one."""
        if sign is not None:
            self.sign = self._keys.Add(sign.encode("latin-1"))
            self._patterns_of_key.append([])
        if self._patterns_of_key:
            self._keys.Compile()

    def keys(self, text: bytes) -> Sequence[int]:
        """Return the keys in `text`; most texts have none, and then nothing can match."""
        return (self._keys.Match(text) or ()) if self._patterns_of_key else ()

    def scan(
        self, text: bytes, keys: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end of every match, one per start.

        Args:
            text: to search.
            keys: of `text`, if already known.
        """
        for key in self.keys(text) if keys is None else keys:
            for number in self._patterns_of_key[key]:
                if number not in self._finders:
                    self._finders[number] = _Finder(self._patterns[number])
                for start, end in self._finders[number].find(text):
                    yield number, start, end
