"""The gateway with a memory against the gateway without.

    python benchmarks/gateway_memory.py [--rounds 10] [--seconds 3]

Both run as in `gateway_vs_peers.py`: all features on, one worker on one core, which it shares with
the recorder; the upstream and the load generator use the other core. They take the load in turn, in
an order that changes from round to round; between two loads the recorder catches up. The ratio is
the geometric mean over the rounds, with a bootstrap interval.
"""

import argparse
import dataclasses
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from contenders import CHAT, Contender, Place, upstream, waltzrl
from load import CLIENT_CORE, apply_load, request_body

from waltzrl.evaluation.intervals import mean

GATEWAY_CORE = 1
FIRST_PORT = 9390
CONNECTIONS = 16
JSON = {"content-type": "application/json"}
IDLE = 0.05
"""Share of a core; a recorder that takes less has caught up."""
STORED = "SELECT count(*) FROM items WHERE namespace = 'safety.waltzrl.evaluations'"


class Side:
    """A gateway under load."""

    def __init__(self, stack: ExitStack, contender: Contender, core: int, folder: Path) -> None:
        self.contender = contender
        self.answered, self.busy_mb = 0, 0.0
        log = folder / f"{contender.name}.log"
        self.server = contender.start(stack, core, log)

    def rest(self) -> None:
        """Wait until it is idle, so that it does not slow the other side down."""
        before = -1.0
        while (now := self.server.cpu_seconds()) - before > IDLE:
            before = now
            time.sleep(1.0)

    def per_second(self, body: Path, seconds: float) -> float:
        """Apply the load once; return answers in a second.

        Raises:
            RuntimeError: a request failed.
        """
        headers = {**JSON, **self.contender.headers}
        url = self.contender.base + CHAT
        load = apply_load(url, body, headers, connections=CONNECTIONS, seconds=seconds)
        if load.errors:
            raise RuntimeError(f"{self.contender.name}: {load.errors} requests failed")
        self.answered += load.requests
        self.busy_mb = self.server.memory_mb()
        self.rest()
        return load.per_second


def with_memory(place: Place, port: int) -> Contender:
    """Ours with a memory on SQLite beside it."""
    contender = waltzrl(place, port)
    recipe = place.folder / "waltzrl" / "gateway.toml"
    memory = f'[memory]\nurl = "sqlite:///{database(place.folder)}"\n'
    key = f'subject_key = "{place.folder}/subjects.key"\n'
    recipe.write_text(f"{recipe.read_text()}{memory}{key}")
    return dataclasses.replace(contender, name="with memory")


def database(folder: Path) -> Path:
    """Return where the memory is."""
    return folder / "memory.db"


def stored(file: Path) -> int:
    """Count what is remembered."""
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute(STORED).fetchone()[0])


def measure(rounds: int, seconds: float) -> None:
    """Start both, apply the load in turn, and say what came of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        body = folder / "body.json"
        body.write_bytes(request_body(stream=False))
        python = Path(sys.executable)
        model = upstream(python, FIRST_PORT)
        model.start(stack, CLIENT_CORE, folder / "upstream.log")
        places = []
        for name in ("without", "with"):
            (folder / name).mkdir()
            places.append(Place(upstream=model.base, folder=folder / name, python=python))
        bare = Side(stack, waltzrl(places[0], FIRST_PORT + 1), GATEWAY_CORE, folder)
        remembering = Side(stack, with_memory(places[1], FIRST_PORT + 2), GATEWAY_CORE, folder)
        both = [bare, remembering]
        for side in both:
            side.per_second(body, 1.0)  # warm-up
        ratios = []
        for number in range(1, rounds + 1):
            order = both if number % 2 else both[::-1]
            found = {side.contender.name: side.per_second(body, seconds) for side in order}
            ratios.append(found["with memory"] / found["waltzrl"])
            told = {name: f"{value:.0f}" for name, value in found.items()}
            print(f"round {number}: requests/s {told}, ratio {ratios[-1]:.3f}", flush=True)
        report(ratios, bare, remembering, stored(database(places[1].folder)))


def report(ratios: Sequence[float], bare: Side, remembering: Side, kept: int) -> None:
    """Print what was found."""
    # The geometric mean: the mean of the logarithms, whose interval is the bootstrap's.
    logs = mean([math.log(ratio) for ratio in ratios])
    ratio, low, high = map(math.exp, (logs.value, logs.low, logs.high))
    answered = remembering.answered
    print(f"ratio of requests/s with memory to without: {ratio:.3f} ({low:.3f} to {high:.3f})")
    print(f"answered {answered}, stored {kept}, dropped {answered - kept}")
    print(f"resident: {bare.busy_mb:.0f} MB, {remembering.busy_mb:.0f} MB with memory and recorder")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    given = parser.parse_args()
    measure(given.rounds, given.seconds)


if __name__ == "__main__":
    main()
