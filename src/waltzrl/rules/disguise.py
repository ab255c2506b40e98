"""Reads through disguises: lookalike and hidden characters, spacing, leetspeak, encodings.

Folding works on single characters, so the fold of a part is a part of the fold. Other disguises are
undone only where a text shows one, and each by what stands within a fixed distance, so a part of a
text is read the same way alone as within the whole.
"""

import binascii
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, islice
from typing import Protocol

import re2

from waltzrl.rules.scan import compiled

BLOCK = 256
"""Characters that are folded together; positions are mapped back block by block."""

_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e007f\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Characters without a width, and combining marks."""
_STYLED = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u00c0-\u024f\u0250-\u02ff\u0370-\u03ff\u0400-\u052f\u1d00-\u1dbf"
    "\u1e00-\u1eff\u2070-\u209f\u2100-\u214f\u2460-\u24ff\uff00-\uff5e\U0001d400-\U0001d7ff"
    "\U0001f100-\U0001f1ff"
)
"""Letters with accents, in circles, of other widths, and of related alphabets."""
_FOLDABLE = re2.compile(f"[{_HIDDEN}{_STYLED}]")
_HIDDEN_RUN = re.compile(f"[{_HIDDEN}]+")
_LOOKALIKES = dict(
    zip(
        "\u0430\u0432\u0435\u0451\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445"
        "\u0455\u0501\u051b\u051d\u04bb\u0410\u0412\u0415\u0406\u0408\u041a\u041c\u041d\u041e\u0420"
        "\u0421\u0422\u0423\u0425\u0405\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4"
        "\u03c5\u03c7\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5"
        "\u03a7\u0251\u0261\u0131\u026a\u0262\u1d00\u0299\u1d04\u1d05\u1d07\u029c\u1d0a\u1d0b\u029f"
        "\u1d0d\u0274\u1d0f\u1d18\u0280\u1d1b\u1d1c\u1d20\u1d21\u028f\u1d22\u00f8\u00d8\u0142\u0111",
        "abeeijkmhopctyxsdqwhABEIJKMHOPCTYXSabeniknoptuxABEZHIKMNOPTYXagiIGabcdehjklmnoprtuvwyzoOld",
        strict=True,
    )
)


def foldable(text: str) -> bool:
    """Whether folding could change `text`."""
    return not text.isascii() and _FOLDABLE.search(text) is not None


def fold(text: str) -> str:
    """Drop hidden characters and marks, and replace styled letters by ASCII ones."""
    if text.isascii():
        return text
    bare = _HIDDEN_RUN.sub("", text)
    bare = _HIDDEN_RUN.sub("", unicodedata.normalize("NFKD", bare))
    for lookalike in _LOOKALIKES.keys() & set(bare):
        bare = bare.replace(lookalike, _LOOKALIKES[lookalike])
    return bare


_fold_one = lru_cache(maxsize=4096)(fold)


class Folded:
    """A folded text with a map back to the original positions."""

    def __init__(self, original: str) -> None:
        self._original = original
        blocks = [fold(original[start : start + BLOCK]) for start in range(0, len(original), BLOCK)]
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


MOST_PIECES = 100
"""Encoded or spaced-out pieces that are read per text."""
ROT13_REACH = 80
"""Characters after the word rot13 that may be encoded."""

_MIXED = r"[a-z][0-9@$!|]{1,3}[a-z]|[0-9@$][a-z]{3}"
_SEPARATORS = b" ._*-"
_SPACED = "|".join(rf"\b[a-z](?:[{chr(c)}][a-z]){{3,}}\b" for c in _SEPARATORS)
_BASE64 = r"[a-z0-9+/]{20,}"
_ROT13_CUE = r"\brot[ -]?13\b"
DISGUISE = rf"{_ROT13_CUE}|{_MIXED}|{_SPACED}|{_BASE64}"
"""Matches in a text that may be disguised."""
_PIECE = compiled(rf"{_SPACED}|{_BASE64}")
_HEXADECIMAL = compiled(r"[0-9a-f]{20,}")
_SAYS_ROT13 = compiled(_ROT13_CUE)
_SHOWS_DIGITS = compiled(_MIXED)
_LETTERS = bytes.maketrans(b"013457@$!|8", b"oieastasilb")
_ROT13 = bytes.maketrans(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"nopqrstuvwxyzabcdefghijklmNOPQRSTUVWXYZABCDEFGHIJKLM",
)
_BETWEEN = b"\n" * 8
"""Separates two decodings, so that no match spans both."""


class TextReading(Protocol):
    """Another way to read a text."""

    text: bytes

    def origin(self, position: int) -> int:
        """Return the original position of the character at `position`."""
        ...

    def trusts(self, start: int, end: int) -> bool:
        """Whether these characters of the original show the disguise."""
        ...


def readings(raw: bytes) -> Iterator[TextReading]:
    """Yield the other ways to read a text that matches `DISGUISE`."""
    yield _Undisguised(raw)
    if _SAYS_ROT13.search(raw):
        yield _Rotated(raw)


class _Rotated:
    """The text in rot13, trusted only after the word rot13."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.text = raw.translate(_ROT13)

    def origin(self, position: int) -> int:
        return position

    def trusts(self, start: int, end: int) -> bool:
        return _SAYS_ROT13.search(self._raw[max(0, start - ROT13_REACH) : start]) is not None


class _Undisguised:
    """The text with pieces decoded, spaced-out words joined, and digits replaced by letters."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        """Start of each part in this reading."""
        self._origins: list[tuple[int, float, bool]] = []
        """For each part: its start in the original, original characters per character here, and
        whether it was decoded or joined."""
        self._length = 0
        self._read(raw)
        self.text = b"".join(self._parts)

    def origin(self, position: int) -> int:
        part = bisect_right(self._starts, position) - 1
        origin, scale, _decoded = self._origins[part]
        return origin + int((position - self._starts[part]) * scale)

    def trusts(self, start: int, end: int) -> bool:
        if _SHOWS_DIGITS.search(self._raw[start:end]):
            return True
        return any(
            decoded and origin < end and origin + int(len(part) * scale) > start
            for part, (origin, scale, decoded) in zip(self._parts, self._origins, strict=True)
        )

    def _read(self, raw: bytes) -> None:
        position = 0
        for _piece in range(MOST_PIECES):
            match = _PIECE.search(raw, position)
            if match is None:
                break
            self._add(raw[position : match.start()].translate(_LETTERS), position)
            self._add_piece(match.group(), match.start())
            position = match.end()
        self._add(raw[position:].translate(_LETTERS), position)

    def _add(self, part: bytes, origin: int, scale: float = 1.0, *, decoded: bool = False) -> None:
        self._parts.append(part)
        self._starts.append(self._length)
        self._origins.append((origin, scale, decoded))
        self._length += len(part)

    def _add_piece(self, piece: bytes, origin: int) -> None:
        """Add all decodings of `piece`; it may be a fragment, so each alignment is tried."""
        if piece[1:2] in _SEPARATORS:
            self._add_letters(piece, origin)
            return
        for phase in range(4):
            self._add(_BETWEEN if phase else b"", origin)
            self._add(_from_base64(piece[phase:]), origin + phase, 4 / 3, decoded=True)
        for run in islice(_HEXADECIMAL.finditer(piece), MOST_PIECES):
            for start in (run.start(), run.start() + 1):
                self._add(_BETWEEN, origin)
                digits = piece[start : start + (run.end() - start) // 2 * 2]  # an even number
                self._add(binascii.unhexlify(digits), origin + start, 2.0, decoded=True)

    def _add_letters(self, piece: bytes, origin: int) -> None:
        """Add a spaced-out word; a leading `a` or `I` may be a word of its own."""
        letters = piece.translate(None, _SEPARATORS)
        if piece[:2].lower() in (b"a ", b"i "):
            self._add(letters[:1] + b" ", origin)
            self._add(letters[1:], origin + 2, 2.0, decoded=True)
            self._add(_BETWEEN, origin)
        self._add(letters, origin, 2.0, decoded=True)


def _from_base64(piece: bytes) -> bytes:
    whole = piece[: len(piece) - (len(piece) % 4 == 1)]
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
