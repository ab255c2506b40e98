"""Reads a request whose pieces are to be joined: strings, variables, lists, numbered parts.

What stands between two pieces is left out. Strings that a sign adds up, or that are given names,
are joined in any request; other pieces where the request speaks of joining.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

import re2

from waltzrl.agents.rules.scan import compile_pattern

MOST_JOINTS = 200
"""The most gaps between pieces that are closed per text."""
WIDEST_JOINT = 60
"""Characters between two strings that are joined."""
LONGEST_PIECE = 300
"""Characters of a string that may be a piece."""
LONGEST_GIVING = 24
"""Characters of a name and its sign before a string."""
AROUND = 400
"""Characters before and behind each joint that are read with it."""

_OPENING_QUOTE = "[\\s(\\[{=+,:&]['\"`\u00ab]"
_CUE = (
    r"\b(?:join|concat|combin|merg(?:e|ing)|glu(?:e|ing)|stitch|(?:re)?assembl|append|fus(?:e|ing)"
    r"|unit(?:e|ing)\b|together\b|in (?:order|sequence|pieces|parts|chunks)\b|fragments?\b"
    r"|segments?\b|halves|puzzle|followed by\b|(?:as|into) (?:one|a single)\b"
    r"|(?:complete|whole) (?:sentence|question|text|message|thing)\b"
    r"|(?:part|piece|half|chunk|string|bit)(?: \w{1,5})? ?(?:[:=-]|is ['\"`\xab]))"
)
PIECES = rf"(?s:{_OPENING_QUOTE}.*{_OPENING_QUOTE})|\w\s?:?=\s?['\"`\xab]|{_CUE}"
"""Matches in a request that may consist of pieces."""
_SAYS_JOIN = compile_pattern(_CUE)

_STRING = compile_pattern(
    r"""\"(?:[^"\\\n]|\\.)+\"|\B'(?:[^'\\\n]|\\.|\b'\b)+'\B|`[^`\n]+`|\xab[^\xab\xbb\n]+\xbb"""
)
_NAME = r"\$?\b[a-z_]\w{0,15}\b"
_GIVEN = r"\s{0,3}(?::?=|:|=>|->|\bis|\bbe)\s{0,3}"
_GIVES_NAME = compile_pattern(rf"{_NAME}[\"']?{_GIVEN}f?$")
"""Before a string, where it is given a name."""
_ADDS_UP = compile_pattern(
    r"^(?:\s{0,4}[+.&|~]{0,2}|[\s;,.)]{0,4}(?:(?:and|let|const|var|set|then)\s{1,2}){0,2}"
    rf"{_NAME}{_GIVEN})[\s(f]{{0,4}}$"
)
"""Between two strings that belong together without a word about it."""
_ORDINAL = r"\b(?:first|second|third|fourth|fifth|sixth|last|final|next|1st|2nd|3rd|[4-9]th)"
_PART = r"(?:part|piece|half|fragment|chunk|segment|bit|string|line)"
_NUMBER = r"(?:\d{1,2}|[a-h]|[ivx]{1,4})"
_SEPARATOR = compile_pattern(
    r"[\s,;.]{0,3}(?:\b(?:and|then)\s)?(?:\b(?:the|my)\s)?"  # Part 2:
    rf"(?:{_ORDINAL}(?:\s{_PART})?|\b{_PART}\s#?\w{{1,5}})(?: is)?\s?[:=-]\s?"
    rf"|[\s,;]{{0,2}}[(\[]{_NUMBER}[)\]]\s?|(?:(?m:^)|[\s,;]{{1,2}}){_NUMBER}[.):]\s"  # (2), 2.
    r"|[\s,;]{0,3}(?:\band\s)?\b[a-z]\w{0,7}\s?:?=\s?"  # b =
    r"| (?:\|\|?|\+|//?|~|\.{3}|--?|[-=]>|;|&|\\) |\|\|?|\+|//|~|\.{3}|--|[-=]>|\\| ?\n[-*] "
)
"""Between two pieces without quotation marks."""
_USE = compile_pattern(
    rf"{_NAME}(?:(?:\s?[+.&]\s?|\s(?:and|then|followed by|plus)\s|\.concat\(){_NAME}\)?)+"
    r"|\{{1,2}\s?\w{1,16}\s?\}{1,2}|\[\w{1,16}\]|<\w{1,16}>|%\w{1,16}%|\$\w{1,16}\b"
    r"|\b(?-i:[A-Z][A-Z0-9_]{0,7})\b"
)
"""Where a name, or a sum of names, may stand for its string."""
_EACH_NAME = re.compile(rb"[^\W\d]\w*")
_SIGN_OF_SUM = (b"concat", b"and", b"then", b"followed", b"by", b"plus")

_BETWEEN = b"\n" * 8
"""In the place of what is left out, so that no match spans it."""
Replacement = tuple[int, int, bytes]
"""Start and end in the text, and what is read there."""


class JoinedReading:
    """What stands around the joints of a text, with these replaced."""

    def __init__(self, raw: bytes, replacements: list[Replacement]) -> None:
        parts: list[bytes] = []
        self._origins: list[tuple[int, int]] = []
        """Start and end of each part in the original."""
        self._replaced: list[bool] = []
        done = max(0, replacements[0][0] - AROUND)
        for start, end, shown in replacements:
            if start - done > 2 * AROUND:  # far from both joints
                parts += [raw[done : done + AROUND], _BETWEEN]
                self._origins += [(done, done + AROUND), (done + AROUND, start - AROUND)]
                self._replaced += [False, False]
                done = start - AROUND
            parts += [raw[done:start], shown]
            self._origins += [(done, start), (start, end)]
            self._replaced += [False, True]
            done = end
        parts.append(raw[done : done + AROUND])
        self._origins.append((done, min(done + AROUND, len(raw))))
        self._replaced.append(False)
        self._starts = list(accumulate(map(len, parts), initial=0))
        self.text = b"".join(parts).decode("latin-1")

    def origin(self, position: int) -> int:
        """Return the original position of the character at `position`."""
        part = self._part_at(position)
        start, end = self._origins[part]
        if position + 1 == self._starts[part + 1]:  # the last one, of a longer name perhaps
            return max(start, end - 1)
        return min(start + position - self._starts[part], max(start, end - 1))

    def joins(self, start: int, end: int) -> bool:
        """Whether characters of this reading stand apart in the original."""
        return any(self._replaced[self._part_at(start) : self._part_at(end - 1) + 1])

    def _part_at(self, position: int) -> int:
        return min(bisect_right(self._starts, position), len(self._origins)) - 1


def find_joined(raw: bytes) -> Iterator[JoinedReading]:
    """Yield a text that matches `PIECES` with its pieces joined, without and with spaces."""
    strings = _find_spans(_STRING, raw)
    says_join = _SAYS_JOIN.search(raw) is not None
    between = [_between_strings(raw, strings, says_join=says_join)]
    if says_join:
        between.append(_find_spans(_SEPARATOR, raw))
    values = _find_values(raw, strings)
    for joint in (b"", b" "):
        for joints in between:
            if joints:
                yield JoinedReading(raw, [(start, end, joint) for start, end in joints])
        if values and (uses := _find_uses(raw, values, joint)):
            yield JoinedReading(raw, uses)


def _find_spans(pattern: "re2._Regexp", raw: bytes) -> list[tuple[int, int]]:
    """Return start and end of the first matches that are not empty."""
    spans: list[tuple[int, int]] = []
    place = 0
    while len(spans) < MOST_JOINTS and (match := pattern.search(raw, place)):
        spans.append(match.span())
        place = match.end()
    return spans


def _between_strings(
    raw: bytes, strings: list[tuple[int, int]], *, says_join: bool
) -> list[tuple[int, int]]:
    """Return start and end, with quotation marks, of what stands between strings to be joined."""
    pieces = [
        (start, end)
        for start, end in strings
        if end - start <= LONGEST_PIECE and raw[end : end + 1] != b":"  # a key of JSON
    ]
    return [
        (end - 1, start + 1)
        for (_, end), (start, _) in pairwise(pieces)
        if start - end <= WIDEST_JOINT and (says_join or _ADDS_UP.search(raw[end:start]))
    ]


def _find_values(raw: bytes, strings: list[tuple[int, int]]) -> dict[bytes, bytes]:
    """Return the strings that are given names."""
    values = {}
    for start, end in strings:
        if end - start <= LONGEST_PIECE:
            named = _GIVES_NAME.search(raw[max(0, start - LONGEST_GIVING) : start])
            if named and (name := _EACH_NAME.search(named[0])):
                values[name[0]] = raw[start + 1 : end - 1]
    return values


def _find_uses(raw: bytes, values: dict[bytes, bytes], joint: bytes) -> list[Replacement]:
    """Return the places where names are used, and the strings that they stand for."""
    uses: list[Replacement] = []
    for start, end in _find_spans(_USE, raw):
        names = _EACH_NAME.findall(raw[start:end])
        # A word such as `and` may be a name as well.
        names = [name for name in names if name in values or name not in _SIGN_OF_SUM]
        is_given = raw[end : end + 3].lstrip()[:1] in (b"=", b":")
        if names and not is_given and all(name in values for name in names):
            uses.append((start, end, joint.join(values[name] for name in names)))
    return uses
