"""A gateway in a process of its own, and users who query it through the OpenAI API."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count, cycle, islice
from pathlib import Path

import msgspec

from waltzrl.agents.exports import CONVERSATION
from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy
from waltzrl.policies.chat_completion import chat_message
from waltzrl.records import Prompt

AT_ONCE = 32
RETURNS = 100
"""The number of questions after which the first user asks again. A release counts a user once in an
arm and step, so the others ask once."""
MAX_TOKENS = 48


@asynccontextmanager
async def running_gateway(recipe: Path) -> AsyncIterator[str]:
    """Run `waltzrl serve` during the block, and give its address.

    Raises:
        PolicyError: it did not start.
    """
    log = recipe.with_name("gateway.log")
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waltzrl", "serve", str(recipe), "--port", "0"),
            stderr=stderr,
        )
    try:
        yield await _wait_for_address(process, log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Users:
    """Users who ask questions in turn, many at once; each gives the gateway a name of their own."""

    def __init__(self, gateway: str, key: str, questions: Iterable[Prompt]) -> None:
        """Ask `gateway` with `key`; after the last question comes the first again."""
        self.asked = 0
        self.failed = 0
        self._model = RemotePolicy(f"{gateway}/v1", CONVERSATION, api_key=key, concurrency=AT_ONCE)
        self._questions = zip(map(user_name, count()), cycle(questions), strict=False)

    async def ask(
        self, number: int, report: Callable[[int, int], None] = lambda _done, _total: None
    ) -> None:
        """Ask so many questions, and wait for the answers; `report` gets how many came."""
        answers = [self._ask(*each) for each in islice(self._questions, number)]
        for done, answer in enumerate(asyncio.as_completed(answers), start=1):
            await answer
            report(done, number)

    async def aclose(self) -> None:
        await self._model.aclose()

    async def _ask(self, name: str, question: Prompt) -> None:
        self.asked += 1
        request = {
            "model": CONVERSATION,
            "messages": [chat_message(message) for message in question.messages],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "user": name,
        }
        try:
            await self._model.post("/chat/completions", msgspec.json.encode(request))
        except PolicyError:
            self.failed += 1


def user_name(number: int) -> str:
    """Return who asks a question, by its number from 0."""
    return f"user-{number + 1 if number % RETURNS else 1}"


async def _wait_for_address(process: asyncio.subprocess.Process, log: Path) -> str:
    """Wait for the line of the log that says where the gateway listens, on a port of its choice."""
    while process.returncode is None:
        text = await asyncio.to_thread(log.read_text)
        if address := re.search(r"clients use (http://[^/]+)/v1", text):
            return address[1]
        await asyncio.sleep(0.1)
    raise PolicyError("the gateway did not start; see gateway.log beside its recipe")
