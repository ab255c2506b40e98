"""Runs patterns over bytes, one a character, in time that grows with the text and nothing else."""

from collections.abc import Iterator, Sequence

import re2

from waltzrl.rules.pattern import Pattern

MOST_LOOKS = 1000
"""Keys of one pattern, and matches, that are looked at in one text."""
_SET_MEMORY = 64 << 20
_PATTERN_MEMORY = 2 << 20


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
    try:
        return re2.compile(regex.encode("latin-1"), _options(_PATTERN_MEMORY))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"re2 refuses the pattern: {error}") from None


class _Finder:
    """Finds one pattern: first its key, then the whole pattern around each key."""

    def __init__(self, pattern: Pattern) -> None:
        self._key = compiled(pattern.key)
        self._whole = compiled(pattern.regex)
        self._longest = pattern.longest

    def find(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of every match, one for each start."""
        place, key_place = 0, 0
        for _look in range(MOST_LOOKS):
            key = self._key.search(text, key_place)
            if key is None:
                return
            near = max(place, key.start() - self._longest)
            found = self._whole.search(text, near, key.start() + self._longest + 1)
            if found and found.start() <= key.start():
                yield found.span()
                place = found.start() + 1
            else:
                key_place = key.start() + 1


class Scanner:
    """Many patterns at once: a set of keys says which can match, and only those are looked for."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
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
        if patterns:
            self._keys.Compile()

    def scan(self, text: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end of every match, one for each start."""
        if not self._patterns:
            return
        for key in self._keys.Match(text) or ():
            for number in self._having[key]:
                if number not in self._finders:
                    self._finders[number] = _Finder(self._patterns[number])
                for start, end in self._finders[number].find(text):
                    yield number, start, end
