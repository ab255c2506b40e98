"""Memory that the processes of one gateway share."""

import errno
import fcntl
import mmap
import os
import sys
import tempfile
from typing import Self


class SharedMemory:
    """A block of bytes, zero at first, that child processes share through its file descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Map the block of a descriptor that this process created or inherited."""
        self.descriptor = descriptor
        self.bytes = memoryview(mmap.mmap(descriptor, 0))
        self._lock = _Lock(descriptor)

    @classmethod
    def create(cls, size: int) -> Self:
        """Create a block of so many bytes."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("waltzrl")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        if os.write(descriptor, bytes(size)) < size:  # not truncate, which reserves nothing
            raise OSError(errno.ENOSPC, "no room for the memory that processes share")
        return cls(descriptor)

    def locked(self) -> "_Lock":
        """Keep other processes out of blocks of code that are locked too; death unlocks it."""
        return self._lock


class _Lock:
    """A lock between processes, made once: a generator for each use takes five times as long."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        # Not `flock`, which belongs to the open file: forked workers share it, and so its lock.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *exception: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
