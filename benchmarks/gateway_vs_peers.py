"""The gateway, everything on, against LiteLLM, NeMo Guardrails, Portkey and a bare pass-through.

    python benchmarks/gateway_vs_peers.py [--quick] [--flat] [--json results.json]

One upstream that always says the same shares a core with the load generator; every gateway has one
worker on the other core. They take the load in turn, round after round, so that whatever else the
machine does slows all alike. Ratios are medians over the rounds of the ratio within a round. The
peers get environments of their own (`.venv-bench-*`), ours is a fresh `pip install .`, made anew.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from contenders import (
    CHAT,
    Contender,
    Place,
    litellm,
    nemo,
    pass_through,
    portkey,
    upstream,
    waltzrl,
)
from environments import LITELLM, NEMO, Footprint, make_ours, make_peer, weigh
from load import CLIENT_CORE, WRK, apply_load, request_body
from processes import Server
from verdict import LITELLM_NAME, NEMO_NAME, OURS, Cell, Cells, Facts, report

GATEWAY_CORE = 1
FIRST_PORT = 9380
PLAIN_LOADS = {"c16": 16, "c1": 1}
LONG_LOADS = {"10k": 10_000, "50k": 50_000}
"""Tokens of the prompt, over one connection."""
STREAM_CONNECTIONS = 16
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A contender and its process."""

    contender: Contender
    server: Server


class Bench:
    """Everything that runs while the loads are applied."""

    def __init__(self, stack: ExitStack, given: argparse.Namespace) -> None:
        self.stack = stack
        self.seconds: float = given.seconds
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.python = make_ours()
        self.plain, self.stream = self.folder / "plain.json", self.folder / "stream.json"
        self.plain.write_bytes(request_body())
        self.stream.write_bytes(request_body(stream=True))
        self.long = {name: self.folder / f"{name}.json" for name in LONG_LOADS}
        for name, file in self.long.items():
            file.write_bytes(request_body(tokens=LONG_LOADS[name]))
        model = upstream(self.python, FIRST_PORT, given.upstream_ms)
        place = Place(upstream=model.base, folder=self.folder, python=self.python)
        self.running = [self.start(model, CLIENT_CORE)]
        for number, make in enumerate(
            (pass_through, waltzrl, litellm, nemo, portkey), FIRST_PORT + 1
        ):
            self.running.append(self.start(make(place, number), GATEWAY_CORE))

    def start(self, contender: Contender, core: int) -> Running:
        """Start a contender, wait until it serves, and see that it answers."""
        log = self.folder / f"{contender.name}.log"
        server = contender.start(self.stack, core, log)
        for body in (self.plain, *([self.stream] if contender.streams else [])):
            asked = urllib.request.Request(
                contender.base + CHAT, body.read_bytes(), {**JSON, **contender.headers}
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                if b"loaf" not in answer.read():
                    raise RuntimeError(f"{contender.name} did not pass the answer on; see {log}")
        print(f"{contender.name:22} ready after {server.ready_seconds:.2f} s", flush=True)
        return Running(contender=contender, server=server)

    def round(self, seconds: float) -> Cells:
        """Apply every load to everybody, once."""
        cells: Cells = {}
        for name, connections in PLAIN_LOADS.items():
            for one in self.running:
                cells[one.contender.name, name] = self.cell(one, self.plain, connections, seconds)
        for name, file in self.long.items():
            for one in self.running:
                cells[one.contender.name, name] = self.cell(one, file, 1, seconds)
        for one in self.running:
            for mode, headers in one.contender.streams.items():
                cells[one.contender.name, mode] = self.cell(
                    one, self.stream, STREAM_CONNECTIONS, seconds, headers
                )
        return cells

    def cell(
        self,
        one: Running,
        body: Path,
        connections: int,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> Cell:
        """Apply one load to one contender, twice as long if it could answer nothing at all."""
        before = one.server.cpu_seconds()
        load = apply_load(
            one.contender.base + CHAT,
            body,
            {**JSON, **one.contender.headers, **(headers or {})},
            connections=connections,
            seconds=seconds,
        )
        if load.errors:
            raise RuntimeError(f"{one.contender.name}: {load.errors} of {load.requests} failed")
        if not load.requests:
            return self.cell(one, body, connections, 2 * seconds, headers)
        cpu = one.server.cpu_seconds() - before
        return Cell(load=load, cpu_ms=1e3 * cpu / load.requests, memory_mb=one.server.memory_mb())

    def flatness(self, requests: int, within_seconds: float) -> tuple[int, list[float]]:
        """Send `requests` to our gateway; return how many were sent, and its memory on the way."""
        (ours,) = (one for one in self.running if one.contender.name == OURS)
        sent, memory, spent = 0, [ours.server.memory_mb()], 0.0
        while sent < requests and spent < within_seconds:
            load = self.cell(ours, self.plain, 16, 3.0).load
            sent, spent = sent + load.requests, spent + load.seconds
            memory.append(ours.server.memory_mb())
            print(f"{sent:>7} requests, {memory[-1]:.1f} MB", flush=True)
        return sent, memory


def measure(given: argparse.Namespace) -> Facts:
    """Start everybody, apply the loads in turn, stop everybody."""
    with ExitStack() as stack:
        bench = Bench(stack, given)
        bench.round(min(1.0, given.seconds))  # warm-up
        rounds = []
        for number in range(1, given.rounds + 1):
            rounds.append(bench.round(given.seconds))
            said = {
                name: f"{cell.load.per_second:.0f}"
                for (name, kind), cell in rounds[-1].items()
                if kind == "c16"
            }
            print(f"round {number}  load {os.getloadavg()[0]:.1f}  requests/s {said}", flush=True)
        sent, memory = bench.flatness(given.flat, within_seconds=180) if given.flat else (0, [])
        return Facts(
            rounds=rounds,
            ready_seconds={one.contender.name: one.server.ready_seconds for one in bench.running},
            footprints=footprints(bench.python),
            flat_requests=sent,
            flat_mb=memory,
        )


def footprints(python: Path) -> dict[str, Footprint]:
    """Weigh the installations."""
    pythons = {OURS: python, LITELLM_NAME: make_peer(LITELLM), NEMO_NAME: make_peer(NEMO)}
    return {name: weigh(path) for name, path in pythons.items()}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1 second")
    parser.add_argument(
        "--flat",
        type=int,
        nargs="?",
        const=100_000,
        default=0,
        metavar="REQUESTS",
        help="then watch our memory over so many requests (100,000), for three minutes at most",
    )
    parser.add_argument("--upstream-ms", type=float, default=0.0, help="how long the model thinks")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    given = parser.parse_args(arguments)
    if given.quick:
        given.rounds, given.seconds = 2, 1.0
    return given


def main() -> None:
    """Run the comparison."""
    given = options(sys.argv[1:])
    if (os.cpu_count() or 1) < 2:
        sys.exit("two cores are needed: one for the gateways, one for the upstream and its client")
    if not WRK:
        print("wrk is not installed (apt install wrk); a slower client in Python takes its place")
    facts = measure(given)
    print(report(facts))
    if given.json:
        given.json.write_text(json.dumps(facts.as_json(), indent=1) + "\n")


if __name__ == "__main__":
    main()
