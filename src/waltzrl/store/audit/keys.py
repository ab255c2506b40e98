"""The two secrets of a log: the key that signs checkpoints, and the key of its digests."""

import fcntl
import hmac
import os
import secrets
from pathlib import Path

from waltzrl.errors import AuditError
from waltzrl.foundation.files import read_or_create
from waltzrl.store.audit.note import NoteError, SigningKey

DIGEST_KEY_BYTES = 32
LOCK = ".lock"
"""The file in a log's folder that its process locks; it has no content, and remains."""


class LogKeys:
    """Reads the keys, creates missing ones, and locks them against other processes.

    The files are `path` (signs) and `path.digest` (keys the digests), both readable by their owner
    only, and `path.pub`, which everybody may read.
    """

    def __init__(self, path: Path) -> None:
        """Open the keys.

        Raises:
            NoteError: a file is not a key.
            AuditError: a running log uses the keys.
            OSError: a file cannot be read or written.
        """
        # A name of its own for each log, so that no checkpoint of another passes for one of this.
        fresh = SigningKey.generate(f"waltzrl.audit/{secrets.token_hex(4)}")
        written = read_or_create(path, fresh.written().encode())
        self.signing = SigningKey.parse(written.decode(errors="replace"))
        fresh_digest_key = secrets.token_bytes(DIGEST_KEY_BYTES)
        self._digest_key = _require_key_length(
            read_or_create(_locate_digest_key(path), fresh_digest_key), path
        )
        self._locks = [_lock_file(os.open(path, os.O_RDONLY), path)]
        # Written only under the lock, and compared each time, so that it can never belong to an
        # older key.
        public, text = path.with_name(f"{path.name}.pub"), f"{self.signing.public}\n"
        if not (public.exists() and public.read_bytes() == text.encode()):
            public.write_text(text)

    def lock_folder(self, folder: Path) -> None:
        """Lock the folder of a log too: the log of another process may have copies of the keys.

        Raises:
            AuditError: a running log uses it.
            OSError: it cannot be written to.
        """
        self._locks.append(_lock_folder(folder))

    def digest(self, content: bytes) -> str:
        """Return HMAC-SHA256 in hex."""
        return hmac.digest(self._digest_key, content, "sha256").hex()

    def close(self) -> None:
        for lock in self._locks:
            os.close(lock)


def default_key(folder: Path) -> Path:
    """Return the file of a log's private key where no other is named: beside the log's folder."""
    place = folder.resolve() if folder.name in {"", ".."} else folder
    return place.with_name(f"{place.name}.key")


def digest_under(path: Path, content: bytes) -> str:
    """Return what `LogKeys.digest` returns, also while the log is in use.

    Args:
        path: of the log's private key; only the digest key beside it is read.
        content: to look for in the log.

    Raises:
        NoteError: the file is not a key.
        OSError: it cannot be read.
    """
    return hmac.digest(
        _require_key_length(_locate_digest_key(path).read_bytes(), path), content, "sha256"
    ).hex()


def signing_key(path: Path) -> SigningKey:
    """Read the private key of a log, also while the log is in use.

    Raises:
        NoteError: the file is not a key.
        OSError: it cannot be read.
    """
    return SigningKey.parse(path.read_text(encoding="utf-8", errors="replace"))


def in_use(folder: Path, path: Path) -> bool:
    """Whether a running log uses the folder, or the keys of this path.

    Raises:
        OSError: the key cannot be read, or the folder written to.
    """
    try:
        os.close(_lock_file(os.open(path, os.O_RDONLY), path))
        os.close(_lock_folder(folder))
    except AuditError:
        return True
    return False


def _locate_digest_key(path: Path) -> Path:
    return path.with_name(f"{path.name}.digest")


def _require_key_length(key: bytes, path: Path) -> bytes:
    if len(key) != DIGEST_KEY_BYTES:
        raise NoteError(f"{path.name}.digest has {len(key)} bytes, need {DIGEST_KEY_BYTES}")
    return key


def _lock_folder(folder: Path) -> int:
    # Open for writing, without which NFS locks nothing.
    return _lock_file(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644), folder)


def _lock_file(descriptor: int, path: Path) -> int:
    """Return the descriptor, which locks its file until it is closed.

    Args:
        descriptor: of an open file, closed if this fails.
        path: that the error names.

    Raises:
        AuditError: another log holds the lock.
    """
    try:
        # The kernel releases it when the process ends, so a crash leaves no lock behind.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AuditError(
            f"{path} is in use by a running log; give each gateway its own folder and key"
        ) from None
    return descriptor
