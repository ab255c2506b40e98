"""Candidates that are written, run, and judged by a gate before they enter a pool.

Needs the extra `flywheel`: the pool is in the memory.
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
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

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".files": ("CandidateFiles", "read_candidate"),
            ".gate": ("GateRuling", "check_safety", "compliance"),
            ".operators": (
                "RecombinationOperator",
                "RefinementOperator",
                "RevisionOperator",
                "Writer",
                "WritingOrder",
                "WrittenCandidate",
            ),
            ".pool": ("CandidateDecision", "Trajectory", "TrajectoryPool"),
            ".run": ("Budget", "Cases", "EvolutionResult", "EvolutionRun", "EvolutionSubject"),
        },
    )
