"""Reads through disguises: spacing, leetspeak, encodings, texts written backwards.

A disguise is undone only where a text shows one, and each by what stands within a fixed distance,
so a part of a text is read the same way alone as within the whole.
"""

import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Protocol

import re2

from waltzrl.agents.rules.leetspeak import MIXED, read_signs
from waltzrl.agents.rules.scan import compile_pattern

MOST_PIECES = 100
"""The most encoded or spaced-out pieces that are read per text."""
LONGEST_PIECE = 4_096
"""Characters of an encoded piece of which all is read; of a longer one only what decodes to text,
because data such as a picture is noise, in which short words stand by chance."""
MOST_TEXTS = 1_000
"""The most texts that are read in one decoding of a longer piece."""
CUE_REACH = 80
"""The characters after a word such as rot13 or backwards that may be written so."""

FEWEST_BITS = 32
"""The fewest binary digits that are read as characters."""

_SEPARATORS = b" ._*-"
_SPACED = "|".join(rf"\b[a-z](?:[{chr(c)}][a-z]){{3,}}\b" for c in _SEPARATORS)
_BASE64 = r"[a-z0-9+/]{20,}"
_BINARY = r"[01]{8}(?: ?[01]{8}){3,}"
_HEX_CODE, _DECIMAL_CODE = r"(?:0x|u\+00)?[0-9a-f]{2}", r"[1-9]\d{1,2}"
_CODES = "|".join(rf"\b{code}(?:[ ,]{{1,2}}{code}){{7,}}\b" for code in (_HEX_CODE, _DECIMAL_CODE))
_MORSE = r"[.-]{1,5}(?:[ /|]{1,3}[.-]{1,5}){7,}"
_ROT13_CUE = r"\brot[ -]?13\b"
_BACKWARDS_CUE = r"\b(?:backwards?|reversed?|in reverse)\b"
DISGUISE = rf"{_ROT13_CUE}|{_BACKWARDS_CUE}|{MIXED}|{_SPACED}|{_BINARY}|{_CODES}|{_MORSE}|{_BASE64}"
"""Matches in a text that may be disguised."""
_PIECE = compile_pattern(rf"{_SPACED}|{_BINARY}|{_CODES}|{_MORSE}|{_BASE64}")
_HEXADECIMAL = compile_pattern(r"[0-9a-f]{20,}")
_TEXT = compile_pattern(r"(?:[\t\n\r\x20-\x7e]|[\xc2-\xf4][\x80-\xbf]{1,3}){16,}")
"""Characters in UTF-8; 16 of them in a row are rare in other data."""
_SAYS_ROT13 = compile_pattern(_ROT13_CUE)
_SAYS_BACKWARDS = compile_pattern(_BACKWARDS_CUE)
_SHOWS_DIGITS = compile_pattern(MIXED)
_ROT13 = bytes.maketrans(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"nopqrstuvwxyzabcdefghijklmNOPQRSTUVWXYZABCDEFGHIJKLM",
)
_MORSE_LETTERS: dict[bytes, bytes] = dict(
    zip(
        b".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- "
        b".-- -..- -.-- --..".split(),
        (bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz"),
        strict=True,
    )
)
_BETWEEN = b"\n" * 8
"""The separator of two decodings, so that no match spans both."""


class TextReading(Protocol):
    """Another way to read a text."""

    text: bytes

    def origin(self, position: int) -> int:
        """Return the original position of the character at `position`; it may run backwards."""
        ...

    def trusts(self, start: int, end: int) -> bool:
        """Whether these characters of the original show the disguise."""
        ...


def find_readings(raw: bytes) -> Iterator[TextReading]:
    """Yield the other ways to read a text that matches `DISGUISE`."""
    yield _Undisguised(raw)
    if _SAYS_ROT13.search(raw):
        yield _Whole(raw, raw.translate(_ROT13), _SAYS_ROT13, runs_back=False)
    if _SAYS_BACKWARDS.search(raw):
        yield _Whole(raw, raw[::-1], _SAYS_BACKWARDS, runs_back=True)


class _Whole:
    """All of the text read in another way, trusted only after a word that says so."""

    def __init__(self, raw: bytes, text: bytes, cue: "re2._Regexp", *, runs_back: bool) -> None:
        self.text = text
        self._raw, self._cue, self._runs_back = raw, cue, runs_back

    def origin(self, position: int) -> int:
        return len(self._raw) - 1 - position if self._runs_back else position

    def trusts(self, start: int, end: int) -> bool:
        return self._cue.search(self._raw[max(0, start - CUE_REACH) : start]) is not None


class _Undisguised:
    """The text with pieces decoded, spaced-out words joined, and digits replaced by letters."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        """The start of each part in this reading."""
        self._origins: list[tuple[int, float, bool]] = []
        """The origin of each part: its start in the original, original characters per character
        here, and whether it was decoded or joined.
        """
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
        before = bisect_left(self._decoded, (end, 0))
        return before > 0 and self._decoded[before - 1][1] > start

    @cached_property
    def _decoded(self) -> list[tuple[int, int]]:
        """Start and end, in the original, of what was decoded or joined, in order and apart."""
        spans: list[tuple[int, int]] = []
        parts = zip(self._origins, self._parts, strict=True)
        for start, end in sorted(
            (origin, origin + int(len(part) * scale))
            for (origin, scale, decoded), part in parts
            if decoded
        ):
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((start, end))
        return spans

    def _read(self, raw: bytes) -> None:
        position = 0
        for _piece in range(MOST_PIECES):
            match = _PIECE.search(raw, position)
            if match is None:
                break
            self._add(read_signs(raw[position : match.start()]), position)
            self._add_piece(match.group(), match.start())
            position = match.end()
        self._add(read_signs(raw[position:]), position)

    def _add(self, part: bytes, origin: int, scale: float = 1.0, *, decoded: bool = False) -> None:
        self._parts.append(part)
        self._starts.append(self._length)
        self._origins.append((origin, scale, decoded))
        self._length += len(part)

    def _add_piece(self, piece: bytes, origin: int) -> None:
        """Add all decodings of `piece`; it may be a fragment, so each alignment is tried."""
        if piece[1:2] in _SEPARATORS and piece[:1].isalpha():
            self._add_letters(piece, origin)
            return
        if spellings := _decode_codes(piece):
            for spelt in spellings:
                self._add(spelt, origin, len(piece) / len(spelt), decoded=True)
                self._add(_BETWEEN, origin)
            return
        for phase in range(4):
            self._add(_BETWEEN if phase else b"", origin)
            self._add_decoded(_decode_base64(piece[phase:]), origin + phase, 4 / 3)
        for run in islice(_HEXADECIMAL.finditer(piece), MOST_PIECES):
            # A fragment of hexadecimal digits may begin within a byte.
            for start in (run.start(), run.start() + 1):
                self._add(_BETWEEN, origin)
                digits = piece[start : start + (run.end() - start) // 2 * 2]  # an even number
                self._add_decoded(binascii.unhexlify(digits), origin + start, 2.0)

    def _add_decoded(self, decoded: bytes, origin: int, scale: float) -> None:
        if len(decoded) * scale <= LONGEST_PIECE:
            self._add(decoded, origin, scale, decoded=True)
            return
        for text in islice(_TEXT.finditer(decoded), MOST_TEXTS):
            self._add(text.group(), origin + int(text.start() * scale), scale, decoded=True)
            self._add(_BETWEEN, origin)

    def _add_letters(self, piece: bytes, origin: int) -> None:
        """Add a spaced-out word; a leading `a` or `I` may be a word of its own."""
        letters = piece.translate(None, _SEPARATORS)
        if piece[:2].lower() in (b"a ", b"i "):
            self._add(letters[:1] + b" ", origin)
            self._add(letters[1:], origin + 2, 2.0, decoded=True)
            self._add(_BETWEEN, origin)
        self._add(letters, origin, 2.0, decoded=True)


def _decode_codes(piece: bytes) -> list[bytes]:
    """Return what binary digits, Morse, or codes of characters spell; of codes as decimal and as
    hexadecimal numbers, if they may be both.
    """
    if piece[0] in b".-" and not piece.strip(b".-/| "):
        words = piece.replace(b"|", b"/").split(b"/")
        spelt = (b"".join(_MORSE_LETTERS.get(code, b"?") for code in w.split()) for w in words)
        return [b" ".join(spelt)]
    bits = piece.replace(b" ", b"")
    if len(bits) >= FEWEST_BITS and len(bits) % 8 == 0 and not bits.strip(b"01"):
        return [int(bits, 2).to_bytes(len(bits) // 8)]
    codes = piece.lower().replace(b"0x", b"").replace(b"u+00", b"").replace(b",", b" ").split()
    if len(codes) < 2:
        return []
    spellings = []
    if all(code.isdigit() for code in codes):
        spellings.append(bytes(code if code < 256 else ord("?") for code in map(int, codes)))
    if all(len(code) == 2 for code in codes):
        spellings.append(bytes(int(code, 16) for code in codes))
    return spellings


def _decode_base64(piece: bytes) -> bytes:
    # One character more than a multiple of four holds six bits, which are no byte.
    whole = piece[: len(piece) - (len(piece) % 4 == 1)]
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
