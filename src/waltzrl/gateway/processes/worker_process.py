"""A worker of the gateway as its supervisor sees it: their messages, and the memory they share."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.families import Family
from waltzrl.foundation.shared import SharedMemory
from waltzrl.gateway.shares import CELL_BYTES, LOAD_BYTES, RateTable, WorkerLoad
from waltzrl.store.audit.log import STATUS_BYTES, LogStatus

LONGEST_MESSAGE = 64 * 2**20
REPORT_SECONDS = 2.0
"""Longest wait for the metrics of a worker."""
NOTHING = msgspec.Raw(b"[]")
RATE_BYTES = 4096 * CELL_BYTES
MEMORY_BYTES = LOAD_BYTES + RATE_BYTES + STATUS_BYTES

log = logging.getLogger(__name__)


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do; the first line to it.

    File descriptors come with it, in this order: the listening socket, the shared memory and, with
    an audit log, the pipe to its writer.
    """

    recipe: msgspec.Raw
    """The JSON of a `GatewayRecipe`."""
    number: int
    """The worker's number in the memory that all workers share."""
    log_number: int
    """The process's number among those that append to the audit log."""
    public_key: str
    """The audit log's public key; empty without one."""
    open_to_all: bool


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of JSON."""

    kind: Literal["ready", "failed", "report", "scrape", "retire", "stop"]
    """From a worker: it serves, it cannot serve, its metrics, a request for those of the others.
    To a worker: send your metrics, the metrics of the others, retire, stop."""
    text: str = ""
    """The description of a worker that is `ready`, or the reason why one that `failed` cannot
    serve.
    """
    families: msgspec.Raw = NOTHING
    """The JSON of a list of `Family`."""

    @property
    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


read_message = msgspec.json.Decoder(WorkerMessage).decode
read_families = msgspec.json.Decoder(list[Family]).decode


class GatewayMemory:
    """The memory that a gateway's supervisor and its workers share."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Use the memory of a descriptor; None creates it."""
        self._memory = (
            SharedMemory.create(MEMORY_BYTES) if descriptor is None else SharedMemory(descriptor)
        )
        self.descriptor = self._memory.descriptor
        whole = self._memory.bytes
        self.rates = RateTable(whole[LOAD_BYTES : LOAD_BYTES + RATE_BYTES], self._memory.locked)
        self.log_status = LogStatus(whole[LOAD_BYTES + RATE_BYTES :])

    def load(self, number: int) -> WorkerLoad:
        """Return the loads of all workers, as seen by one."""
        return WorkerLoad(self._memory.bytes[:LOAD_BYTES], number, self._memory.locked)


class WorkerProcess:
    """A forked process that serves once it has its setup."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        """Take over what `ForkServer.fork` returned."""
        self.number = -1
        """The worker's number in the memory that all workers share, once it has a setup."""
        self.families = NOTHING
        """The worker's metrics, as of its last report."""
        self.ended = asyncio.Event()
        self._pid, self._socket = pid, control
        self._writer: asyncio.StreamWriter | None = None
        self._report: asyncio.Future[None] | None = None
        self._serves = False
        """It has been told to serve and does: before, it would read nothing but its setup."""

    async def start(
        self,
        setup: WorkerSetup,
        descriptors: Sequence[int],
        on_scrape: Callable[["WorkerProcess"], None],
    ) -> str:
        """Give it its setup and wait until it serves; return what it serves, in words.

        Args:
            setup: what it is to do.
            descriptors: of files, as `WorkerSetup` says.
            on_scrape: called when it asks for the metrics of the other workers.

        Raises:
            InputError: it cannot serve; the message is its own.
        """
        self.number = setup.number
        line = msgspec.json.encode(setup) + b"\n"
        with suppress(BrokenPipeError):  # it has ended, as is found out below
            socket.send_fds(self._socket, [line], list(descriptors))
        reader, self._writer = await asyncio.open_connection(
            sock=self._socket, limit=LONGEST_MESSAGE
        )
        first = b""
        with suppress(ConnectionError):  # killed with something unread
            first = await reader.readline()
        # A line without its end is what a worker that was killed has left of it.
        message = read_message(first) if first.endswith(b"\n") else None
        if message is None or message.kind != "ready":
            self.kill()
            raise InputError(message.text if message else "a worker process ended while it started")
        self._serves = True
        self._listening = asyncio.create_task(self._listen(reader, on_scrape))
        return message.text

    def send(self, message: WorkerMessage) -> None:
        """Send a message; a worker that has ended does not get it."""
        if self._writer is not None and not self.ended.is_set():
            self._writer.write(message.line)

    async def report(self) -> None:
        """Bring `families` up to date, if the worker serves and answers in time."""
        if not self._serves:
            return
        if self._report is None:
            self._report = asyncio.get_running_loop().create_future()
            self.send(WorkerMessage(kind="report"))
        # Not `wait_for`, which would cancel the future for all others that wait.
        await asyncio.wait([self._report], timeout=REPORT_SECONDS)

    def kill(self) -> None:
        """End it at once."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._close()

    async def _listen(
        self, reader: asyncio.StreamReader, on_scrape: Callable[["WorkerProcess"], None]
    ) -> None:
        """Take its messages until it ends."""
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                message = read_message(line)
                if message.kind == "scrape":
                    on_scrape(self)
                elif message.kind == "failed":
                    log.error("%s", message.text)
                else:
                    self.families = message.families
                    self._end_report()
        except ConnectionError:
            pass  # killed with something unread
        self._close()

    def _end_report(self) -> None:
        if self._report is not None and not self._report.done():
            self._report.set_result(None)
        self._report = None

    def _close(self) -> None:
        self._serves = False
        self._end_report()
        self.ended.set()
        if self._writer is not None:
            self._writer.close()
        self._socket.close()
