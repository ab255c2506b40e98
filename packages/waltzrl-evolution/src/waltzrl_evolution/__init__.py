"""Candidates that are written, run, and judged by a gate before they enter a pool.

Needs the extra `flywheel`: the pool is in the memory.
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_evolution.files import CandidateFiles as CandidateFiles
    from waltzrl_evolution.files import read_candidate as read_candidate
    from waltzrl_evolution.gate import GateRuling as GateRuling
    from waltzrl_evolution.gate import check_safety as check_safety
    from waltzrl_evolution.gate import compliance as compliance
    from waltzrl_evolution.operators import RecombinationOperator as RecombinationOperator
    from waltzrl_evolution.operators import RefinementOperator as RefinementOperator
    from waltzrl_evolution.operators import RevisionOperator as RevisionOperator
    from waltzrl_evolution.operators import Writer as Writer
    from waltzrl_evolution.operators import WritingOrder as WritingOrder
    from waltzrl_evolution.operators import WrittenCandidate as WrittenCandidate
    from waltzrl_evolution.pool import CandidateDecision as CandidateDecision
    from waltzrl_evolution.pool import Trajectory as Trajectory
    from waltzrl_evolution.pool import TrajectoryPool as TrajectoryPool
    from waltzrl_evolution.run import Budget as Budget
    from waltzrl_evolution.run import Cases as Cases
    from waltzrl_evolution.run import EvolutionResult as EvolutionResult
    from waltzrl_evolution.run import EvolutionRun as EvolutionRun
    from waltzrl_evolution.run import EvolutionSubject as EvolutionSubject
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "files": ("CandidateFiles", "read_candidate"),
            "gate": ("GateRuling", "check_safety", "compliance"),
            "operators": (
                "RecombinationOperator",
                "RefinementOperator",
                "RevisionOperator",
                "Writer",
                "WritingOrder",
                "WrittenCandidate",
            ),
            "pool": ("CandidateDecision", "Trajectory", "TrajectoryPool"),
            "run": ("Budget", "Cases", "EvolutionResult", "EvolutionRun", "EvolutionSubject"),
        },
    )
