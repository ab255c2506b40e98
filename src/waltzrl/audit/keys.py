"""The two secrets of a log: what signs its checkpoints, and what keys its digests."""

import hmac
import os
import secrets
from pathlib import Path

from waltzrl.audit.disk import lock, secret
from waltzrl.audit.note import NoteError, SigningKey
from waltzrl.errors import AuditError

DIGEST_KEY_BYTES = 32


def digest_under(path: Path, content: bytes) -> str:
    """Return what `LogKeys.digest` does, of a log that may be in use.

    Args:
        path: of the log's private key; only the digest key beside it is read.
        content: what to find in the log.

    Raises:
        NoteError: the file holds no key.
        OSError: it cannot be read.
    """
    return hmac.digest(_checked(_digest_file(path).read_bytes(), path), content, "sha256").hex()


def in_use(path: Path) -> bool:
    """Whether a running log has the keys.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        os.close(lock(path))
    except AuditError:
        return True
    return False


class LogKeys:
    """Reads the keys, makes those that are missing, and keeps other processes away from them.

    The files are `path` (signs), `path.digest` (keys digests), both for their owner only, and
    `path.pub`, which everybody may read.
    """

    def __init__(self, path: Path) -> None:
        """Open the keys.

        Raises:
            NoteError: a file holds no key.
            AuditError: a running log has them.
            OSError: a file cannot be read or written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = SigningKey.generate(f"waltzrl.audit/{secrets.token_hex(4)}")
        written = secret(path, fresh.written().encode())
        self.signing = SigningKey.parse(written.decode(errors="replace"))
        fresh_digest = secrets.token_bytes(DIGEST_KEY_BYTES)
        self._digest = _checked(secret(_digest_file(path), fresh_digest), path)
        self._lock = lock(path)
        path.with_name(f"{path.name}.pub").write_text(f"{self.signing.public}\n")

    def digest(self, content: bytes) -> str:
        """Return HMAC-SHA256 in hex."""
        return hmac.digest(self._digest, content, "sha256").hex()

    def close(self) -> None:
        os.close(self._lock)


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.digest")


def _checked(key: bytes, path: Path) -> bytes:
    if len(key) != DIGEST_KEY_BYTES:
        raise NoteError(f"{path.name}.digest has {len(key)} bytes, need {DIGEST_KEY_BYTES}")
    return key
