"""Candidates that are written, run, and judged by a gate before they enter a pool.

Needs the extra `flywheel`: the pool is in the memory.
"""

from waltzrl.evolution.files import CandidateFiles, read_candidate
from waltzrl.evolution.gate import GateRuling, check_safety, compliance
from waltzrl.evolution.operators import (
    RecombinationOperator,
    RefinementOperator,
    RevisionOperator,
    Writer,
    WritingOrder,
    WrittenCandidate,
)
from waltzrl.evolution.pool import CandidateDecision, Trajectory, TrajectoryPool
from waltzrl.evolution.run import Budget, Cases, EvolutionResult, EvolutionRun, EvolutionSubject

__all__ = [
    "Budget",
    "CandidateDecision",
    "CandidateFiles",
    "Cases",
    "EvolutionResult",
    "EvolutionRun",
    "EvolutionSubject",
    "GateRuling",
    "RecombinationOperator",
    "RefinementOperator",
    "RevisionOperator",
    "Trajectory",
    "TrajectoryPool",
    "Writer",
    "WritingOrder",
    "WrittenCandidate",
    "check_safety",
    "compliance",
    "read_candidate",
]
