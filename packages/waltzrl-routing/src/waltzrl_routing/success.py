"""How often an agent succeeds at a type of task: a Beta posterior with its 95 % interval.

rate ~ Beta(1 + 8 p, 1 + 8 (1 - p))        p is the document's success_rate: eight trials' worth
rate ~ Beta(1, 1)                          where the document has none
rate | s of n ~ Beta(a + s, b + n - s)
"""

from functools import lru_cache
from typing import NamedTuple, Protocol

from scipy.special import betaincinv

from waltzrl.errors import InputError

PRIOR_TRIALS = 8
"""The number of observed tasks that a document's `success_rate` counts for."""
TAIL = 0.025
"""The probability beyond each end of the interval."""


class History(Protocol):
    """What was observed of agents."""

    def success(self, agent: str, task_type: str) -> tuple[int, int]:
        """Return how many of an agent's tasks of a type succeeded, and how many there were."""


class SuccessRate(NamedTuple):
    """A posterior mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f}-{self.high:.2f})"


def success_rate(successes: int, trials: int, prior: float | None = None) -> SuccessRate:
    """Return the posterior.

    Args:
        successes: tasks that succeeded.
        trials: tasks observed.
        prior: somebody's estimate, 0 to 1; None for none.

    Raises:
        InputError: there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise InputError(
            f"the history counts {successes} successes in {trials} tasks; need 0 to {trials}"
        )
    worth = 0 if prior is None else PRIOR_TRIALS
    share = prior or 0.0
    a = 1 + worth * share + successes
    b = 1 + worth * (1 - share) + trials - successes
    return SuccessRate(a / (a + b), *_compute_interval(a, b))


@lru_cache(maxsize=65536)
def _compute_interval(a: float, b: float) -> tuple[float, float]:
    return float(betaincinv(a, b, TAIL)), float(betaincinv(a, b, 1 - TAIL))
