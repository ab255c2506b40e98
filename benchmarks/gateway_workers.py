"""How the gateway scales with its workers: CPU of the busiest process for each request.

    python benchmarks/gateway_workers.py [--rounds 5] [--seconds 3]

Gateways with one and with two workers, everything on, take the same load in turn. With a core for
each process, the busiest one bounds the requests per second: 1 / (its CPU seconds for each
request). The ratio of the two bounds says how two workers scale, on a machine of two cores too,
where the upstream and the load generator need a part of both; it counts what sharing costs, an
uneven spread of the connections, and the process that writes the audit log.
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from contenders import CHAT, Contender, Place, upstream, waltzrl
from load import CLIENT_CORE, apply_load, request_body
from processes import Server

FIRST_PORT = 9390
GOAL = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one load on one gateway."""

    busiest_ms: float
    """CPU milliseconds of its busiest process for each request."""
    total_ms: float
    """CPU milliseconds of all its processes for each request."""
    per_second: float


def cost(ours: Contender, server: Server, body: Path, *, connections: int, seconds: float) -> Cost:
    """Apply a load and return what it cost."""
    before = server.cpu_seconds_by_process()
    load = apply_load(
        ours.base + CHAT,
        body,
        {"content-type": "application/json", **ours.headers},
        connections=connections,
        seconds=seconds,
    )
    if load.errors:
        raise RuntimeError(f"{load.errors} of {load.requests} requests failed; see {server.log}")
    after = server.cpu_seconds_by_process()
    spent = [1e3 * (after[pid] - before.get(pid, 0.0)) / load.requests for pid in after]
    return Cost(busiest_ms=max(spent), total_ms=sum(spent), per_second=load.per_second)


def main() -> None:
    """Print a table, and whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--connections", type=int, default=16)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        body = folder / "body.json"
        body.write_bytes(request_body(stream=False))
        python = Path(sys.executable)
        model = upstream(python, FIRST_PORT)
        model.start(stack, CLIENT_CORE, folder / "upstream.log")
        cores = ",".join(map(str, range(os.cpu_count() or 1)))
        servers = {}
        for workers in (1, 2):
            own = folder / str(workers)
            own.mkdir()
            place = Place(upstream=model.base, folder=own, python=python)
            ours = waltzrl(place, FIRST_PORT + workers)
            ours = replace(ours, command=(*ours.command, "--workers", str(workers)))
            servers[workers] = ours, ours.start(stack, cores, own / "log")
        rounds = [
            {
                workers: cost(*served, body, connections=given.connections, seconds=given.seconds)
                for workers, served in servers.items()
            }
            for _ in range(given.rounds + 1)
        ][1:]
    print("| workers | busiest process, CPU ms | all processes, CPU ms | requests/s here |")
    print("| ---: | ---: | ---: | ---: |")
    for workers in servers:
        busiest, total, rate = (
            statistics.median(getattr(each[workers], name) for each in rounds)
            for name in ("busiest_ms", "total_ms", "per_second")
        )
        print(f"| {workers} | {busiest:.3f} | {total:.3f} | {rate:.0f} |")
    ratio = statistics.median(each[1].busiest_ms / each[2].busiest_ms for each in rounds)
    met = "met" if ratio >= GOAL else "not met"
    print(f"two workers: {ratio:.2f} times one; goal {GOAL}: {met}")


if __name__ == "__main__":
    main()
