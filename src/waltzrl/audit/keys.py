"""The two secrets of a log: what signs its checkpoints, and what keys its digests."""

import hmac
import os
import secrets
from pathlib import Path

from waltzrl.audit.disk import lock, secret
from waltzrl.audit.note import NoteError, SigningKey

DIGEST_KEY_BYTES = 32


class Keys:
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
        self._digest = secret(path.with_name(f"{path.name}.digest"), fresh_digest)
        if len(self._digest) != DIGEST_KEY_BYTES:
            raise NoteError(f"{path.name}.digest has {len(self._digest)} bytes, need 32")
        self._lock = lock(path)
        path.with_name(f"{path.name}.pub").write_text(f"{self.signing.public}\n")

    def digest(self, content: bytes) -> str:
        """Return HMAC-SHA256 in hex."""
        return hmac.digest(self._digest, content, "sha256").hex()

    def close(self) -> None:
        os.close(self._lock)
