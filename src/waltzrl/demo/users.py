"""A gateway in a process of its own, and users who query it through the OpenAI API."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path

from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy, Sampling
from waltzrl.records import Prompt
from waltzrl.serving.listener import listen
from waltzrl.training import CONVERSATION

AT_ONCE = 32
HOST = "127.0.0.1"


@asynccontextmanager
async def running_gateway(recipe: Path) -> AsyncIterator[str]:
    """Run `waltzrl serve` during the block, and give its address.

    Raises:
        PolicyError: it did not start.
    """
    listener = listen(HOST, 0)
    port = listener.getsockname()[1]
    listener.close()
    with recipe.with_name("gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waltzrl", "serve", str(recipe), "--port", str(port)),
            stderr=log,
        )
    try:
        await _wait_until_listening(process, port)
        yield f"http://{HOST}:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Users:
    """Users who ask questions in order, many at once."""

    def __init__(self, gateway: str, key: str, questions: Iterable[Prompt]) -> None:
        """Ask `gateway` with `key`; after the last question comes the first again."""
        self.asked = 0
        self.failed = 0
        self._model = RemotePolicy(f"{gateway}/v1", CONVERSATION, api_key=key, concurrency=AT_ONCE)
        self._questions = cycle(questions)

    async def ask(self, count: int) -> None:
        """Ask `count` questions, and wait for the answers."""
        await asyncio.gather(*map(self._ask, islice(self._questions, count)))

    async def aclose(self) -> None:
        await self._model.aclose()

    async def _ask(self, question: Prompt) -> None:
        self.asked += 1
        try:
            await self._model.reply(question.messages, Sampling(max_new_tokens=48))
        except PolicyError:
            self.failed += 1


async def _wait_until_listening(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until the port accepts connections; requests wait until the models are loaded."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise PolicyError("the gateway did not start; see gateway.log beside its recipe")
