"""Reads digits and signs within words as the letters that they stand for.

A sign may stand for several letters, so a word is looked up among those of the rules and of the
model of requests; one that is not there is read sign by sign. A word keeps its length.
"""

import re
from functools import cache, lru_cache
from itertools import chain

from waltzrl.agents.rules.pack import DEFAULT_PACKS, read_shipped
from waltzrl.agents.rules.request_model import load_request_model

MIXED = r"[a-z][0-9@$!|][0-9@$!|(+]{0,2}[a-z]|[0-9@$][a-z]{3}"
"""Matches in a text that may have such words."""
MOST_WORDS = 10_000
"""The most words that are looked up per text."""
LONGEST_WORD = 20
"""Characters of the longest word that is looked up."""

_WORD = re.compile(
    rb"(?<![a-z0-9@$!|(+])[a-z0-9@$!|(+]{2,%d}(?![a-z0-9@$!|(+])" % LONGEST_WORD, re.IGNORECASE
)
_SIGN = re.compile(rb"[0-9@$!|]")
_PLAIN_WORD = re.compile(rf"[a-z]{{3,{LONGEST_WORD}}}")
_ANYWHERE = bytes.maketrans(b"013457@$!|8", b"oieastasilb")
"""What a sign is read as, whatever stands beside it."""
_WITHIN = bytes.maketrans(b"013457@$!|8962", b"oieastasilbggz")
"""What it is read as in an unknown word."""
_ALIKE = bytes.maketrans(b"013457@$!|8962(+lb", b"oieastasiigggzctig")
"""Makes those words equal that may be the same."""
_LETTERS = {b"1": b"il", b"!": b"il", b"|": b"il", b"6": b"bg", b"8": b"b", b"9": b"g"}
"""What a sign may stand for, where `_ALIKE` makes several letters equal."""


def read_signs(text: bytes) -> bytes:
    """Return a text of the same length with digits and signs as letters."""
    shown = bytearray(text.translate(_ANYWHERE))
    left = MOST_WORDS
    for match in _WORD.finditer(text):
        word = match.group()
        if word.isalpha() or not _SIGN.search(word):
            continue
        shown[match.start() : match.end()] = _read_word(word.lower())
        left -= 1
        if not left:
            break
    return bytes(shown)


@lru_cache(maxsize=4096)
def _read_word(word: bytes) -> bytes:
    """Return a word in letters; a bracket before it and a mark behind it need not belong to it."""
    for start, end in ((0, len(word)), (0, len(word.rstrip(b"!|(+"))), (1, len(word))):
        for known in _load_words().get(word[start:end].translate(_ALIKE), ()):
            if all(map(_may_be, word[start:end], known)):
                return word[:start] + known + word[end:]
    if word.isdigit():
        return word.translate(_ANYWHERE)
    # Two ones in a row are l, as in ki11, because hardly a word has i twice.
    return word.replace(b"11", b"ll").translate(_WITHIN)


def _may_be(sign: int, letter: int) -> bool:
    own = bytes((sign,))
    return letter in _LETTERS.get(own, own if own.isalpha() else own.translate(_ALIKE))


@cache
def _load_words() -> dict[bytes, tuple[bytes, ...]]:
    """Return the known words by what `_ALIKE` makes of them."""
    model = [word for word in load_request_model().features if _PLAIN_WORD.fullmatch(word)]
    packs = (_PLAIN_WORD.findall(read_shipped(name).decode()) for name in (*DEFAULT_PACKS, "words"))
    words: dict[bytes, tuple[bytes, ...]] = {}
    for word in dict.fromkeys(chain(model, *packs)):
        known = word.encode()
        alike = known.translate(_ALIKE)
        words[alike] = (*words.get(alike, ()), known)
    return words
