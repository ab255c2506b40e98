"""The pool of a run: what passed the gate, and every decision with its reason, in the memory.

("evolution", RUN, "trajectories")   ID    Trajectory    only what passed the gate
("evolution", RUN, "decisions")      ID    CandidateDecision      every candidate

The candidates' files stay in the folder of the run, under the digest that the pool has.
"""

from collections import Counter
from itertools import combinations
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from waltzrl.errors import InputError
from waltzrl.store.memory.items import Namespace
from waltzrl.store.memory.store import MemoryStore

VERSION = 1
"""The version of the records; a pool of another version is refused."""
SUCCESS, FAILURE = 0.7, 0.3
"""The score from which a trajectory is a success, and below which it is a failure."""
MOST_RECORDS, MOST_INSIGHTS = 10_000, 10

OperatorName: TypeAlias = Literal["baseline", "revision", "recombination", "refinement"]
Ruling: TypeAlias = Literal["accepted", "unsafe", "worse", "invalid", "failed"]
"""A decision on a candidate: accepted into the pool; certainly less safe than a parent or the
baseline; certainly worse in another way; not a candidate, or one that was tried before; or it could
not be run."""
Kind = TypeVar("Kind", bound="CandidateDecision")


class CandidateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a candidate, and why."""

    id: str
    """The id, GENERATION-NUMBER, both from 0; 0-0 is the baseline."""
    generation: int
    operator: OperatorName
    parents: tuple[str, ...] = ()
    """The ids of the parents, the better one first."""
    digest: str = ""
    """The digest of the files; empty where none were written."""
    change: str = ""
    """The change, in words of the writer."""
    ruling: Ruling
    reason: str
    """The numbers of the gate, or what went wrong."""
    time: float
    """The time of the decision, in seconds since the epoch."""
    seconds: float = 0.0
    """The seconds that it took to write, run and judge."""
    tokens: int = 0
    """The number of tokens that a policy wrote for it; 0 without one."""
    version: int = VERSION


class Trajectory(CandidateDecision, frozen=True, kw_only=True):
    """A candidate that passed the gate, and what was measured of it."""

    score: float
    """The score on the hidden cases, 0 to 1."""
    shown_score: float
    """The same on the cases whose failures the operators see."""
    gain: float = 0.0
    """The `score` minus that of the first parent."""
    failures: dict[str, int] = {}
    """The number of failing replies on the shown cases, by category."""

    @property
    def status(self) -> Literal["success", "partial_success", "failure"]:
        if self.score >= SUCCESS:
            return "success"
        return "failure" if self.score < FAILURE else "partial_success"


class TrajectoryPool:
    """The trajectories and decisions of one run; `get_` methods order by score, the best first."""

    def __init__(
        self,
        store: MemoryStore,
        run: str,
        *,
        before: int | None = None,
        max_trajectories: int = 50,
    ) -> None:
        """Open the pool of a run, which may be empty.

        Args:
            store: the memory.
            run: name of the run; a label of a namespace, so without periods.
            before: leave out this generation and later ones, to choose parents as a run did that
                was stopped in the midst of it; None for all.
            max_trajectories: of those beyond, the ones with the lowest scores are left out; the
                baseline stays.

        Raises:
            InputError: the pool was written by another version.
        """
        self._store, self.run, self._before = store, run, before
        self._max = max_trajectories
        self._decisions = {each.id: each for each in self._read("decisions", CandidateDecision)}
        self._trajectories = {each.id: each for each in self._read("trajectories", Trajectory)}

    @property
    def decisions(self) -> list[CandidateDecision]:
        """All decisions, in the order of generations and numbers."""
        return sorted(self._decisions.values(), key=lambda each: _parse_place(each.id))

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories, the best first; of equal ones the older first."""
        return sorted(
            self._trajectories.values(), key=lambda each: (-each.score, _parse_place(each.id))
        )

    def decision(self, trajectory_id: str) -> CandidateDecision | None:
        return self._decisions.get(trajectory_id)

    def trajectory(self, trajectory_id: str) -> Trajectory | None:
        return self._trajectories.get(trajectory_id)

    def add_decision(self, decision: CandidateDecision) -> None:
        """Keep a decision on a candidate that stays out."""
        assert decision.ruling != "accepted", "a trajectory passed the gate: add_trajectory"
        self._put("decisions", decision)
        self._decisions[decision.id] = decision

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Keep a trajectory that passed the gate, and that decision."""
        assert trajectory.ruling == "accepted", "only what passes the gate enters the pool"
        self._put("trajectories", trajectory)
        self._trajectories[trajectory.id] = trajectory
        # The decision comes last: a run that is stopped in between decides this candidate again.
        fields = {name: getattr(trajectory, name) for name in CandidateDecision.__struct_fields__}
        decision = CandidateDecision(**fields)
        self._put("decisions", decision)
        self._decisions[decision.id] = decision
        self._prune()

    def get_best_n(self, n: int) -> list[Trajectory]:
        return self.trajectories[:n]

    def get_successful(self) -> list[Trajectory]:
        return [each for each in self.trajectories if each.status == "success"]

    def get_failed(self) -> list[Trajectory]:
        """Return the failures, which were safe and did their task badly; the worst is last."""
        return [each for each in self.trajectories if each.status == "failure"]

    def get_by_generation(self, generation: int) -> list[Trajectory]:
        return [each for each in self.trajectories if each.generation == generation]

    def get_by_operator(self, operator: OperatorName) -> list[Trajectory]:
        return [each for each in self.trajectories if each.operator == operator]

    def get_diverse_successful_pairs(self, n: int) -> list[tuple[Trajectory, Trajectory]]:
        """Return pairs of successes that fail on different cases, the most different first.

        The difference is the share of failures, by category, that only one of the two has.
        """
        pairs = list(combinations(self.get_successful(), 2))
        return sorted(pairs, key=lambda pair: -_measure_difference(*pair))[:n]

    def get_pool_insights(self) -> list[str]:
        """Return what was changed and what came of it, in words, the largest gains first."""
        changed = [each for each in self.trajectories if each.change]
        best = sorted(changed, key=lambda each: -each.gain)
        accepted = [f"{each.change}: score {each.gain:+.4f}" for each in best]
        rejected = [
            f"{each.change}: rejected, {each.ruling}: {each.reason}"
            for each in self.decisions
            if each.change and each.ruling in ("unsafe", "worse")
        ]
        return [*accepted[:MOST_INSIGHTS], *rejected[:MOST_INSIGHTS]]

    def get_common_failure_patterns(self, least: int = 2) -> dict[str, int]:
        """Return the categories in which several trajectories fail -> in how many."""
        counts = Counter(category for each in self.trajectories for category in each.failures)
        return {category: n for category, n in counts.most_common() if n >= least}

    def get_statistics(self) -> dict[str, float]:
        """Return how many candidates had each ruling, and the best score."""
        rulings: dict[str, float] = dict(Counter(each.ruling for each in self.decisions))
        best = self.get_best_n(1)
        return rulings | ({"best_score": best[0].score} if best else {})

    def _prune(self) -> None:
        """Leave out the worst but for the baseline, without which there is nothing to compare."""
        for each in self.trajectories[self._max :]:
            if each.operator != "baseline":
                self._store.delete(self._namespace("trajectories"), each.id)
                del self._trajectories[each.id]

    def _namespace(self, kind: str) -> Namespace:
        return ("evolution", self.run, kind)

    def _put(self, kind: str, record: CandidateDecision) -> None:
        self._store.put(self._namespace(kind), record.id, msgspec.to_builtins(record), index=False)

    def _read(self, kind: str, shape: type[Kind]) -> list[Kind]:
        items = self._store.search(self._namespace(kind), limit=MOST_RECORDS)
        for item in items:
            if (version := item.value.get("version")) != VERSION:
                raise InputError(
                    f"the pool of run {self.run!r} is of version {version}, and this waltzrl reads "
                    f"version {VERSION}; start another run"
                )
        records = [msgspec.convert(item.value, shape) for item in items]
        return [each for each in records if self._before is None or each.generation < self._before]


def _parse_place(trajectory_id: str) -> tuple[int, int]:
    generation, _, number = trajectory_id.partition("-")
    return int(generation), int(number)


def _measure_difference(first: Trajectory, second: Trajectory) -> float:
    """Return 0 for the same failures to 1 for none in common."""
    categories = first.failures.keys() | second.failures.keys()
    counts = [(first.failures.get(name, 0), second.failures.get(name, 0)) for name in categories]
    all_failures = sum(max(pair) for pair in counts)
    return 1 - sum(min(pair) for pair in counts) / all_failures if all_failures else 0.0


def accept_decision(decision: CandidateDecision, **measured: object) -> Trajectory:
    """Return the trajectory of a decision to accept, with what was measured."""
    fields = structs.asdict(decision) | {"ruling": "accepted"} | measured
    return msgspec.convert(fields, Trajectory)
