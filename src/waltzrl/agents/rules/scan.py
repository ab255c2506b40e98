"""Matches many patterns over a folded text, in time that is linear in it.

Folding replaces lookalike and hidden characters. It works on single characters, so the fold of a
part is a part of the fold.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from string import ascii_lowercase

import re2

from waltzrl.agents.rules.pattern import RulePattern

MOST_LOOKS = 100
"""Matches of one pattern that are examined; more would not change the verdict on a text."""
SECTION, OVERLAP = 16_384, 1_024
"""Characters that are searched for keys at a time, and that two sections share: more than a key
has. A long text of noise has many keys by chance, and each is followed up only where it stands."""
_SET_MEMORY = 24 << 20
"""Bytes for the set's program and its states, which re2 builds while it reads and then keeps."""
_PATTERN_MEMORY = 256 << 10
_PATTERN_MEMORY_PER_CHARACTER = 160
"""The same for one pattern: a long one has a larger program."""


def _make_options(memory: int) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = memory
    return options


def compile_pattern(regex: str) -> re2._Regexp:
    """Compile `regex` for Latin-1 text, ignoring case.

    Raises:
        ValueError: re2 rejects it.
    """
    memory = _PATTERN_MEMORY + _PATTERN_MEMORY_PER_CHARACTER * len(regex)
    try:
        return re2.compile(regex.encode("latin-1"), _make_options(memory))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"re2 rejects the pattern: {error}") from None


def compile_set(regexes: Iterable[str]) -> "re2.Set":
    """Compile patterns that are searched for at once; `Match` returns the numbers of those found.

    Raises:
        ValueError: re2 rejects one.
    """
    found = re2.Set.SearchSet(_make_options(_SET_MEMORY))
    try:
        for regex in regexes:
            found.Add(regex.encode("latin-1"))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"re2 rejects the pattern: {error}") from None
    found.Compile()
    return found


class _Finder:
    """One pattern: a fast loose match first, then an exact one at the same place."""

    def __init__(self, pattern: RulePattern) -> None:
        self._loose = compile_pattern(pattern.loose)
        self._longest = pattern.longest
        self._regex = pattern.regex

    @cached_property
    def _exact(self) -> re2._Regexp:
        return compile_pattern(self._regex)

    def find(self, text: bytes, section: slice, looks: "_Looks") -> Iterator[tuple[int, int]]:
        """Yield start and end of every match in or at the edges of a section, one per start."""
        place = max(0, section.start - self._longest)
        stop = min(len(text), section.stop + self._longest)
        while looks.left > 0:
            looks.left -= 1
            loose = self._loose.search(text, place, stop)
            if loose is None:
                return
            start, end = loose.span()
            exact = self._exact.match(text, start, start + self._longest + 1)
            if exact:
                yield exact.span()
            # No match ends before the loose one does, so none starts long before its end.
            place = max(start + 1, 0 if exact else end - self._longest)


@dataclass(slots=True)
class _Looks:
    """How many matches of a pattern will still be examined in a text."""

    left: int = MOST_LOOKS


class PatternScanner:
    """Many patterns at once: a set of keys tells which can match, and only those run."""

    def __init__(self, patterns: Sequence[RulePattern]) -> None:
        """Compile the keys of `patterns`, which are numbered in this order."""
        self._patterns = patterns
        self._finders: dict[int, _Finder] = {}
        """The finders, each compiled when its key is first found: few patterns are ever needed."""
        by_key: dict[str, list[int]] = {}
        for number, pattern in enumerate(patterns):
            by_key.setdefault(pattern.key, []).append(number)
        self._keys = compile_set(by_key) if by_key else None
        self._patterns_of_key = list(by_key.values())
        """[keys] The numbers of the patterns with this key."""

    def keys(self, text: bytes) -> Iterator[tuple[slice, Sequence[int]]]:
        """Yield the sections with keys in them; most texts have none: then nothing can match."""
        if self._keys is None:
            return
        for start in range(0, max(1, len(text) - OVERLAP), SECTION - OVERLAP):
            section = slice(start, min(len(text), start + SECTION))
            if keys := self._keys.Match(text[section]):
                yield section, keys

    def scan(self, text: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end of every match, one per start, perhaps repeatedly."""
        # The limit holds for the whole text, not for each section.
        looks: defaultdict[int, _Looks] = defaultdict(_Looks)
        for section, found in self.keys(text):
            for number in chain.from_iterable(self._patterns_of_key[key] for key in found):
                if number not in self._finders:
                    self._finders[number] = _Finder(self._patterns[number])
                for start, end in self._finders[number].find(text, section, looks[number]):
                    yield number, start, end


BLOCK = 256
"""Characters that are folded together; positions are mapped back block by block."""

_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Characters that show nothing, and combining marks."""
_STYLED = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u00c0-\u024f\u0250-\u02ff\u0370-\u03ff\u0400-\u058f\u1d00-\u1dbf"
    "\u1e00-\u1eff\u2070-\u209f\u2100-\u214f\u2460-\u24ff\uff00-\uff5e\U0001d400-\U0001d7ff"
    "\U0001f100-\U0001f1ff\u1680\u2000-\u200a\u2010\u2011\u202f\u205f\u2800\u3000"
)
"""Letters with accents, in circles, of other widths, and of related alphabets; other spaces and
hyphens."""
_FOLDABLE = re2.compile(f"[{_HIDDEN}{_STYLED}]")
_QUOTES = dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u2039\u203a", "'") | dict.fromkeys(
    "\u201c\u201d\u201e\u201f\u2033\u300c\u300d", '"'
)
_HALF = re.compile("[\ud800-\udfff]")
_HIDDEN_RUN = re.compile(f"[{_HIDDEN}]+")
_LOOKALIKES = dict(
    zip(
        "\u0430\u0432\u0435\u0451\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445"
        "\u0455\u0501\u051b\u051d\u04bb\u0410\u0412\u0415\u0406\u0408\u041a\u041c\u041d\u041e\u0420"
        "\u0421\u0422\u0423\u0425\u0405\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4"
        "\u03c5\u03c7\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5"
        "\u03a7\u0251\u0261\u0131\u026a\u0262\u1d00\u0299\u1d04\u1d05\u1d07\u029c\u1d0a\u1d0b\u029f"
        "\u1d0d\u0274\u1d0f\u1d18\u0280\u1d1b\u1d1c\u1d20\u1d21\u028f\u1d22\u00f8\u00d8\u0142\u0111"
        "\u042c\u044c\u04c0\u04cf\u0563\u0566\u0570\u0578\u057d\u0581\u0585",
        "abeeijkmhopctyxsdqwhABEIJKMHOPCTYXSabeniknoptuxABEZHIKMNOPTYXagiIGabcdehjklmnoprtuvwyzoOld"
        "bbllgqhnugo",
        strict=True,
    )
) | {"\u1680": " ", "\u2010": "-", "\u2800": " "}
for _first in (0x1F150, 0x1F170, 0x1F1E6):  # white on black, in circles and squares, and of flags
    _LOOKALIKES |= {chr(_first + place): letter for place, letter in enumerate(ascii_lowercase)}
_SPELT = {0xE0000 + code: code for code in range(32, 127)} | {
    0xE00F0 + code: code for code in range(32, 127)
}
"""Characters that show nothing, and that models read as the ASCII ones that they stand for: tags,
and selectors of variants."""


def with_plain_quotes(text: str) -> str:
    """Replace typographic quotation marks and apostrophes by ASCII ones; no position changes."""
    if not text.isascii():
        for mark, plain in _QUOTES.items():
            text = text.replace(mark, plain)
    return text


def without_halves(text: str) -> str:
    """Replace halves of surrogate pairs, which re2 cannot read; no position changes."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def show_spelt(text: str) -> str:
    """Replace hidden characters by the ASCII ones that they stand for; no position changes."""
    return text.translate(_SPELT)


def is_foldable(text: str) -> bool:
    """Whether folding could change `text`."""
    return not text.isascii() and _FOLDABLE.search(text) is not None


def fold_text(text: str) -> str:
    """Drop hidden characters and marks, and replace styled letters by ASCII ones."""
    if text.isascii():
        return text
    bare = _HIDDEN_RUN.sub("", text)
    # Once more, because NFKD splits an accented letter into a letter and a combining mark.
    bare = _HIDDEN_RUN.sub("", unicodedata.normalize("NFKD", bare))
    # Only those that occur, because to look for each of them takes longer.
    for lookalike in _LOOKALIKES.keys() & set(bare):
        bare = bare.replace(lookalike, _LOOKALIKES[lookalike])
    return bare


# Few different characters occur, so each is folded once.
_fold_one = lru_cache(maxsize=4096)(fold_text)


class Folded:
    """A folded text with a map back to the original positions."""

    def __init__(self, original: str) -> None:
        self._original = original
        blocks = [
            fold_text(original[start : start + BLOCK]) for start in range(0, len(original), BLOCK)
        ]
        self.text = "".join(blocks)
        self._starts = [0, *accumulate(map(len, blocks))]
        self._positions: dict[int, list[int]] = {}

    def origin(self, position: int) -> int:
        """Return the original position of the character at `position`."""
        block = bisect_right(self._starts, position) - 1
        if block not in self._positions:
            part = self._original[block * BLOCK : (block + 1) * BLOCK]
            self._positions[block] = [
                block * BLOCK + n for n, c in enumerate(part) for _letter in _fold_one(c)
            ] + [block * BLOCK + len(part)]
        positions = self._positions[block]
        return positions[min(position - self._starts[block], len(positions) - 1)]
