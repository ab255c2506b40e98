"""Frames through a pipe, from one process to another: a length of four bytes and a text.

What was written stays in the pipe when the writing process is killed.
"""

import asyncio
import fcntl
import os
import select
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

PIPE_BYTES = 2**20
LENGTH = struct.Struct(">I")
STUCK_SECONDS = 5.0
"""A reader that takes nothing for so long has ended."""
FULL_SECONDS = 0.005
"""The pause before the next try to write to a pipe that is full."""


def large_pipe() -> tuple[int, int]:
    """Open a pipe with a large buffer.

    Returns:
        File descriptors of the end to read from and of the end to write to.
    """
    reads, writes = os.pipe()
    with suppress(OSError):  # above the system's limit; the pipe keeps its 64 KB
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reads, writes


def frame_text(text: bytes) -> bytes:
    """Return a text as a frame."""
    return LENGTH.pack(len(text)) + text


class FrameWriter:
    """Writes frames without waiting; those for which the pipe has no room wait here, in order."""

    def __init__(self, descriptor: int) -> None:
        """Write to the end of a pipe; `close` closes it."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()

    def send(self, text: bytes) -> None:
        """Write a frame, now or as soon as there is room.

        Raises:
            BrokenPipeError: the reading process has ended.
        """
        is_first = not self._waiting
        self._waiting.append(frame_text(text))
        self._push()
        if is_first and self._waiting:
            self._later()

    def flush(self) -> None:
        """Wait until the pipe has taken everything; not for use in an event loop.

        Raises:
            BrokenPipeError: the reading process has ended, or reads nothing any more.
        """
        while self._waiting:
            if not select.select([], [self._descriptor], [], STUCK_SECONDS)[1]:
                raise BrokenPipeError
            self._push()

    def close(self) -> None:
        """Close the pipe; the reader gets what is in it."""
        os.close(self._descriptor)
        # The system gives the descriptor's number to the next file, where nothing may go.
        self._waiting.clear()

    def _later(self) -> None:
        with suppress(RuntimeError):  # without an event loop, the next `flush` writes it
            asyncio.get_running_loop().call_later(FULL_SECONDS, self._push_again)

    def _push_again(self) -> None:
        with suppress(BrokenPipeError):  # which the next `send` finds out
            self._push()
            if self._waiting:
                self._later()

    def _push(self) -> None:
        while self._waiting:
            frame = self._waiting[0]
            try:
                written = os.write(self._descriptor, frame)
            except BlockingIOError:
                return
            if written < len(frame):
                self._waiting[0] = frame[written:]
                return
            self._waiting.popleft()


class FrameReader:
    """Reads the frames of a pipe without waiting."""

    def __init__(self, descriptor: int) -> None:
        """Read from the end of a pipe; `close` closes it."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.ended = False
        """The writing process has closed its end, or has ended, and everything is read."""
        self._buffer = bytearray()

    def read(self) -> Iterator[bytes]:
        """Yield the texts of all complete frames that have arrived."""
        self._fill()
        start = 0
        arrived = bytes(self._buffer)
        while len(arrived) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(arrived, start)
            end = start + LENGTH.size + length
            if len(arrived) < end:
                break
            yield arrived[start + LENGTH.size : end]
            start = end
        # Only a caller that takes all frames comes here; any other would get them again.
        del self._buffer[:start]

    def close(self) -> None:
        os.close(self.descriptor)

    def _fill(self) -> None:
        for _ in range(PIPE_BYTES >> 16):  # a pipe's worth; a fast writer must not hold us up
            try:
                part = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not part:
                self.ended = True
                return
            self._buffer += part
