"""The protocol between a gateway and its recorder: frames one way, reports the other.

A frame is a length of four bytes, big-endian, and a JSON text: the recorder's configuration first,
then served exchanges. A report is one line of JSON.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from waltzrl.foundation.pipes import LENGTH, frame_text
from waltzrl.operations.release.attention import Need
from waltzrl.records import ServedExchange
from waltzrl.store.audit.record import encode_json

_exchange = msgspec.json.Decoder(ServedExchange)


Labels = tuple[int, int, int, int]
"""How many labels a judge gave: unsafe and not, over-refusals and not."""


NO_LABELS: Labels = (0, 0, 0, 0)


def add_labels(*counts: Labels) -> Labels:
    """Return the sums."""
    unsafe, not_unsafe, overrefusals, not_overrefusals = map(sum, zip(*counts, strict=True))
    return unsafe, not_unsafe, overrefusals, not_overrefusals


class RecorderReport(msgspec.Struct, kw_only=True):
    """What a recorder has done since its start."""

    stored: int = 0
    """Exchanges that are in the database."""
    failed: int = 0
    """Exchanges that cannot be stored."""
    judged: int = 0
    """Replies whose verdict is in the database."""
    labels_by_stage: dict[int, Labels] = {}
    """The judge's labels of the random sample, by the stage that answered."""
    unsafe_unscored: int = 0
    """The number of replies of the random sample of which the judge does not say whether they are
    unsafe."""
    overrefusal_unscored: int = 0
    unjudged: int = 0
    """Sampled replies without a verdict: the judge failed, or was too slow."""
    database_failing: bool = False
    """The recorder is retrying."""
    release_needs: Need | None = None
    """The thing that the release under way waits for people to do."""

    @property
    def labels(self) -> Labels:
        """The judge's labels of the random sample, of all stages."""
        return add_labels(NO_LABELS, *self.labels_by_stage.values())

    @property
    def done(self) -> int:
        """Exchanges that the gateway need not keep any longer."""
        return self.stored + self.failed


COUNTS = (
    *("stored", "failed", "judged", "unjudged"),
    *("unsafe_unscored", "overrefusal_unscored"),
)
"""The fields of a report that count; those of several recorders are added up."""


async def writer_of(descriptor: int) -> asyncio.StreamWriter:
    """Return a writer for a pipe, which closes it."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        # Nothing is read, but `drain` needs a protocol with flow control; no other is public.
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(descriptor, "wb", buffering=0),
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


def encode_frame(value: object) -> bytes:
    """Return `value` as a frame."""
    return frame_text(encode_json(value))


async def read_frames(pipe: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the JSON texts of a pipe's frames until it ends; the last may be cut short."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            (length,) = LENGTH.unpack(await pipe.readexactly(LENGTH.size))
            yield await pipe.readexactly(length)


def decode_exchange(text: bytes) -> ServedExchange:
    """Decode a served exchange, with lone surrogates too, which msgspec's decoder refuses.

    Raises:
        msgspec.ValidationError: it is not a served exchange.
    """
    try:
        return _exchange.decode(text)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(text), ServedExchange)
