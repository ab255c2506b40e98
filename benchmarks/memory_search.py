"""The memory on SQLite with many records, against LangGraph's SqliteStore with the same records.

    python benchmarks/memory_search.py [--records 100000] [--peer-records 100000] [--json]

Each record is an evaluation of about 1.6 KB with a request hash of its own. Both stores use a file
in WAL mode with `synchronous=NORMAL`. Ours scrubs nothing here: what scanning costs is the business
of `benchmarks/privacy_scan.py`.
"""

import argparse
import hashlib
import json
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from langgraph.store import base as langgraph
from langgraph.store.sqlite import SqliteStore

from waltzrl.memory import items
from waltzrl.memory.schemas import EVALUATIONS
from waltzrl.memory.store import MemoryStore
from waltzrl.storage.database import open_database

BATCH = 100
LOOKS = 300
"""Of each kind; a search of a store without an index is looked at fewer times."""
PEER_SEARCHES = 10
REQUEST = "collaboration.prompt.messages[-1].content"
Thing = TypeVar("Thing")


class Store(Protocol):
    """What both sides offer."""

    def batch(self, ops: list[object]) -> object:
        """Do all of it."""
        ...

    def get(self, namespace: tuple[str, ...], key: str) -> object:
        """Return one item."""
        ...

    def search(self, namespace: tuple[str, ...], /, *, filter: dict[str, str]) -> list[object]:  # noqa: A002
        """Return what fits."""
        ...


def request_hash(number: int) -> str:
    """Return the hash of a record's request."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def record(number: int) -> dict[str, object]:
    """Make up a record of about 1.6 KB."""
    words = random.Random(number).choices(("how", "kill", "a", "process", "safely"), k=230)
    request = " ".join(words[:30])
    return {
        "id": f"i{number}",
        "time": 1.7e9 + number,
        "request_hash": request_hash(number),
        "subject": request_hash(number % 1000) * 2,
        "bundle": f"b{number % 3}",
        "stage": 2,
        "decision": "draft",
        "safe": number % 50 > 0,
        "collaboration": {
            "prompt": {"id": str(number), "messages": [{"role": "user", "content": request}]},
            "draft": {"text": " ".join(words[30:])},
            "rounds": [{"feedback": {"unsafe": False, "overrefuse": False, "text": request}}],
        },
    }


@contextmanager
def ours(folder: Path) -> Iterator[Store]:
    """Open our store."""
    engine = open_database(f"sqlite:///{folder}/ours.db")
    yield MemoryStore(engine, scrub=str)
    engine.dispose()


@contextmanager
def theirs(folder: Path) -> Iterator[Store]:
    """Open LangGraph's store on a connection that is set up as ours is."""
    file = folder / "theirs.db"
    connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
    store = SqliteStore(connection)
    store.setup()
    yield store
    connection.close()


def milliseconds(act: Callable[[Thing], object], things: Iterable[Thing]) -> list[float]:
    """Return how long `act` took for each of the things."""
    taken = []
    for thing in things:
        started = time.perf_counter()
        act(thing)
        taken.append(1e3 * (time.perf_counter() - started))
    return taken


def measured(
    store: Store, put: Callable[..., object], records: int, searches: int
) -> dict[str, list[float]]:
    """Fill a store, then look things up in it."""
    batches = (
        [
            put(EVALUATIONS, f"i{n}", record(n), index=[REQUEST])
            for n in range(first, min(first + BATCH, records))
        ]
        for first in range(0, records, BATCH)
    )

    def search(number: int) -> None:
        (found,) = store.search(EVALUATIONS, filter={"request_hash": request_hash(number)})
        assert found.key == f"i{number}"

    some = random.Random(0).sample(range(records), LOOKS)
    return {
        f"put {BATCH} in a batch": milliseconds(store.batch, batches),
        "get": milliseconds(lambda number: store.get(EVALUATIONS, f"i{number}"), some),
        "search by request_hash": milliseconds(search, some[:searches]),
    }


def percentiles(taken: list[float]) -> dict[str, float]:
    """Return the middle, and what 95 of 100 stay below."""
    return {
        "p50": statistics.median(taken),
        "p95": statistics.quantiles(taken, n=20)[-1],
        "times": len(taken),
    }


def main() -> None:
    """Measure both, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--peer-records", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print nothing but JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with ours(Path(folder)) as store:
            mine = measured(store, items.PutOp, chosen.records, LOOKS)
        with theirs(Path(folder)) as store:
            peer = measured(store, langgraph.PutOp, chosen.peer_records, PEER_SEARCHES)
    sides = {f"waltzrl, {chosen.records:,}": mine, f"SqliteStore, {chosen.peer_records:,}": peer}
    results = {
        side: {what: percentiles(taken) for what, taken in one.items()}
        for side, one in sides.items()
    }
    if not chosen.json:
        print(f"{platform.machine()}, SQLite {sqlite3.sqlite_version}; milliseconds")
        print(f"{'':24} {'records':>24} {'p50':>10} {'p95':>10} {'times':>6}")
        for side, one in results.items():
            for what, of in one.items():
                print(f"{what:24} {side:>24} {of['p50']:10.3f} {of['p95']:10.3f} {of['times']:6}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
