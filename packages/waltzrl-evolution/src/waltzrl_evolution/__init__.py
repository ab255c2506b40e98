"""Candidates that are written, run, and judged by a gate before they enter a pool.

Needs the extra `flywheel`: the pool is in the memory.
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_evolution.operators import RecombinationOperator as RecombinationOperator
    from waltzrl_evolution.operators import RefinementOperator as RefinementOperator
    from waltzrl_evolution.operators import RevisionOperator as RevisionOperator
    from waltzrl_evolution.pool import TrajectoryPool as TrajectoryPool
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "operators": ("RecombinationOperator", "RefinementOperator", "RevisionOperator"),
            "pool": ("TrajectoryPool",),
        },
    )
