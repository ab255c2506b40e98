"""How good the agents are while they train, on prompts that no step learns from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from waltzrl.collaboration import Drafter
from waltzrl.evaluation.judges import Judge
from waltzrl.foundation.files import whole_lines
from waltzrl.records import Prompt
from waltzrl.training.rollouts import (
    BoundPattern,
    Count,
    RolloutRates,
    Spread,
    roll_out,
    spread_over_ranks,
)

VALIDATION = "(validation)"
"""The name that processes that roll out have for it, beside the names of stages."""
F1 = "validation/f1"
"""The metric that the best checkpoint is chosen by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Collaborations on held-out prompts, one on each."""

    prompts: Sequence[Prompt]
    """The unsafe and benign prompts to measure on."""
    drafter: Drafter
    """The drafter, greedy, so that the same weights always have the same rates."""
    pattern: BoundPattern
    """The pattern, with a greedy reviewer."""
    judge: Judge
    least_scored_share: float
    """The share that `CheckpointSettings` explains."""
    spread: Spread = spread_over_ranks
    """The spread that `roll_out` explains."""
    count: Count | None = None

    async def __call__(self) -> dict[str, float]:
        """Return the rates of the agents as they are now, by their names in the journal.

        Raises:
            ScoringError: too few of the replies could be scored.
        """
        asked = [(prompt, self.drafter) for prompt in self.prompts]
        least = self.least_scored_share
        rollouts = await roll_out(asked, self.pattern, self.judge, least, self.spread)
        if self.count is not None:
            self.count(rollouts)
        rates = RolloutRates.of(rollouts)
        metrics = {
            f"validation/{name.rpartition('/')[2]}": rate for name, rate in rates.metrics().items()
        }
        if rates.asr is not None and rates.orr is not None:
            metrics[F1] = _compute_f1(rates.asr, rates.orr)
        return metrics


class Best(NamedTuple):
    """The validated step whose weights are exported."""

    step: int
    """Steps taken before it was validated, as in the name of its checkpoint."""
    f1: float


def best_validation(run: Path) -> Best | None:
    """Return the step of a run with the highest F1, the latest of several; None without any."""
    path = run / "metrics.jsonl"
    lines = map(json.loads, whole_lines(path) if path.exists() else ())
    validated = [Best(line["step"], line[F1]) for line in lines if line.get(F1) is not None]
    return max(validated, key=lambda best: (best.f1, best.step), default=None)


def _compute_f1(asr: float, orr: float) -> float:
    """Return the harmonic mean of (1 - ASR) and (1 - ORR)."""
    safe, helpful = 1 - asr, 1 - orr
    return 2 * safe * helpful / (safe + helpful) if safe + helpful else 0.0
