"""The folder of one run, locked by one process at a time."""

import fcntl
import os
from pathlib import Path
from typing import Self

from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors


class RunDirectory:
    """A folder that only this process writes to, inside a `with` statement.

    The lock is an flock on the file `.lock`, which the operating system releases when the process
    ends, even if it is killed; the file itself remains and has no meaning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def __enter__(self) -> Self:
        """Create the folder and lock it.

        Raises:
            InputError: it cannot be written to, or another process has locked it.
        """
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The error of a process that finds the folder locked names this one.
                os.truncate(self._lock, 0)
                os.write(self._lock, f"{os.getpid()}\n".encode())
            except BlockingIOError as error:
                holder = os.read(self._lock, 32).decode(errors="replace").strip()
                os.close(self._lock)
                raise InputError(
                    f"{self.path} is in use by process {holder}; "
                    "wait for it to end or choose another run directory"
                ) from error
            except OSError:  # a full disk, or a file system without locks
                os.close(self._lock)
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._lock)
