"""What passes between a gateway and its recorder: frames one way, reports the other.

A frame is four bytes of length, big-endian, and a JSON text: the recorder's settings
first, then interactions. A report is one line of JSON.
"""

import asyncio
import fcntl
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from waltzrl.audit.record import encode
from waltzrl.records import ServedExchange

PIPE_BYTES = 2**20
LENGTH = struct.Struct(">I")

_interaction = msgspec.json.Decoder(ServedExchange)


class RecorderReport(msgspec.Struct, kw_only=True):
    """What a recorder has done since it was started."""

    stored: int = 0
    """Interactions that are in the database."""
    failed: int = 0
    """Interactions that can never be stored."""
    judged: int = 0
    """Replies of which the judge's verdict is in the database."""
    unjudged: int = 0
    """Replies that were to be judged and were not: the judge failed, or was too slow."""
    scrub_seconds: float = 0.0
    """Spent looking for personal data."""
    database_failing: bool = False
    """It tries again and again."""

    @property
    def done(self) -> int:
        """Interactions that the gateway need not keep any longer."""
        return self.stored + self.failed


def large_pipe() -> tuple[int, int]:
    """Make a pipe that holds much: what is in it outlives a gateway that is killed.

    Returns:
        Descriptors of the end to read from and of the end to write to.
    """
    reads, writes = os.pipe()
    with suppress(OSError):  # more than this machine allows; then it holds the usual 64 KB
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reads, writes


async def writer_of(descriptor: int) -> asyncio.StreamWriter:
    """Return what writes to a pipe, and closes it."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(descriptor, "wb", buffering=0),
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


def frame(value: object) -> bytes:
    """Return `value` as a frame."""
    text = encode(value)
    return LENGTH.pack(len(text)) + text


async def frames(pipe: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the JSON texts of a pipe's frames until it ends; the last may be cut short."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            (length,) = LENGTH.unpack(await pipe.readexactly(LENGTH.size))
            yield await pipe.readexactly(length)


def interaction(text: bytes) -> ServedExchange:
    """Read an interaction, also one with lone surrogates, which msgspec reads none of.

    Raises:
        msgspec.ValidationError: it is none.
    """
    try:
        return _interaction.decode(text)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(text), ServedExchange)
