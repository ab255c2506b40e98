"""A program that a gateway serves: in the sandbox, and started again after it ended."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.errors import InputError, PolicyError, ProgramError
from waltzrl.foundation.jsonl import read_text
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox import SandboxedProgram, SandboxLimits, start_program
from waltzrl.policies.settings import UpstreamConfig
from waltzrl.records import Message, Reply

SPENT = ("CPU time", "memory", "output")
"""The limits that earlier replies of the same process may have used up."""

logger = logging.getLogger("waltzrl.evolution")


class ServedProgram:
    """A policy that is a program in the sandbox; what ends the program fails one reply at most.

    One reply at a time. A process that ended is replaced when the next reply is due; one that
    earlier replies brought to a limit is replaced at once, and asked again.
    """

    def __init__(self, program: SandboxedProgram, code: str, limits: SandboxLimits | None) -> None:
        """Serve a program that runs; `open_served_program` starts one."""
        self._program, self._code, self._limits = program, code, limits
        self._has_replied = False
        self._turn = asyncio.Lock()

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the program's reply; `sampling` is not told to it.

        Raises:
            PolicyError: it failed, or cannot be started again.
        """
        async with self._turn:
            await self._ensure_running()
            try:
                reply = await self._program.reply(messages, sampling)
            except PolicyError as error:
                # A process that has just begun ran into the limit by this very request.
                if error.reason not in SPENT or not self._has_replied:
                    raise
                await self._ensure_running()
                reply = await self._program.reply(messages, sampling)
            self._has_replied = True
            return reply

    async def close(self) -> None:
        """End the program."""
        async with self._turn:
            await self._program.close()

    async def _ensure_running(self) -> None:
        stopped = self._program.stopped
        if stopped is None:
            return
        level = logging.DEBUG if stopped.reason == "cancelled" else logging.WARNING
        logger.log(level, "the program was stopped (%s), starting it again", stopped.reason)
        await self._program.close()
        try:
            self._program = await start_program(self._code, limits=self._limits)
        except (InputError, OSError) as error:
            message = f"the program cannot be started again: {error}"
            raise ProgramError(message, reason="start") from error
        self._has_replied = False


@asynccontextmanager
async def open_served_program(
    code: str, limits: SandboxLimits | None = None
) -> AsyncIterator[ServedProgram]:
    """Serve a program for the duration of the block.

    Args:
        code: defines `reply`.
        limits: what each of its processes may use.

    Raises:
        InputError: the machine cannot isolate it.
        PolicyError: it failed at its start.
    """
    program = ServedProgram(await start_program(code, limits=limits), code, limits)
    try:
        yield program
    finally:
        await program.close()


@asynccontextmanager
async def open_upstream(config: UpstreamConfig, model: str | None) -> AsyncIterator[PolicyUpstream]:
    """Open the gateway's upstream `program`, under the name of its file or another one."""
    assert config.program is not None
    path = Path(config.program)
    async with open_served_program(read_text(path)) as program:
        yield PolicyUpstream(model or path.stem, program, config.max_new_tokens)
