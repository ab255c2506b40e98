"""Names of people as keyed digests: the same person is the same digest, and nobody can guess who.

A plain hash of a name or an address is found by trying names, so the key must stay secret.
"""

import hmac
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from waltzrl.errors import InputError

KEY_BYTES = 32


def subject_digest(key: bytes) -> Callable[[str], str]:
    """Return a function from a person's name to 32 hex characters of HMAC-SHA256 under `key`."""

    def digest(subject: str) -> str:
        return hmac.digest(key, subject.encode(errors="surrogatepass"), "sha256").hex()[:32]

    return digest


def key_in(path: Path) -> bytes:
    """Return the key in a file, which is made for its owner only when it is missing.

    Raises:
        InputError: the file holds something else, or cannot be read or made.
    """
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the key cannot be read or made: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise InputError(
            f"{path}: has {len(key)} bytes, need a key of {KEY_BYTES}; "
            "move the file away to get a new key, which makes other digests"
        )
    return key


def _make(path: Path) -> None:
    """Put a whole new key at `path`, unless another process is quicker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(beside)
    except FileExistsError:
        pass
    finally:
        Path(beside).unlink()
