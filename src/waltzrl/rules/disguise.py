"""Reads through disguises: spaced-out letters, digits for letters, base64, hexadecimal, rot13.

A disguise is looked for only where a text shows one, and each is undone by what stands within a
fixed distance, so that a part of a text is read as it is read in the whole.
"""

import binascii
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from waltzrl.rules.scan import compiled

MOST_PIECES = 100
"""Encoded or spaced-out pieces of one text that are read."""
ROT13_REACH = 80
"""Characters after the word rot13 that may be in it."""

_MIXED = r"[a-z][0-9@$!|]{1,3}[a-z]|[0-9@$][a-z]{3}"
_SEPARATORS = b" ._*-"
_SPACED = "|".join(rf"\b[a-z](?:[{chr(c)}][a-z]){{3,}}\b" for c in _SEPARATORS)
_BASE64 = r"[a-z0-9+/]{20,}"
_ROT13_CUE = r"\brot[ -]?13\b"
DISGUISE = rf"{_ROT13_CUE}|{_MIXED}|{_SPACED}|{_BASE64}"
"""Shows that a text may be disguised."""
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
"""Parts two decodings, so that no match reaches from one into the other."""


class TextReading(Protocol):
    """Another way to read a text."""

    text: bytes

    def origin(self, place: int) -> int:
        """Return where the character at `place` stands in the text as it was."""
        ...

    def trusts(self, start: int, end: int) -> bool:
        """Whether a disguise shows in these characters of the text as it was."""
        ...


def readings(raw: bytes) -> Iterator[TextReading]:
    """Yield the ways to read a text that matches `DISGUISE`."""
    yield _Undisguised(raw)
    if _SAYS_ROT13.search(raw):
        yield _Rotated(raw)


class _Rotated:
    """The text with every letter moved by thirteen, trusted only after the word rot13."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.text = raw.translate(_ROT13)

    def origin(self, place: int) -> int:
        return place

    def trusts(self, start: int, end: int) -> bool:
        return _SAYS_ROT13.search(self._raw[max(0, start - ROT13_REACH) : start]) is not None


class _Undisguised:
    """The text with encoded pieces decoded, spaced-out words joined, and letters for digits."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        """Where each part begins in the reading."""
        self._origins: list[tuple[int, float, bool]] = []
        """Where each part begins in the text, its characters there for each one here, and whether
        it is a piece that was decoded or joined."""
        self._length = 0
        self._read(raw)
        self.text = b"".join(self._parts)

    def origin(self, place: int) -> int:
        part = bisect_right(self._starts, place) - 1
        origin, scale, _piece = self._origins[part]
        return origin + int((place - self._starts[part]) * scale)

    def trusts(self, start: int, end: int) -> bool:
        if _SHOWS_DIGITS.search(self._raw[start:end]):
            return True
        return any(
            piece and origin < end and origin + int(len(part) * scale) > start
            for part, (origin, scale, piece) in zip(self._parts, self._origins, strict=True)
        )

    def _read(self, raw: bytes) -> None:
        place = 0
        for _piece in range(MOST_PIECES):
            found = _PIECE.search(raw, place)
            if found is None:
                break
            self._add(raw[place : found.start()].translate(_LETTERS), place)
            self._add_piece(found.group(), found.start())
            place = found.end()
        self._add(raw[place:].translate(_LETTERS), place)

    def _add(self, part: bytes, origin: int, scale: float = 1.0, *, piece: bool = False) -> None:
        self._parts.append(part)
        self._starts.append(self._length)
        self._origins.append((origin, scale, piece))
        self._length += len(part)

    def _add_piece(self, piece: bytes, origin: int) -> None:
        """Add what `piece` says, from each beginning: it may be a cut of something longer."""
        if piece[1:2] in _SEPARATORS:
            self._add_letters(piece, origin)
            return
        for phase in range(4):
            self._add(_BETWEEN if phase else b"", origin)
            self._add(_from_base64(piece[phase:]), origin + phase, 4 / 3, piece=True)
        for run in islice(_HEXADECIMAL.finditer(piece), MOST_PIECES):
            for start in (run.start(), run.start() + 1):
                self._add(_BETWEEN, origin)
                decoded = _from_hexadecimal(piece[start : run.end()])
                self._add(decoded, origin + start, 2.0, piece=True)

    def _add_letters(self, piece: bytes, origin: int) -> None:
        """Add a word that was spaced out; an `a` or `I` before it may be a word of its own."""
        letters = piece.translate(None, _SEPARATORS)
        if piece[:2].lower() in (b"a ", b"i "):
            self._add(letters[:1] + b" ", origin)
            self._add(letters[1:], origin + 2, 2.0, piece=True)
            self._add(_BETWEEN, origin)
        self._add(letters, origin, 2.0, piece=True)


def _from_hexadecimal(piece: bytes) -> bytes:
    return binascii.unhexlify(piece[: len(piece) // 2 * 2])


def _from_base64(piece: bytes) -> bytes:
    whole = piece[: len(piece) - (len(piece) % 4 == 1)]
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
