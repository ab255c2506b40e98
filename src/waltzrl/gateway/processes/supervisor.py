"""Runs the worker processes of a gateway on one port: starts, replaces, reloads and stops them.

SIGHUP: read the recipe -> start new workers -> ready -> the old ones retire
SIGTERM, SIGINT: all workers finish their requests and stop; a second SIGINT kills them

The supervisor keeps the listening socket open and writes the audit log; it serves no request.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Literal

import msgspec

from waltzrl import __version__
from waltzrl.errors import InputError, WaltzError
from waltzrl.foundation.families import Family, keep_totals, merge_families
from waltzrl.foundation.logs import fields
from waltzrl.gateway.processes.fork_server import ForkServer
from waltzrl.gateway.processes.worker_process import (
    GatewayMemory,
    WorkerMessage,
    WorkerProcess,
    WorkerSetup,
    read_families,
)
from waltzrl.gateway.settings import GatewayRecipe, recipe_table
from waltzrl.gateway.shares import WORKERS
from waltzrl.store.audit.log import APPENDERS
from waltzrl.store.audit.opening import contents_expire, log_key, log_settings
from waltzrl.store.audit.writer import LogWriter

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
"""The pause before a worker that died is replaced; doubled each time, until one lives for longer.
"""
# The manifests in `deploy` add it to the time in which a pod has to stop.
STOP_SECONDS = 50.0
"""The time after which workers that have not stopped are killed."""

log = logging.getLogger(__name__)


class Supervisor:
    """Supervises the workers of one gateway."""

    def __init__(
        self,
        load: Callable[[], GatewayRecipe],
        listener: socket.socket,
        fork_server: ForkServer,
        *,
        open_to_all: bool,
        announce: Callable[[GatewayRecipe, str], None],
    ) -> None:
        """Set up; `run` does all the work.

        Args:
            load: reads the recipe again; raises an InputError or another WaltzError.
            listener: the socket on which all workers listen.
            fork_server: forks processes that do the work of a worker.
            open_to_all: accept clients from the network even without API keys.
            announce: called with the recipe and what serves, in words, when all workers serve.
        """
        self._load, self._listener, self._fork_server = load, listener, fork_server
        self._open_to_all, self._announce = open_to_all, announce
        self._memory = GatewayMemory()
        self._log_numbers = count()
        self._log: LogWriter | None = None
        self._workers: set[WorkerProcess] = set()
        """All workers that have a setup, those that leave included."""
        self._serving: set[WorkerProcess] = set()
        """The workers of the present recipe."""
        self._keepers: list[asyncio.Task[None]] = []
        self._past: list[Family] = []
        """The counters of workers that have ended."""
        self._background: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._failure: WaltzError | None = None
        """The reason why it had to stop."""

    async def run(self, recipe: GatewayRecipe) -> None:
        """Serve until a signal to stop.

        Args:
            recipe: to begin with.

        Raises:
            InputError: a worker cannot serve, or the audit log cannot be read or written.
            AuditError: the audit log was altered, or is in use by another process.
            WaltzError: the process that forks workers has ended.
        """
        loop = asyncio.get_running_loop()
        reload = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_or_kill, number)
        log.info("the gateway starts", extra=_summarise_recipe(recipe))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._audit_log(recipe))
            # Runs before the log is closed, because workers append to it until they end.
            stack.push_async_callback(self._stop_all)
            serving = asyncio.create_task(self._serve_and_reload(reload, recipe))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                stopping.cancel()
                serving.result()  # raises why it cannot serve
            active = self._memory.load(0).total_active
            log.info("the gateway shuts down", extra=fields(active=active))
            serving.cancel()  # also while workers start
            await asyncio.gather(serving, return_exceptions=True)
        log.info("the gateway has stopped")
        if self._failure is not None:
            raise self._failure

    @asynccontextmanager
    async def _audit_log(self, recipe: GatewayRecipe) -> AsyncIterator[None]:
        """Write the audit log during the block, if the recipe has one."""
        if (audit := recipe.audit) is None:
            yield
            return
        settings = log_settings(audit, recipe.privacy)
        self._log = LogWriter.open(
            audit.folder, key=log_key(audit), settings=settings, status=self._memory.log_status
        )
        try:
            async with contents_expire(audit):
                yield
        finally:
            await asyncio.to_thread(self._log.close)

    async def _serve(self, recipe: GatewayRecipe) -> str:
        """Start the workers of a recipe, then let those of the last recipe retire.

        Raises:
            InputError: one of them cannot serve. All new ones are ended then, and on cancellation.
        """
        processes = [self._fork() for _ in range(recipe.workers)]
        all_serve = False
        try:
            async with asyncio.TaskGroup() as group:
                starts = [group.create_task(self._start(each, recipe)) for each in processes]
            all_serve = True
        except ExceptionGroup as failed:  # `except*` would raise a group again
            raise InputError(str(failed.exceptions[0])) from None
        finally:
            if not all_serve:
                self._kill(processes)
        # Before the old workers leave, because a keeper would replace each of them.
        for keeper in self._keepers:
            keeper.cancel()
        retiring, self._serving = self._serving, set(processes)
        self._tell(retiring, "retire")
        self._keepers = [asyncio.create_task(self._keep(each, recipe)) for each in processes]
        # All workers say the same.
        return starts[0].result()

    def _fork(self) -> WorkerProcess:
        return WorkerProcess(*self._fork_server.fork())

    async def _start(self, worker: WorkerProcess, recipe: GatewayRecipe) -> str:
        """Give a process its setup; return what it serves, in words.

        Raises:
            InputError: it cannot serve, or there are too many.
        """
        numbers = {each.number for each in self._workers}
        number = next((n for n in range(WORKERS) if n not in numbers), None)
        if number is None:
            worker.kill()
            raise InputError(
                f"{WORKERS} workers run, with those that still finish their requests; try again "
                "when some of these have ended"
            )
        log_number = next(self._log_numbers) % APPENDERS
        pipe = None if self._log is None else self._log.connect(log_number)
        setup = WorkerSetup(
            recipe=msgspec.Raw(msgspec.json.encode(recipe_table(recipe))),
            number=number,
            log_number=log_number,
            public_key="" if self._log is None else str(self._log.public_key),
            open_to_all=self._open_to_all,
        )
        # Nothing is awaited before this: another start would choose the same number.
        self._workers.add(worker)
        descriptors = [self._listener.fileno(), self._memory.descriptor]
        try:
            return await worker.start(
                setup, descriptors if pipe is None else [*descriptors, pipe], self._scrape
            )
        finally:
            if pipe is not None:
                os.close(pipe)

    async def _keep(self, worker: WorkerProcess, recipe: GatewayRecipe) -> None:
        """Replace a worker whenever it dies."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            await worker.ended.wait()
            self._forget(worker)
            log.error("a worker has died; starting another")
            if loop.time() - started > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                worker = self._fork()
            except WaltzError as error:
                self._failure = error
                self._stop.set()
                return
            try:
                await self._start(worker, recipe)
            except InputError as error:
                log.error("%s", error)  # noqa: TRY400 - one line
            except asyncio.CancelledError:
                self._kill([worker])
                raise
            else:
                self._serving.add(worker)

    async def _serve_and_reload(self, signal_came: asyncio.Event, recipe: GatewayRecipe) -> None:
        """Serve a recipe, and the recipe as it is then whenever the signal comes.

        Raises:
            InputError: a worker cannot serve the first recipe.
        """
        self._announce(recipe, await self._serve(recipe))
        while True:
            await signal_came.wait()
            signal_came.clear()
            try:
                new = self._load()
                _check_change(recipe, new)
                what = await self._serve(new)
            except (WaltzError, OSError) as error:
                log.error("the recipe was not reloaded, and the earlier one serves on: %s", error)  # noqa: TRY400
                continue
            recipe = new
            log.info("reloaded: %s", what)

    async def _stop_all(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._tell(self._workers, "stop")
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*(worker.ended.wait() for worker in self._workers))
        self._kill(self._workers)

    def _tell(self, workers: Iterable[WorkerProcess], kind: Literal["retire", "stop"]) -> None:
        for worker in workers:
            worker.send(WorkerMessage(kind=kind))
            self._run_beside(self._see_off(worker))

    async def _see_off(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        """Keep what a worker that has ended has counted, and free its number."""
        if worker not in self._workers:
            return
        self._workers.discard(worker)
        self._serving.discard(worker)
        self._memory.load(worker.number).clear()
        # Counters never fall, so what a worker has counted outlives it.
        self._past = merge_families([self._past, keep_totals(read_families(worker.families))])

    def _stop_or_kill(self, number: int) -> None:
        # A second Ctrl-C does not wait for requests in progress.
        if self._stop.is_set() and number == signal.SIGINT:
            self._kill(self._workers)
        self._stop.set()

    def _kill(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in list(workers):
            worker.kill()
            self._forget(worker)

    def _run_beside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        # Kept in a set, because the event loop has only weak references to its tasks.
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _scrape(self, asking: WorkerProcess) -> None:
        self._run_beside(self._answer_scrape(asking))

    async def _answer_scrape(self, asking: WorkerProcess) -> None:
        others = [worker for worker in self._workers if worker is not asking]
        await asyncio.gather(*(worker.report() for worker in others))
        # What those that have ended meanwhile have counted is in the past already.
        reports = [read_families(each.families) for each in others if each in self._workers]
        families = msgspec.json.encode(merge_families([*reports, self._past]))
        asking.send(WorkerMessage(kind="scrape", families=msgspec.Raw(families)))


def _check_change(old: GatewayRecipe, new: GatewayRecipe) -> None:
    """Refuse changes for which the gateway has to be started again.

    Raises:
        InputError: the audit log would be another, or would be kept in another way.
    """
    stored = replace(new.privacy, upstream=old.privacy.upstream)  # what is sent may change
    if (old.audit, old.privacy) != (new.audit, stored):
        raise InputError("audit and privacy cannot change in a running gateway; start it again")


def _summarise_recipe(recipe: GatewayRecipe) -> dict[str, object]:
    feedback = recipe.feedback
    return fields(
        version=__version__,
        stage=recipe.stage if recipe.enabled else 0,
        upstream=recipe.upstream.name,
        feedback=feedback.model if feedback and recipe.stage == 2 else None,
        threshold=recipe.threshold,
        on_failure=recipe.on_failure,
        streams=recipe.stream_mode,
        keys=str(recipe.keys) if recipe.keys else None,
        audit=str(recipe.audit.folder) if recipe.audit else None,
        memory=recipe.memory is not None,
        traces=recipe.traces,
        workers=recipe.workers,
    )
