"""vLLM servers as processes of a run: started at their places, and again when they end."""

import asyncio
import ctypes
import logging
import os
import shlex
import signal
from asyncio.subprocess import STDOUT, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from waltzrl.errors import InputError
from waltzrl.training.scale.cluster import free_address, get_results

if TYPE_CHECKING:
    from ray.actor import ActorHandle

START_SECONDS = 1800.0
"""The longest wait for a server to load its model, and to compile it."""
POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl for a signal to this process when the one that started it ends."""

logger = logging.getLogger(__name__)


async def start_servers(actors: Sequence["ActorHandle"], command: str) -> list[str]:
    """Start the server of each `ServerProcess`, and return their URLs.

    Raises:
        InputError: one of them cannot serve.
    """
    return await get_results([actor.start.remote(command) for actor in actors])


class ServerProcess:
    """A server that is started again when it ends; it ends with this process."""

    def __init__(self, log: Path) -> None:
        """Prepare to start one that writes to the file `log`."""
        self._log = log
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, command: str) -> str:
        """Start the server in place of an earlier one; return its URL once it answers.

        Args:
            command: without host and port; it may begin with variables of the environment.

        Raises:
            InputError: it ended, or did not answer in time.
        """
        await self.stop()
        host, port = free_address()
        # `env` sets the variables that may stand before the command.
        words = ["env", *shlex.split(command), "--host", host, "--port", str(port)]
        url = f"http://{host}:{port}"
        self._process = await self._started(words)
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await _is_healthy(url):
                    if self._process.returncode is not None:
                        raise InputError(self._complaint(command))
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            await self.stop()
            raise InputError(
                f"no answer within {START_SECONDS:g} s from `{command}`; see {self._log}"
            ) from None
        self._watch = asyncio.create_task(self._keep(words, url))
        return url

    async def stop(self) -> None:
        """End the server."""
        # Before the server ends, or it would be started again.
        if self._watch is not None:
            self._watch.cancel()
        if self._process is not None:
            _end_group(self._process)
            await self._process.wait()

    async def _keep(self, words: Sequence[str], url: str) -> None:
        """Start the server again, at the same URL, whenever it ends."""
        while self._process is not None:
            status = await self._process.wait()
            _end_group(self._process)  # what computes would keep the GPU
            logger.warning("%s ended with status %d; it is started again", url, status)
            self._process = await self._start_again(words, url)

    async def _start_again(self, words: Sequence[str], url: str) -> Process:
        """Start the server as soon as the machine can."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                return await self._started(words)
            except OSError as error:
                logger.warning("%s cannot be started, trying again: %s", url, error)

    async def _started(self, words: Sequence[str]) -> Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *words,
                stdout=log,
                stderr=STDOUT,
                # a process group of its own, which `_end_group` ends as a whole
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _complaint(self, command: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines() or ["it said nothing"]
        return f"`{command}` ended before it served ({lines[-1]}); see {self._log}"


async def _is_healthy(url: str) -> bool:
    try:
        async with aiohttp.request("GET", f"{url}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _end_group(process: Process) -> None:
    """End a server with the processes that it started, which may outlive it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_with_parent() -> None:
    # SIGTERM, so that vLLM ends its own processes too.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
