"""The work of a worker process of the gateway, which a supervisor has forked.

setup -> open_gateway -> Server, until the supervisor says retire or stop, or has ended
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import msgspec
import uvloop

from waltzrl.errors import WaltzError, missing_extra
from waltzrl.foundation.background import in_background
from waltzrl.foundation.families import Family
from waltzrl.foundation.logs import configure_logs
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.app import App
from waltzrl.gateway.listener import check_bind, open_tls
from waltzrl.gateway.opening import Shares, describe_gateway, open_gateway
from waltzrl.gateway.processes.fork_server import receive_files
from waltzrl.gateway.processes.worker_process import (
    LONGEST_MESSAGE,
    GatewayMemory,
    WorkerMessage,
    WorkerSetup,
    read_families,
    read_message,
)
from waltzrl.gateway.server import Server
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.store.audit.log import Log, LogSettings
from waltzrl.store.audit.note import PublicKey

SCRAPE_SECONDS = 5.0
"""Longest wait for the metrics of the other workers."""


def serve_as_worker(control: socket.socket) -> None:
    """Be a worker of the supervisor at the other end of the socket."""
    line, descriptors = receive_files(control, 1 << 16, 8)
    # The descriptors come with the first bytes; a long recipe takes several reads.
    while line and not line.endswith(b"\n"):
        part = control.recv(1 << 16)
        line = line + part if part else b""
    if line:  # else the supervisor has ended
        setup = msgspec.json.decode(line, type=WorkerSetup)
        uvloop.run(_serve_setup(setup, control, descriptors))


async def _serve_setup(
    setup: WorkerSetup, control: socket.socket, descriptors: Sequence[int]
) -> None:
    reader, writer = await asyncio.open_connection(sock=control, limit=LONGEST_MESSAGE)
    supervisor = _Supervisor(reader, writer)
    try:
        await _serve_recipe(setup, supervisor, descriptors)
    except (WaltzError, OSError) as error:
        supervisor.send(WorkerMessage(kind="failed", text=str(error)))
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        supervisor.send(WorkerMessage(kind="failed", text=str(missing)))
    finally:
        await supervisor.disconnect()


async def _serve_recipe(
    setup: WorkerSetup, supervisor: "_Supervisor", descriptors: Sequence[int]
) -> None:
    """Serve until told to stop.

    Raises:
        WaltzError: as `open_gateway`.
    """
    table = msgspec.json.decode(setup.recipe)
    recipe = validate_table(GatewayRecipe, table, "the gateway's recipe")
    # After a reload the recipe is newer than the process that was forked.
    configure_logs(recipe.logs.format, recipe.logs.level)
    files = recipe.tls
    tls = None if files is None else open_tls(files.cert, files.key, files.client_ca)
    listener = socket.socket(fileno=descriptors[0])
    memory = GatewayMemory(descriptors[1])
    async with AsyncExitStack() as stack:
        log = None
        if recipe.audit is not None:
            settings = LogSettings(on_failure=recipe.audit.on_failure)
            key, number = PublicKey.parse(setup.public_key), setup.log_number
            log = Log(descriptors[2], memory.log_status, number, settings, key)
            stack.enter_context(log)
        load = memory.load(setup.number)
        stack.callback(load.clear)
        shares = Shares(
            log=log,
            load=load,
            rates=memory.rates,
            other_metrics=supervisor.other_metrics,
        )
        app = await stack.enter_async_context(open_gateway(recipe, shares))
        host = listener.getsockname()[0]
        check_bind(host, app.access.keys, open_to_all=setup.open_to_all)
        server = Server(app, app.access, tls)
        supervisor.send(WorkerMessage(kind="ready", text=describe_gateway(recipe, app)))
        await stack.enter_async_context(in_background(supervisor.listen(server, app)))
        await server.serve_on(listener)
        supervisor.send(_make_report(app))


class _Supervisor:
    """The process that started this one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._others: asyncio.Future[list[Family]] | None = None

    def send(self, message: WorkerMessage) -> None:
        """Send a message; a supervisor that was killed does not get it."""
        if not self._writer.is_closing():
            self._writer.write(message.line)

    async def other_metrics(self) -> Sequence[Family]:
        """Return the metrics of all other workers, added up."""
        if self._others is None:
            self._others = asyncio.get_running_loop().create_future()
            self.send(WorkerMessage(kind="scrape"))
        # Several scrapes wait for one answer, which must outlive the cancellation of each.
        return await asyncio.wait_for(asyncio.shield(self._others), SCRAPE_SECONDS)

    async def disconnect(self) -> None:
        """Close the connection after the supervisor, so that it reads the last report.

        A write of its own to a connection that is closed here would end its reading.
        """
        with suppress(ConnectionError):  # killed with something unread
            if not self._writer.is_closing():
                self._writer.write_eof()
                while await self._reader.read(1 << 16):
                    pass
            self._writer.close()
            await self._writer.wait_closed()

    async def listen(self, server: Server, app: App) -> None:
        """Do what it says, until it ends."""
        with suppress(ConnectionError):  # killed with something unread
            while line := await self._reader.readline():
                message = read_message(line)
                if message.kind == "report":
                    self.send(_make_report(app))
                elif message.kind == "scrape" and self._others is not None:
                    self._others.set_result(read_families(message.families))
                    self._others = None
                elif message.kind == "retire":
                    server.retire()
                elif message.kind == "stop":
                    server.stop()
        server.stop()  # it has ended, and nobody writes the audit log


def _make_report(app: App) -> WorkerMessage:
    families = msgspec.json.encode(app.metrics.families())
    return WorkerMessage(kind="report", families=msgspec.Raw(families))
