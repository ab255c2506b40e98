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
from functools import partial
from pathlib import Path

import torch

from waltzrl.errors import DivergenceError
from waltzrl.policies.weights import Weights
from waltzrl.telemetry.journal import Journal
from waltzrl.training.checkpoints import (
    RoleState,
    latest_good,
    load_checkpoint,
    prune,
    save_checkpoint,
    step_of,
)
from waltzrl.training.learner import Learner
from waltzrl.training.settings import CheckpointSettings
from waltzrl.training.stages import Learners, Stage

logger = logging.getLogger(__name__)

PATIENCE = 3
"""Steps in a row above the KL limit that count as divergence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training is; reported after each step."""

    stage: str
    step: int
    """0-based, over all stages."""
    total: int
    """Steps of all stages."""
    metrics: Mapping[str, float]


class Trainer:
    """Trains any number of roles through stages in one run directory."""

    def __init__(
        self,
        weights: Mapping[str, Weights],
        stages: Sequence[Stage],
        folder: Path,
        checkpointing: CheckpointSettings,
        dtype: torch.dtype = torch.float32,
        *,
        checkpoint_activations: bool = False,
    ) -> None:
        """Prepare to train.

        Args:
            weights: of every role by name, the frozen ones too; each name is a folder of every
                checkpoint.
            stages: in order.
            folder: the run directory, which exists.
            checkpointing: when to save and when to stop.
            dtype: of forward and backward.
            checkpoint_activations: compute them again in the backward pass.
        """
        self.weights = weights
        self.stages = stages
        self.checkpointing = checkpointing
        self.total = sum(stage.steps for stage in stages)
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._learner = partial(Learner, dtype=dtype, checkpoint_activations=checkpoint_activations)
        self._steps_above_limit = 0

    async def train(self, report: Callable[[Progress], None]) -> None:
        """Continue from the newest whole checkpoint, or from the start, to the end.

        Raises:
            DivergenceError: a metric is not finite, or the KL stays above the limit; the last
                checkpoint before it is kept.
        """
        done = self.restore()
        with Journal(self._folder, resumed_step=done - 1) as journal:
            for stage, first in self._remaining(done):
                learners = {
                    role: self._learner(self.weights[role], stage.optimizer, stage.steps)
                    for role in stage.learns
                }
                if first < done:  # resumed inside this stage: its optimisers have a state
                    self._load(done, learners)
                for step in range(max(first, done), first + stage.steps):
                    metrics = await self._step(stage, step, first, learners)
                    journal.write(step, metrics)
                    report(Progress(stage=stage.name, step=step, total=self.total, metrics=metrics))
                    self._save(step + 1, learners)
                    await asyncio.sleep(0)  # a stage that awaits nothing would block Ctrl-C

    def restore(self) -> int:
        """Load the newest whole checkpoint, and return how many steps precede it."""
        latest = latest_good(self._checkpoints)
        for refusal in latest.refused:
            logger.warning("%s", refusal)
        if latest.path is None:
            return 0
        done = step_of(latest.path)
        self._load(done, {})
        return done

    async def _step(
        self, stage: Stage, step: int, first: int, learners: Learners
    ) -> dict[str, float]:
        started = time.perf_counter()
        for learner in learners.values():
            learner.schedule_step = step - first
        metrics = await stage.step(step - first, learners)
        metrics["time/step_seconds"] = time.perf_counter() - started
        self._stop_if_diverged(step, metrics)
        return metrics

    def _remaining(self, done: int) -> list[tuple[Stage, int]]:
        """Return the stages that are not over after `done` steps, with their first steps."""
        firsts = [sum(s.steps for s in self.stages[:place]) for place in range(len(self.stages))]
        pairs = zip(self.stages, firsts, strict=True)
        return [(stage, first) for stage, first in pairs if first + stage.steps > done]

    def _stop_if_diverged(self, step: int, metrics: Mapping[str, float]) -> None:
        limit = self.checkpointing.kl_limit
        not_finite = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        kls = {name: value for name, value in metrics.items() if name.startswith("kl/")}
        too_far = {name: value for name, value in kls.items() if value > limit}
        self._steps_above_limit = self._steps_above_limit + 1 if too_far else 0
        if not not_finite and self._steps_above_limit < PATIENCE:
            return
        name, value = next(iter((not_finite or too_far).items()))
        problem = (
            "not a finite number"
            if not_finite
            else f"above the limit {limit} {PATIENCE} times in a row"
        )
        raise DivergenceError(
            f"step {step}: {name} is {value:.3g}, {problem}; the last good checkpoint is in "
            f"{self._checkpoints}; lower the learning rate or raise kl_weight"
        )

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
            save_checkpoint(self._checkpoints, done, role_states(self.weights, learners))
            prune(self._checkpoints, done, self.checkpointing.keep_last, milestones)

    def _load(self, done: int, learners: Learners) -> None:
        load_checkpoint(self._checkpoints / f"step-{done:06d}", role_states(self.weights, learners))


def role_states(weights: Mapping[str, Weights], learners: Learners) -> dict[str, RoleState]:
    """Return what a checkpoint or an export holds of each role."""
    return {
        role: RoleState(
            model=own.causal_lm.model,
            tokenizer=own.causal_lm.tokenizer,
            optimizer=learners[role].adamw if role in learners else None,
            base=own.causal_lm.source,
        )
        for role, own in weights.items()
    }
