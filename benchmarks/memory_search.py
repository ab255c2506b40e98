"""The memory on SQLite with many records, against LangGraph's SqliteStore with the same records.

    python benchmarks/memory_search.py [--records 100000] [--peer-records 100000] [--json]

Each record is an evaluation of about 1.6 KB with a request hash of its own. Both stores use a file
in WAL mode with `synchronous=NORMAL`. Ours scrubs nothing here; `benchmarks/privacy_scan.py`
measures the cost of scanning.
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

from waltzrl.store.database import open_database
from waltzrl.store.memory import items
from waltzrl.store.memory.schemas import EVALUATIONS
from waltzrl.store.memory.store import MemoryStore

BATCH = 100
LOOKUPS = 300
PEER_SEARCHES = 10
"""Fewer, because the peer's searches have no index."""
REQUEST = "collaboration.prompt.messages[-1].content"
Input = TypeVar("Input")


class Store(Protocol):
    """The methods of both stores that are measured."""

    def batch(self, ops: list[object]) -> object:
        """Apply all operations."""
        ...

    def get(self, namespace: tuple[str, ...], key: str) -> object:
        """Return one item."""
        ...

    def search(self, namespace: tuple[str, ...], /, *, filter: dict[str, str]) -> list[object]:  # noqa: A002
        """Return matching items."""
        ...


def request_hash(number: int) -> str:
    """Return the hash of a record's request."""
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def record(number: int) -> dict[str, object]:
    """Return an artificial record of about 1.6 KB."""
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
    """Open LangGraph's store on a connection with the settings of ours."""
    file = folder / "theirs.db"
    connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
    store = SqliteStore(connection)
    store.setup()
    yield store
    connection.close()


def milliseconds(act: Callable[[Input], object], inputs: Iterable[Input]) -> list[float]:
    """Return the time of `act` for each input."""
    times = []
    for value in inputs:
        started = time.perf_counter()
        act(value)
        times.append(1e3 * (time.perf_counter() - started))
    return times


def measured(
    store: Store, put: Callable[..., object], records: int, searches: int
) -> dict[str, list[float]]:
    """Fill a store, then get and search items."""
    batches = (
        [
            put(EVALUATIONS, f"i{n}", record(n), index=[REQUEST])
            for n in range(first, min(first + BATCH, records))
        ]
        for first in range(0, records, BATCH)
    )

    def search(number: int) -> None:
        (item,) = store.search(EVALUATIONS, filter={"request_hash": request_hash(number)})
        assert item.key == f"i{number}"

    numbers = random.Random(0).sample(range(records), LOOKUPS)
    return {
        f"put {BATCH} in a batch": milliseconds(store.batch, batches),
        "get": milliseconds(lambda number: store.get(EVALUATIONS, f"i{number}"), numbers),
        "search by request_hash": milliseconds(search, numbers[:searches]),
    }


def percentiles(times: list[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    return {
        "p50": statistics.median(times),
        "p95": statistics.quantiles(times, n=20)[-1],
        "times": len(times),
    }


def main() -> None:
    """Measure both, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--peer-records", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print only JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with ours(Path(folder)) as store:
            mine = measured(store, items.PutOp, options.records, LOOKUPS)
        with theirs(Path(folder)) as store:
            peer = measured(store, langgraph.PutOp, options.peer_records, PEER_SEARCHES)
    sides = {f"waltzrl, {options.records:,}": mine, f"SqliteStore, {options.peer_records:,}": peer}
    results = {
        side: {operation: percentiles(times) for operation, times in measurements.items()}
        for side, measurements in sides.items()
    }
    if not options.json:
        print(f"{platform.machine()}, SQLite {sqlite3.sqlite_version}; milliseconds")
        print(f"{'':24} {'records':>24} {'p50':>10} {'p95':>10} {'times':>6}")
        for side, operations in results.items():
            for name, row in operations.items():
                print(
                    f"{name:24} {side:>24} {row['p50']:10.3f} {row['p95']:10.3f} {row['times']:6}"
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
