"""The recorder as a process beside each gateway: `python -m` with the name of this module.

configuration -> keys, scanner, judge, database -> waltzrl.operations.online.recorder.Recorder

It reads frames from standard input and writes reports to standard output. It ends when the gateway
closes the pipe or dies, after finishing what it was sent. See docs/memory.md.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import msgspec
from pydantic import TypeAdapter

from waltzrl.budget import ModelPrice, PriceBook
from waltzrl.budget.daily import DailyLedger
from waltzrl.budget.settings import LedgerConfig
from waltzrl.errors import WaltzError
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.opening import judge_place, open_judge
from waltzrl.foundation.logs import LogsConfig, configure_logs
from waltzrl.gateway.costs import charge_to_gateway
from waltzrl.operations.online.judging import OnlineJudge
from waltzrl.operations.online.recorder import Recorder
from waltzrl.operations.online.recorder_protocol import RecorderReport, read_frames
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.store.database import open_database
from waltzrl.store.memory.opening import open_memory
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.settings import MemoryConfig
from waltzrl.store.privacy.digest import key_in
from waltzrl.store.privacy.opening import open_redaction
from waltzrl.store.privacy.settings import PrivacyConfig

COMMAND = (sys.executable, "-m", "waltzrl.operations.online.recorder_opening")

log = logging.getLogger("waltzrl.recorder")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderConfig:
    """What a recorder needs of its gateway's recipe; the first frame of the pipe."""

    memory: MemoryConfig
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)
    categories: Mapping[str, str] = field(default_factory=dict)
    """Rule id -> category, of the stage-1 rules."""
    budget: LedgerConfig | None = None
    """The ledger that is charged for what the judges answer."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)

    def to_json(self) -> object:
        """Return the configuration in JSON's types."""
        return _CONFIG.dump_python(self, mode="json")


_CONFIG = TypeAdapter(RecorderConfig)


class SharedDatabase:
    """The database that all replicas share; each part of it is opened at its first use."""

    def __init__(self, config: RecorderConfig) -> None:
        """Check the configuration without connecting.

        Raises:
            InputError: the database's URL or a key is invalid.
            MissingExtraError: an extra that it needs is not installed.
        """
        self.engine = open_database(config.memory.url)
        self.scrub = open_redaction(config.privacy).scrub
        key_in(config.memory.subject_key)  # an invalid key fails before anything is connected
        self._config = config

    @cached_property
    def book(self) -> ReleaseBook:
        """Reading it, and every method, raises a StorageError while the database is unavailable."""
        return ReleaseBook(self.engine)

    @cached_property
    def memory(self) -> SafetyMemory:
        return open_memory(self._config.memory, self._config.categories, self.engine, self.scrub)


def main() -> None:
    """Be the recorder of the process that writes to our standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # only the end of the pipe ends a recorder
        signal.signal(number, signal.SIG_IGN)
    configure_logs("text", "info")
    asyncio.run(_open_and_run())


async def _open_and_run() -> None:
    pipe = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    texts = read_frames(pipe)
    config = _CONFIG.validate_json(await anext(texts))
    configure_logs(config.logs.format, config.logs.level)
    # Scanning and judging must not take the cores from requests.
    os.nice(config.memory.niceness)
    try:
        async with AsyncExitStack() as stack:
            judges = [
                None if name is None else await _open_judge(name, config, stack)
                for name in (config.memory.judge, config.memory.second_judge)
            ]
            judge, second = judges
            make_judge = partial(OnlineJudge, judge, config.memory.judge_share, second=second)
            shared = SharedDatabase(config)
            recorder = Recorder(lambda: (shared.memory, shared.book), make_judge, _write_report)
            await _run_recorder(recorder, texts)
    except WaltzError as error:
        log.error("%s", error)  # noqa: TRY400 - one line


async def _open_judge(name: str, config: RecorderConfig, stack: AsyncExitStack) -> Judge:
    judge = await stack.enter_async_context(open_judge(name))
    if config.budget is None:
        return judge
    ledger = stack.enter_context(closing(DailyLedger(config.budget.folder)))
    return charge_to_gateway(judge, ledger, PriceBook(config.prices), judge_place(name))


async def _run_recorder(recorder: Recorder, texts: AsyncIterator[bytes]) -> None:
    try:
        await recorder.run(texts)
    except TimeoutError:
        lost = recorder.unstored
        log.error("the database was unavailable too long; %d exchanges are lost", lost)  # noqa: TRY400


def _write_report(report: RecorderReport) -> None:
    with suppress(BrokenPipeError):  # the gateway is gone; its exchanges are stored all the same
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
