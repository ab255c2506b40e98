"""Files that grow by whole commits, and secrets that nobody else may read."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from waltzrl.errors import AuditError
from waltzrl.telemetry.files import sync

ONLY_OWNER = 0o600


class GrowingFile:
    """A file to which each append is on the disk when it returns, or leaves no trace."""

    def __init__(self, path: Path, length: int, mode: int = 0o644) -> None:
        """Go on with a file.

        Args:
            path: made by the first append when it is missing.
            length: bytes to keep; the first append cuts off what stands behind them.
            mode: who may read a file that is made anew.
        """
        self.path = path
        self.length = length
        self._mode = mode
        self._descriptor = -1

    def append(self, data: bytes) -> None:
        """Write and wait for the disk.

        Raises:
            OSError: the disk is full or fails; what was written is cut off, now or, when that
                fails too, by the next append.
        """
        try:
            if self._descriptor < 0:
                self._open()
            _write(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError:
            self.shorten(self.length)
            raise
        self.length += len(data)

    def shorten(self, length: int) -> None:
        """Cut off what stands behind `length`, now or by the next append."""
        self.length = length
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, length)
            self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, self._mode)
        os.ftruncate(self._descriptor, self.length)
        os.lseek(self._descriptor, self.length, os.SEEK_SET)
        sync(self.path.parent)


def whole_lines(path: Path) -> int:
    """Return how many bytes of a file are whole lines; a crash may have torn the last one."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            file.seek(start)
            if newline := file.read(end - start).rfind(b"\n") + 1:
                return start + newline
            end = start
    return 0


def secret(path: Path, fresh: bytes) -> bytes:
    """Return the secret in a file; when there is none, keep `fresh` there, for the owner only.

    Raises:
        OSError: the file cannot be read or written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, ONLY_OWNER)
    except FileExistsError:
        return path.read_bytes()
    try:
        _write(descriptor, fresh)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync(path.parent)
    return fresh


def lock(path: Path) -> int:
    """Return a descriptor that keeps other processes from locking the file until it is closed.

    Raises:
        AuditError: another log holds it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AuditError(
            f"{path} is in use by a running log; give each process a folder and a key of its own"
        ) from None
    return descriptor


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
