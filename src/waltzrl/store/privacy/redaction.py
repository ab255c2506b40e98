"""Removes detected personal data from texts: redact, mask, hash, keep or seal, per kind."""

import hmac
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waltzrl.store.privacy.detection import KINDS, Detection, Detector, Kind

Action = Literal["redact", "mask", "hash", "keep", "seal"]
"""What ada@example.com is replaced by.

redact  [REDACTED:email]
mask    ***@*******.***     of cards, accounts, ids and telephone numbers the last four remain
hash    [email:dbnk...]     keyed: equal pieces get equal hashes
keep    ada@example.com
seal    [SEALED:email:...]  can be restored with the key of the vault
"""

_LAST_FOUR_SHOWN: tuple[Kind, ...] = ("phone", "credit_card", "iban", "ssn", "national_id")
ESCAPE = re.compile(r"\\(?:\\|u005[cC])*(?:u([0-9a-fA-F]{4})|([nrt]))?")
"""A JSON escape, also within nested JSON: a character by its number, or white space. Backslashes
that escape nothing match too; otherwise the search would start again at each of them."""


class RedactionRules:
    """Removes personal data from texts, with one action per kind."""

    def __init__(
        self,
        actions: Mapping[Kind, Action],
        detector: Detector,
        key: bytes | None = None,
        vault: "Vault | None" = None,
    ) -> None:
        """Choose what happens to each kind.

        Args:
            actions: kinds that are not listed are redacted.
            detector: finds the personal data.
            key: of the hashes.
            vault: seals pieces.

        Raises:
            ValueError: an action needs a key or a vault that was not given.
        """
        if key is None and "hash" in actions.values():
            raise ValueError("the action `hash` needs a key, got none; pass one, or use `redact`")
        if vault is None and "seal" in actions.values():
            raise ValueError("the action `seal` needs a vault, got none; pass one, or use `redact`")
        self._actions = dict(actions)
        self._detector = detector
        self._key = key
        self._vault = vault

    def scrub(self, text: str) -> str:
        r"""Return the text without personal data, including data hidden in JSON escapes.

        Tool arguments and reviews are JSON, whole or truncated, in which `ada\u0040example.com` is
        an address. Escapes are resolved only if one of them hides something.
        """
        scrubbed = replace_pieces(text, self._unwanted, self._replacement)
        unescaped = resolve_escapes(scrubbed)
        if unescaped == scrubbed:
            return scrubbed
        # Escapes without personal data stay as they were: resolving them would break the JSON.
        revealed = replace_pieces(unescaped, self._unwanted, self._replacement)
        return scrubbed if revealed == unescaped else revealed

    def _unwanted(self, text: str) -> list[Detection]:
        """Return the detections in `text` that must be replaced."""
        if "[" in text:  # overwrite placeholders, so that nothing in them is detected again
            text = _PLACEHOLDER.sub(lambda match: "]" * len(match[0]), text)
        return [d for d in self._detector.find(text) if self._actions.get(d.kind) != "keep"]

    def _replacement(self, piece: str, kind: Kind) -> str:
        action = self._actions.get(kind, "redact")
        if action == "mask":
            return mask_piece(piece, kind)
        if action == "hash" and self._key is not None:
            content = piece.encode(errors="surrogatepass")
            digest = hmac.digest(self._key, content, "sha256")
            return f"[{kind}:{_to_letters(digest[:_HASH_BYTES])}]"
        if action == "seal" and self._vault is not None:
            return self._vault.seal(piece, kind)
        return f"[REDACTED:{kind}]"


def replace_pieces(
    text: str,
    find: Callable[[str], Sequence[Detection]],
    replacement: Callable[[str, Kind], str],
) -> str:
    """Replace what `find` finds in a text.

    A replacement may bring a hint and a value together, so the text is searched until nothing more
    is found. Every pass leaves less to find: `find` must find nothing in a replacement.
    """
    while detections := find(text):
        parts = []
        position = 0
        for detection in detections:
            parts.append(text[position : detection.start])
            parts.append(replacement(text[detection.start : detection.end], detection.kind))
            position = detection.end
        before, text = text, "".join([*parts, text[position:]])
        if text == before:  # a mask may leave a piece as it is
            break
    return text


def find_redacted_kinds(texts: Iterable[str]) -> Iterator[str]:
    """Yield the kind of each placeholder in texts; a mask leaves none."""
    for text in texts:
        for match in _PLACEHOLDER.finditer(text):
            yield (
                match[0]
                .strip("[]")
                .removeprefix("REDACTED:")
                .removeprefix("SEALED:")
                .partition(":")[0]
            )


def mask_piece(piece: str, kind: Kind) -> str:
    """Replace letters and digits by `*`, except for the last four of a long number."""
    positions = [n for n, character in enumerate(piece) if character.isalnum()]
    shown = 4 if kind in _LAST_FOUR_SHOWN and len(positions) > 8 else 0
    hidden = set(positions[: len(positions) - shown])
    return "".join("*" if n in hidden else character for n, character in enumerate(piece))


def resolve_escapes(text: str) -> str:
    """Return the text with its escapes resolved, in a form that every database accepts."""
    unescaped = ESCAPE.sub(_resolve_escape, text)
    if unescaped == text:
        return text
    # Two escapes of a surrogate pair become one character, and a lone half the replacement mark.
    whole = unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", " ")


def _resolve_escape(escape: re.Match[str]) -> str:
    number, space = escape.groups()
    return chr(int(number, 16)) if number else " " if space else escape[0]


# Placeholders spell the bytes of hashes and seals in the letters a to p. No pattern of the scanner
# matches those, and no personal data can be hidden in what only looks like a placeholder.
_HASH_BYTES = 16
_NONCE_BYTES = 12
_ANY_KIND = "|".join(KINDS)
_SEALED = re.compile(rf"\[SEALED:({_ANY_KIND}):((?:[a-p]{{2}})+)\]")
"""Groups: the kind, and the letters of the sealed bytes."""
_PLACEHOLDER = re.compile(
    rf"\[(?:REDACTED:(?:{_ANY_KIND})|(?:{_ANY_KIND}):[a-p]{{{2 * _HASH_BYTES}}}"
    rf"|SEALED:(?:{_ANY_KIND}):[a-p]+)\]"
)
_TO_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_TO_DIGITS = str.maketrans("abcdefghijklmnop", "0123456789abcdef")


class Vault:
    """Seals pieces of text under a key, and restores them.

    A sealed piece is `[SEALED:email:...]`: AES-GCM over the piece, bound to its kind, each with its
    own nonce, so that equal pieces look different.
    """

    def __init__(self, key: bytes) -> None:
        """Take a key of 16, 24 or 32 bytes.

        Raises:
            ValueError: the key has another length.
        """
        self._cipher = AESGCM(key)

    def seal(self, piece: str, kind: Kind) -> str:
        """Return the placeholder from which `open_text` restores the piece."""
        nonce = os.urandom(_NONCE_BYTES)
        content = piece.encode(errors="surrogatepass")
        sealed = nonce + self._cipher.encrypt(nonce, content, kind.encode())
        return f"[SEALED:{kind}:{_to_letters(sealed)}]"

    def open_text(self, text: str) -> str:
        """Restore every piece that was sealed with this key; leave other seals as they are."""
        return _SEALED.sub(self._opened, text)

    def _opened(self, match: re.Match[str]) -> str:
        kind, letters = match.groups()
        content = bytes.fromhex(letters.translate(_TO_DIGITS))
        nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        try:
            piece = self._cipher.decrypt(nonce, rest, kind.encode())
        except (InvalidTag, ValueError):  # sealed with another key, or too short for a seal
            return match[0]
        return piece.decode(errors="surrogatepass")


def _to_letters(data: bytes) -> str:
    return data.hex().translate(_TO_LETTERS)
