"""What stands in a text for a piece that was taken out: `[REDACTED:email]` and its like.

The bytes of hashes and seals are spelt in the letters a to p. No pattern of the scanner finds
anything in those, and nobody can hide personal data in what only looks like a stand-in.
"""

import re

from waltzrl.privacy.detection import KINDS, Kind

HASH_BYTES = 16

_KINDS = "|".join(KINDS)
_HASH = f"[a-p]{{{2 * HASH_BYTES}}}"
STAND_IN = re.compile(
    rf"\[(?:REDACTED:(?:{_KINDS})|(?:{_KINDS}):{_HASH}|SEALED:(?:{_KINDS}):[a-p]+)\]"
)
SEALED = re.compile(rf"\[SEALED:({_KINDS}):((?:[a-p]{{2}})+)\]")
"""Groups: the kind, and the letters of what was sealed."""

_TO_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_TO_DIGITS = str.maketrans("abcdefghijklmnop", "0123456789abcdef")


def covered(text: str) -> str:
    """Return the text with every stand-in made blank, each character in its place."""
    return STAND_IN.sub(lambda match: "]" * len(match[0]), text) if "[" in text else text


def redacted(kind: Kind) -> str:
    return f"[REDACTED:{kind}]"


def hashed(kind: Kind, digest: bytes) -> str:
    return f"[{kind}:{in_letters(digest[:HASH_BYTES])}]"


def sealed(kind: Kind, content: bytes) -> str:
    return f"[SEALED:{kind}:{in_letters(content)}]"


def in_letters(data: bytes) -> str:
    return data.hex().translate(_TO_LETTERS)


def from_letters(letters: str) -> bytes:
    return bytes.fromhex(letters.translate(_TO_DIGITS))
