"""The trainer: runs stages step by step, keeps a journal and checkpoints, and can be killed.

Whatever a step needs beyond weights and optimisers is a function of its number, so a run that
is killed and started again ends with the same weights as one that was not.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzrl.errors import DivergenceError
from waltzrl.telemetry.journal import Journal
from waltzrl.training.checkpoints import (
    RoleState,
    latest_good,
    load_checkpoint,
    prune,
    save_checkpoint,
)
from waltzrl.training.learner import Learner
from waltzrl.training.pair import Pair
from waltzrl.training.stages import Learners, Stage

logger = logging.getLogger(__name__)


PATIENCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What is kept on the way, and when to stop."""

    checkpoint_every: int = 50
    """Steps between checkpoints; the end of every epoch and stage has one besides."""
    keep_last: int = 2
    """How many of the newest stay; those at the end of an epoch or stage all do."""
    kl_limit: float = 1.0
    """Nats per token against the reference; training stops as diverged when `PATIENCE` steps in a
    row are above. A single step may be: one odd token can weigh as much as all others."""

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1 or self.keep_last < 1:
            raise ValueError(
                f"checkpointing.checkpoint_every and checkpointing.keep_last must be 1 or more, got"
                f" {self.checkpoint_every} and {self.keep_last}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training is; reported after each step."""

    stage: str
    step: int
    """0-based, over all stages."""
    total: int
    """Steps of all stages."""
    measured: Mapping[str, float]


class Trainer:
    """Trains a pair through stages in one run directory."""

    def __init__(
        self, pair: Pair, stages: Sequence[Stage], folder: Path, checkpointing: CheckpointSettings
    ) -> None:
        self.pair = pair
        self.stages = stages
        self.folder = folder
        self.checkpointing = checkpointing
        self.total = sum(stage.steps for stage in stages)
        self._steps_above_limit = 0

    async def train(self, report: Callable[[Progress], None]) -> None:
        """Go on from the newest whole checkpoint, or from the start, to the end.

        Raises:
            DivergenceError: a measured value is not finite or the KL is above the limit; the last
                checkpoint before it is kept.
        """
        done = self.restore()
        with Journal(self.folder, resumed_step=done - 1) as journal:
            for stage, first in self._remaining(done):
                learners = self._learners(stage)
                if first < done:
                    self._load(done, learners)
                for step in range(max(first, done), first + stage.steps):
                    measured = await self._step(stage, step, first, learners)
                    journal.write(step, measured)
                    report(
                        Progress(stage=stage.name, step=step, total=self.total, measured=measured)
                    )
                    self._save(step + 1, learners)
                    await asyncio.sleep(0)  # a stage that waits for nothing would not hear Ctrl-C

    def restore(self) -> int:
        """Load the newest whole checkpoint, and return how many steps it has behind it."""
        latest = latest_good(self._checkpoints)
        for refused in latest.refused:
            logger.warning("%s", refused)
        if latest.path is None:
            return 0
        done = int(latest.path.name.removeprefix("step-"))
        self._load(done, {})
        return done

    async def _step(
        self, stage: Stage, step: int, first: int, learners: Learners
    ) -> dict[str, float]:
        started = time.perf_counter()
        for learner in learners.values():
            learner.schedule_step = step - first
        measured = await stage.step(step - first, self.pair, learners)
        measured["time/step_seconds"] = time.perf_counter() - started
        self._stop_if_diverged(step, measured)
        return measured

    def _remaining(self, done: int) -> list[tuple[Stage, int]]:
        """Return the stages that are not over after `done` steps, with their first steps."""
        firsts = [sum(s.steps for s in self.stages[:place]) for place in range(len(self.stages))]
        pairs = zip(self.stages, firsts, strict=True)
        return [(stage, first) for stage, first in pairs if first + stage.steps > done]

    def _learners(self, stage: Stage) -> Learners:
        return {
            role: Learner(
                self.pair.weights[role].causal_lm,
                self.pair.weights[role].adapter,
                stage.optimizer,
                stage.steps,
            )
            for role in stage.learns
        }

    def _stop_if_diverged(self, step: int, measured: Mapping[str, float]) -> None:
        limit = self.checkpointing.kl_limit
        odd = {name: value for name, value in measured.items() if not math.isfinite(value)}
        far = {n: value for n, value in measured.items() if n.startswith("kl/") and value > limit}
        self._steps_above_limit = self._steps_above_limit + 1 if far else 0
        if not odd and self._steps_above_limit < PATIENCE:
            return
        name, value = next(iter((odd or far).items()))
        wrong = (
            "not a finite number" if odd else f"above the limit {limit} {PATIENCE} times in a row"
        )
        raise DivergenceError(
            f"step {step}: {name} is {value:.3g}, {wrong}; the last good checkpoint is in "
            f"{self._checkpoints}; lower the learning rate or raise kl_weight"
        )

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _roles(self, learners: Learners) -> dict[str, RoleState]:
        return {
            role: RoleState(
                model=weights.causal_lm.model,
                tokenizer=weights.causal_lm.tokenizer,
                optimizer=learners[role].adamw if role in learners else None,
            )
            for role, weights in self.pair.weights.items()
        }

    def _milestones(self) -> set[int]:
        """Return after how many steps an epoch or a stage is over."""
        return {
            first + done
            for stage, first in self._remaining(-1)
            for done in (*range(0, stage.steps, stage.steps_per_epoch), stage.steps)
            if done
        }

    def _save(self, done: int, learners: Learners) -> None:
        milestones = self._milestones()
        if done % self.checkpointing.checkpoint_every == 0 or done in milestones:
            save_checkpoint(self._checkpoints, done, self._roles(learners))
            prune(self._checkpoints, done, self.checkpointing.keep_last, milestones)

    def _load(self, done: int, learners: Learners) -> None:
        load_checkpoint(self._checkpoints / f"step-{done:06d}", self._roles(learners))
