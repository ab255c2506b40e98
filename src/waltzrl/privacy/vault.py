"""Seals pieces of text, so that whoever has the key can read them again.

A sealed piece is `[SEALED:email:...]`: AES-GCM over the piece, bound to its kind, with a nonce of
its own, so that equal pieces look different.
"""

import os
import re

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waltzrl.privacy.detection import Kind
from waltzrl.privacy.placeholders import SEALED, from_letters, sealed

NONCE_BYTES = 12


class Vault:
    """Seals and opens pieces of text under one key."""

    def __init__(self, key: bytes) -> None:
        """Take a key of 16, 24 or 32 bytes.

        Raises:
            ValueError: the key has another length.
        """
        self._cipher = AESGCM(key)

    def seal(self, piece: str, kind: Kind) -> str:
        """Return what stands for `piece` from now on."""
        nonce = os.urandom(NONCE_BYTES)
        content = piece.encode(errors="surrogatepass")
        return sealed(kind, nonce + self._cipher.encrypt(nonce, content, kind.encode()))

    def open_text(self, text: str) -> str:
        """Put back every piece that this vault sealed; what another sealed stays as it is."""
        return SEALED.sub(self._opened, text)

    def _opened(self, match: re.Match[str]) -> str:
        kind, letters = match.groups()
        content = from_letters(letters)
        nonce, rest = content[:NONCE_BYTES], content[NONCE_BYTES:]
        try:
            piece = self._cipher.decrypt(nonce, rest, kind.encode())
        except (InvalidTag, ValueError):  # another vault's, or too short to be anybody's
            return match[0]
        return piece.decode(errors="surrogatepass")
