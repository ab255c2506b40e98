"""Reads through markup within words, one round of escapes, and words split over lines.

Each mark is short and decided by what stands next to it, so a part of a text is read the same way
alone as within the whole.
"""

import html
import re
from bisect import bisect_right
from functools import cached_property, lru_cache
from itertools import accumulate

from waltzrl.agents.rules.scan import compile_pattern

MARK_REACH = 80
"""Characters of the longest mark."""
MOST_MARKS = 10_000
"""Marks that are read per text."""

_TAG = rf"<[a-z/!][^<>]{{0,{MARK_REACH - 4}}}>"
_ENTITY = r"&(?:\#[0-9]{1,6}|\#x[0-9a-f]{1,5}|[a-z]{2,8});"
_ESCAPE = r"%[0-9a-f]{2}|\\u[0-9a-f]{4}|\\u\{[0-9a-f]{1,6}\}|\\x[0-9a-f]{2}"
_LINE_END = r"[ \t]{0,3}\r?\n[ \t>]{0,8}"
_CONTROL = r"\x1b\[[0-9;]{0,16}[a-z]|[ -~][\x08\x7f]|[\x00-\x08\x0e-\x1f\x7f-\x9f]"
"""What a terminal does not show: colours, what is deleted, and other characters that control it."""
_WIDE = rf"[ \t\xa0]{{4,{MARK_REACH}}}"

MARKUP = (
    rf"[a-z0-9][*`~]{{1,3}}[a-z0-9]|[a-z]_{{1,2}}[a-z]|\*{{3}}|{_TAG}|{_ENTITY}|{_ESCAPE}"
    rf"|[a-z,]-?{_LINE_END}[a-z]|{_CONTROL}|[a-z0-9,][ \t\xa0]{{4}}"
)
"""Matches in a text that may hide words behind markup."""

_SIGN = compile_pattern(MARKUP)
"""Begins at or one character before a mark."""
_MARKS = re.compile(
    rf"""
    ( {_TAG}
    | (?<=[a-z0-9]) [*`~]{{1,3}} (?=[a-z0-9]) | [*]{{3}}
    | (?<=[a-z]) (?<![a-z]{{4}}) _{{1,2}} (?=[a-z]{{1,3}}(?![a-z]))  # of b_o_mb
    | (?<=[a-z]) -{_LINE_END} (?=[a-z])
    | {_CONTROL}
    )
    |
    ( {_ENTITY} | {_ESCAPE}
    | (?<=[a-z]) _{{1,2}} (?=[a-z])  # of make_a_bomb
    | (?<=[a-z,]) {_LINE_END} (?=[a-z])
    | (?<=[a-z0-9,]) {_WIDE} (?=[a-z0-9])
    )
    """.encode(),
    re.IGNORECASE | re.VERBOSE,
)
"""Group 1: marks that vanish. Group 2: marks that stand for a character."""


class Unmarked:
    """The text without marks within its words, escapes decoded, and lines joined."""

    def __init__(self, raw: bytes) -> None:
        self._pieces = _split_at_marks(raw)
        """Text, vanishing mark or nothing, other mark or nothing, text ..."""
        self._shown = self._pieces.copy()
        for place in range(2, len(self._shown), 3):
            self._shown[place - 1] = b""
            self._shown[place] = _decode_mark(self._shown[place])
        self.text = b"".join(self._shown)

    def origin(self, position: int) -> int:
        """Return the original position of the character at `position`."""
        piece = bisect_right(self._starts[0], position) - 1
        return self._starts[1][piece] + position - self._starts[0][piece]

    def trusts(self, _start: int, _end: int) -> bool:
        """Always; what shows no mark was read so before."""
        return True

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """Start of each piece in the reading and in the original."""
        shown = accumulate(map(len, self._shown), initial=0)
        given = accumulate(map(len, self._pieces), initial=0)
        return list(shown), list(given)


def _split_at_marks(raw: bytes) -> list[bytes]:
    """Split at the marks as `_MARKS.split` does, which would hold all threads in a long text."""
    pieces: list[bytes] = []
    done = place = 0
    while len(pieces) < 3 * MOST_MARKS and (sign := _SIGN.search(raw, place)):
        start = max(done, sign.start())
        mark = _MARKS.search(raw, start, start + 3 * MARK_REACH)
        if mark is None or mark.start() > start + MARK_REACH:  # the sign of none
            place = sign.start() + 1
            continue
        pieces += [raw[done : mark.start()], mark[1] or b"", mark[2] or b""]
        done = mark.end()
        place = done - 1  # the last character of a mark may stand before another
    return [*pieces, raw[done:]]


@lru_cache(maxsize=1024)
def _decode_mark(mark: bytes) -> bytes:
    """Return the character that a mark stands for."""
    match mark[:1]:
        case b"":
            return b""
        case b"%":
            return bytes.fromhex(mark[1:].decode())
        case b"&":
            return html.unescape(mark.decode()).encode("latin-1", "replace")
        case b"\\":
            code = int(mark[2:].strip(b"{}"), 16)
            return chr(min(code, 0x10FFFF)).encode("latin-1", "replace")
    return b" "
