"""What the numbers say: the table, and each goal with its number."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from environments import Footprint
from load import Load

DIRECT = "direct"
FLOOR = "pass-through"
OURS = "waltzrl"
LITELLM_NAME = "LiteLLM"
NEMO_NAME = "NeMo Guardrails"
PORTKEY_NAME = "Portkey"
PACKAGE = {OURS: "waltzrl", LITELLM_NAME: "litellm", NEMO_NAME: "nemoguardrails"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one contender."""

    load: Load
    cpu_ms: float
    """CPU milliseconds of its process for each request."""
    memory_mb: float
    """Memory of its processes after the load."""


Cells: TypeAlias = dict[tuple[str, str], Cell]
"""A round: cells by contender and load (c16, c1, 10k, 50k, stream, window, buffer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something promised, and what came of it."""

    text: str
    number: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the promise was kept."""
        return self.number <= self.limit if self.at_most else self.number >= self.limit

    def __str__(self) -> str:
        sign, answer = (
            ("at most" if self.at_most else "at least"),
            ("yes" if self.met else "**no**"),
        )
        return f"| {self.text:56} | {self.number:8.3g} | {sign} {self.limit:.3g} | {answer} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was measured."""

    rounds: Sequence[Cells]
    ready_seconds: Mapping[str, float]
    """From the start of the process to the first 200, imports included."""
    footprints: Mapping[str, Footprint]
    flat_requests: int = 0
    flat_mb: Sequence[float] = field(default_factory=list)

    def median(self, name: str, load: str, what: Callable[[Cell], float]) -> float:
        """Return the median over the rounds of a number of one cell."""
        return statistics.median(what(cells[name, load]) for cells in self.rounds)

    def ratio(self, what: Callable[[Cells], float]) -> float:
        """Return the median over the rounds of a number made within a round."""
        return statistics.median(what(cells) for cells in self.rounds)

    def as_json(self) -> dict[str, object]:
        """Everything, for programs."""
        rounds = [
            [{"contender": name, "load": load, **asdict(cell)} for (name, load), cell in c.items()]
            for c in self.rounds
        ]
        return {
            "goals": [asdict(goal) | {"met": goal.met} for goal in goals(self)],
            "ready_seconds": dict(self.ready_seconds),
            "footprints": {name: asdict(one) for name, one in self.footprints.items()},
            "flat": {"requests": self.flat_requests, "mb": list(self.flat_mb)},
            "rounds": rounds,
        }


def goals(facts: Facts) -> list[Goal]:
    """Compare with what was promised."""
    return [*_speed(facts), *_weight(facts)]


def _speed(facts: Facts) -> list[Goal]:
    def faster(load: str, than: str, its_load: str) -> float:
        return facts.ratio(
            lambda cells: cells[OURS, load].load.per_second / cells[than, its_load].load.per_second
        )

    def added(cells: Cells, name: str, load: str = "c1", than: str = DIRECT) -> float:
        return cells[name, load].load.p50_ms - cells[than, load].load.p50_ms

    def slower(cells: Cells) -> float:
        return cells[OURS, "c1"].load.p99_ms / cells[FLOOR, "c1"].load.p99_ms

    return [
        _at_least(30, "requests/s per core, times LiteLLM's", faster("c16", LITELLM_NAME, "c16")),
        _at_least(
            0.6, "requests/s per core, share of the pass-through's", faster("c16", FLOOR, "c16")
        ),
        _at_least(
            1, "requests/s per core, times NeMo Guardrails'", faster("c16", NEMO_NAME, "c16")
        ),
        _at_least(1, "requests/s per core, times Portkey's", faster("c16", PORTKEY_NAME, "c16")),
        _at_least(
            15,
            "LiteLLM's added p50 at c=1, times ours",
            facts.ratio(lambda cells: added(cells, LITELLM_NAME) / added(cells, OURS)),
        ),
        _at_most(1, "added p50 at c=1, ms", facts.ratio(lambda cells: added(cells, OURS))),
        _at_most(2, "p99 at c=1, times the pass-through's", facts.ratio(slower)),
        *(
            _at_most(
                limit,
                f"p50 with {load} tokens, ms more than the pass-through",
                facts.ratio(lambda cells, load=load: added(cells, OURS, load, FLOOR)),
            )
            for load, limit in (("10k", 1), ("50k", 5))
        ),
        *(
            _at_least(
                50, f"streams/s, mode {mode}, times LiteLLM's", faster(mode, LITELLM_NAME, "stream")
            )
            for mode in ("window", "buffer")
        ),
    ]


def _weight(facts: Facts) -> list[Goal]:
    installed = facts.footprints[OURS]
    heavy = {"torch", "numpy"} & installed.packages.keys()
    memory = [
        cell.memory_mb
        for cells in facts.rounds
        for (name, _), cell in cells.items()
        if name == OURS
    ]
    found = [
        _at_most(90, "memory of the worker, MB", max(memory)),
        _at_most(1, "seconds to ready, imports included", facts.ready_seconds[OURS]),
        _at_most(40, "packages of the core installation", len(installed.packages)),
        _at_most(90, "size of the core installation, MB", installed.mb),
        _at_most(0, "of torch and numpy in it", len(heavy)),
    ]
    if facts.flat_requests:
        drift = max(abs(mb / facts.flat_mb[0] - 1) for mb in facts.flat_mb)
        text = f"memory's drift over {facts.flat_requests:,} requests, percent"
        found.append(_at_most(5, text, 100 * drift))
    return found


def _at_least(limit: float, text: str, number: float) -> Goal:
    return Goal(text=text, number=number, limit=limit)


def _at_most(limit: float, text: str, number: float) -> Goal:
    return Goal(text=text, number=number, limit=limit, at_most=True)


def report(facts: Facts) -> str:
    """Return the tables, in Markdown."""
    lines = [
        f"\nMedians of {len(facts.rounds)} rounds.\n",
        f"| {'load':6} | {'gateway':15} |   per s | p50 ms | p99 ms | CPU ms | memory MB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, load in sorted(facts.rounds[0], key=lambda key: key[1]):
        rate, p50, p99, cpu, rss = (facts.median(name, load, what) for what in COLUMNS)
        lines.append(
            f"| {load:6} | {name:15} | {rate:7.0f} | {p50:6.3f} | {p99:6.2f} | {cpu:6.3f}"
            f" | {rss:6.0f} |"
        )
    lines.append("\n| installed       | version  | packages |    MB | seconds to ready |")
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for name, one in facts.footprints.items():
        version, ready = one.packages[PACKAGE[name]], facts.ready_seconds[name]
        lines.append(
            f"| {name:15} | {version:8} | {len(one.packages):8} | {one.mb:5.1f} | {ready:16.2f} |"
        )
    lines.append(f"\n| {'goal':56} | measured | wanted | met |\n| --- | ---: | --- | --- |")
    return "\n".join([*lines, *map(str, goals(facts))])


COLUMNS: tuple[Callable[[Cell], float], ...] = (
    lambda cell: cell.load.per_second,
    lambda cell: cell.load.p50_ms,
    lambda cell: cell.load.p99_ms,
    lambda cell: cell.cpu_ms,
    lambda cell: cell.memory_mb,
)
