"""What passes between a gateway and its scribe: frames one way, reports the other.

A frame is four bytes of length, the most significant first, and a JSON text: the scribe's settings
first, then interactions. A report is one line of JSON.
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from waltzrl.audit.record import encode
from waltzrl.memory.interaction import Interaction

LENGTH = struct.Struct(">I")

_interaction = msgspec.json.Decoder(Interaction)


class Report(msgspec.Struct, kw_only=True):
    """What a scribe has done since it was started."""

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


def interaction(text: bytes) -> Interaction:
    """Read an interaction, also one with lone surrogates, which msgspec reads none of.

    Raises:
        msgspec.ValidationError: it is none.
    """
    try:
        return _interaction.decode(text)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(text), Interaction)
