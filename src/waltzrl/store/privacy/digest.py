"""Keyed digests of names: the same person always gets the same digest.

A plain hash of a name or an address can be guessed by trying names, so the key must stay secret.
"""

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.foundation.files import read_or_create

KEY_BYTES = 32


def subject_digest(key: bytes) -> Callable[[str], str]:
    """Return a function from a name to 32 hex characters of HMAC-SHA256 under `key`."""

    def digest(subject: str) -> str:
        return hmac.digest(key, subject.encode(errors="surrogatepass"), "sha256").hex()[:32]

    return digest


def key_in(path: Path) -> bytes:
    """Return the key in a file; a missing file is created, readable by its owner only.

    Raises:
        InputError: the file is not a key, or cannot be read or created.
    """
    try:
        key = read_or_create(path, secrets.token_bytes(KEY_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot read or create the key: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise InputError(
            f"{path}: has {len(key)} bytes, need a key of {KEY_BYTES}; "
            "move the file away to get a new key, which gives other digests"
        )
    return key
