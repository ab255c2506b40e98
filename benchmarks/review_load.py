"""What does the gateway answer when more clients ask than its reviewer has time for?

    python benchmarks/review_load.py [--reviewer smollm2] [--clients 1 4 16 64] [--seconds 20]
        [--set review_timeout_ms=10000 ...]

Starts `waltzrl serve --reviewer NAME` in front of a server that always gives the same harmless
answer. Clients ask harmless questions, each its next one when it has the answer to the last; one
that is told 503 asks again after Retry-After, as the official clients do. Prints a line for each
number of clients: answers a second, their latency, every status, and how many harmless replies were
refused; the first ten seconds do not count. The reviewer's package must be installed.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from time import perf_counter

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from contenders import upstream
from processes import start_server

UPSTREAM_PORT, GATEWAY_PORT = 9480, 9481
URL = f"http://127.0.0.1:{GATEWAY_PORT}"
QUESTIONS = [
    f"How do I {verb} {bread}?"
    for verb in ("bake", "knead", "freeze", "slice", "store", "reheat")
    for bread in ("a sourdough loaf", "a baguette", "rye bread", "a brioche", "flat bread")
]
WARM_UP_SECONDS = 10.0
"""By then as many wait for a review as ever will."""


@dataclass(slots=True)
class Load:
    """What some clients were answered."""

    clients: int
    begins: float
    """What was answered before does not count."""
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds, of the answers with status 200, each since its own request."""
    refused: int = 0
    """Answers with status 200 that are a canned refusal."""

    def add(self, status: int, seconds: float, *, refused: bool) -> None:
        if perf_counter() < self.begins:
            return
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(seconds)
            self.refused += refused

    @property
    def per_second(self) -> float:
        return (self.statuses[200] - self.refused) / self.seconds

    def latency(self, share: float) -> float:
        ordered = sorted(self.latencies) or [float("nan")]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def line(self) -> str:
        statuses = ", ".join(f"{number} x {status}" for status, number in self.statuses.items())
        return (
            f"| {self.clients} | {self.per_second:.2f} | {self.latency(0.5):.2f} |"
            f" {self.latency(0.95):.2f} | {statuses} | {self.refused} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reviewer", default="smollm2")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        start(stack, Path(folder), given.reviewer, given.settings)
        loads = asyncio.run(measure(given.clients, given.seconds))
    print(f"false refusals: {sum(load.refused for load in loads)}")
    for fewer, more in pairwise(loads):
        ratio = more.per_second / fewer.per_second if fewer.per_second else float("nan")
        print(f"answers a second, {more.clients} clients over {fewer.clients}: {ratio:.2f}")


def start(stack: ExitStack, folder: Path, reviewer: str, settings: Sequence[str]) -> None:
    """Start the upstream and the gateway; they share the cores, as on one machine."""
    cores = "0-1"
    model = upstream(Path(sys.executable), UPSTREAM_PORT)
    model.start(stack, cores, folder / "upstream.log")
    serve = ["-m", "waltzrl", "serve", "--port", str(GATEWAY_PORT), "--reviewer", reviewer]
    options = ["--upstream", f"{model.base}/v1"]
    options += [option for setting in settings for option in ("--set", setting)]
    command = [sys.executable, *serve, *options]
    start_server(stack, command, f"{URL}/readyz", core=cores, env={}, log=folder / "gateway.log")


async def measure(clients: Sequence[int], seconds: float) -> list[Load]:
    """Apply each load in turn."""
    print("| clients | answers/s | p50 s | p95 s | answers | refused |")
    print("| ---: | ---: | ---: | ---: | --- | ---: |")
    loads = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for number in clients:
            load = Load(number, perf_counter() + WARM_UP_SECONDS, seconds)
            ends, numbers = load.begins + seconds, count()
            async with asyncio.TaskGroup() as group:
                for _ in range(number):
                    group.create_task(ask_until(session, ends, numbers, load))
            loads.append(load)
            print(load.line, flush=True)
    return loads


async def ask_until(
    session: aiohttp.ClientSession, ends: float, numbers: "count[int]", load: Load
) -> None:
    """Ask as one client; what is not answered when the time ends does not count."""
    try:
        async with asyncio.timeout(ends - perf_counter()):
            while True:
                await ask(session, QUESTIONS[next(numbers) % len(QUESTIONS)], load)
    except TimeoutError:
        return


async def ask(session: aiohttp.ClientSession, question: str, load: Load) -> None:
    """Ask a question until it is answered."""
    body = {"model": "bench", "messages": [{"role": "user", "content": question}]}
    while True:
        began = perf_counter()
        async with session.post(f"{URL}/v1/chat/completions", json=body) as response:
            await response.read()
        refused = response.headers.get("x-waltzrl-decision") == "refused"
        load.add(response.status, perf_counter() - began, refused=refused)
        if response.status != 503:
            break
        await asyncio.sleep(float(response.headers["retry-after"]))


if __name__ == "__main__":
    main()
