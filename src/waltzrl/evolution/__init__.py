"""Candidates that are written, run, and judged by a gate before they enter a pool.

Needs the extra `flywheel`: the pool is in the memory.
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl.evolution.files import CandidateFiles as CandidateFiles
    from waltzrl.evolution.files import read_candidate as read_candidate
    from waltzrl.evolution.gate import GateRuling as GateRuling
    from waltzrl.evolution.gate import check_safety as check_safety
    from waltzrl.evolution.gate import compliance as compliance
    from waltzrl.evolution.operators import RecombinationOperator as RecombinationOperator
    from waltzrl.evolution.operators import RefinementOperator as RefinementOperator
    from waltzrl.evolution.operators import RevisionOperator as RevisionOperator
    from waltzrl.evolution.operators import Writer as Writer
    from waltzrl.evolution.operators import WritingOrder as WritingOrder
    from waltzrl.evolution.operators import WrittenCandidate as WrittenCandidate
    from waltzrl.evolution.pool import CandidateDecision as CandidateDecision
    from waltzrl.evolution.pool import Trajectory as Trajectory
    from waltzrl.evolution.pool import TrajectoryPool as TrajectoryPool
    from waltzrl.evolution.run import Budget as Budget
    from waltzrl.evolution.run import Cases as Cases
    from waltzrl.evolution.run import EvolutionResult as EvolutionResult
    from waltzrl.evolution.run import EvolutionRun as EvolutionRun
    from waltzrl.evolution.run import EvolutionSubject as EvolutionSubject
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "files": (
                "CandidateFiles",
                "read_candidate",
            ),
            "gate": (
                "GateRuling",
                "check_safety",
                "compliance",
            ),
            "operators": (
                "RecombinationOperator",
                "RefinementOperator",
                "RevisionOperator",
                "Writer",
                "WritingOrder",
                "WrittenCandidate",
            ),
            "pool": (
                "CandidateDecision",
                "Trajectory",
                "TrajectoryPool",
            ),
            "run": (
                "Budget",
                "Cases",
                "EvolutionResult",
                "EvolutionRun",
                "EvolutionSubject",
            ),
        },
    )
