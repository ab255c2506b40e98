"""The three operators of SE-Agent: revision, recombination, refinement.

SE-Agent: Self-Evolution Trajectory Optimization in Multi-Step Reasoning (2025), arXiv 2508.02085.

An operator chooses parents from the pool and says what to do with them; a writer, a policy or code
that edits, writes the files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from waltzrl.evaluation import EvaluationRow
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.pool import OperatorName, Trajectory, TrajectoryPool

MOST_CHOSEN = 3
"""The number of best trajectories or pairs that an operator chooses from, so that the candidates of
one generation differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A trajectory, with all that a writer may see of it."""

    trajectory: Trajectory
    candidate: CandidateFiles
    rows: Sequence[EvaluationRow]
    """The rows of the shown cases; those of the hidden ones are never shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingOrder:
    """What an operator asks of a writer."""

    operator: OperatorName
    parents: tuple[Parent, ...]
    """The parents: one, or two to recombine; the better one first."""
    insights: tuple[str, ...]
    """The changes so far in this run and what came of them; for a refinement only."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCandidate:
    """What a writer wrote."""

    candidate: CandidateFiles
    change: str
    """The change and its reason, in one line."""
    tokens: int = 0


class Writer(Protocol):
    """Writes the files of a new candidate."""

    async def write(self, order: WritingOrder) -> WrittenCandidate:
        """Write a candidate.

        Raises:
            InputError: what was written is no candidate.
            PolicyError: the policy that writes failed.
        """
        ...


class Operator(Protocol):
    """Chooses parents for a new candidate."""

    @property
    def name(self) -> OperatorName: ...

    def choose(self, pool: TrajectoryPool, random: Random) -> tuple[Trajectory, ...]:
        """Return one or two parents; none where the pool has nothing for this operator."""
        ...


class RevisionOperator:
    """Changes a trajectory by what it fails on: a failure, or else one of the best."""

    name: OperatorName = "revision"

    def choose(self, pool: TrajectoryPool, random: Random) -> tuple[Trajectory, ...]:
        candidates = pool.get_failed() or pool.get_best_n(MOST_CHOSEN)
        return (random.choice(candidates),) if candidates else ()


class RecombinationOperator:
    """Joins two successes that fail on different cases."""

    name: OperatorName = "recombination"

    def choose(self, pool: TrajectoryPool, random: Random) -> tuple[Trajectory, ...]:
        pairs = pool.get_diverse_successful_pairs(MOST_CHOSEN)
        return random.choice(pairs) if pairs else ()


class RefinementOperator:
    """Improves the best trajectory with the insights of the whole pool."""

    name: OperatorName = "refinement"

    def choose(self, pool: TrajectoryPool, random: Random) -> tuple[Trajectory, ...]:
        return tuple(pool.get_best_n(1))


OPERATORS: tuple[Operator, ...] = (
    RevisionOperator(),
    RecombinationOperator(),
    RefinementOperator(),
)
"""The operators, in the order in which the candidates of a generation take turns."""
