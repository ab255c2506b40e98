"""The trainer: runs stages step by step, keeps a journal and checkpoints, and can be killed.

Whatever a step needs beyond weights and optimisers is a function of its number, so a run that
is killed and started again ends with the same weights as one that was not.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waltzrl.errors import DivergenceError, ScoringError
from waltzrl.policies.weights import Weights
from waltzrl.telemetry.journal import Journal
from waltzrl.training.checkpoints import (
    RoleState,
    latest_good,
    load_checkpoint,
    prune,
    read_state,
    save_checkpoint,
    step_of,
)
from waltzrl.training.learner import Learner
from waltzrl.training.settings import CheckpointSettings, OptimizerSettings
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


@dataclass(eq=False)
class Trainer:
    """Trains any number of roles through stages in one run directory."""

    weights: Mapping[str, Weights]
    """Of every role by name, the frozen ones too; each name is a folder of every checkpoint."""
    stages: Sequence[Stage]
    """In order."""
    folder: Path
    """The run directory, which exists."""
    checkpointing: CheckpointSettings
    """When to save and when to stop."""
    make_learner: Callable[[Weights, OptimizerSettings, int], Learner] = Learner
    """Binds how learners compute."""
    state: dict[str, float] = field(default_factory=dict)
    """What steps remember beyond weights and optimisers; every checkpoint holds it."""

    def __post_init__(self) -> None:
        self.total = sum(stage.steps for stage in self.stages)
        self._checkpoints = self.folder / "checkpoints"
        self._steps_above_limit = 0

    async def train(self, report: Callable[[Progress], None]) -> None:
        """Continue from the newest whole checkpoint, or from the start, to the end.

        Raises:
            DivergenceError: a metric is not finite, or the KL stays above the limit; the last
                checkpoint before it is kept.
            ScoringError: too little of a step could be scored; a checkpoint before it is kept.
        """
        resumed = self.restore()
        with Journal(self.folder, resumed_step=resumed - 1) as journal:
            for stage, first in self._remaining(resumed):
                learners = {
                    role: self.make_learner(self.weights[role], stage.optimizer, stage.steps)
                    for role in stage.learns
                }
                if first < resumed:  # inside this stage: its optimisers have a state
                    self._load(resumed, learners)
                for step in range(max(first, resumed), first + stage.steps):
                    try:
                        metrics = await self._step(stage, step, first, learners)
                    except ScoringError as error:
                        if step > max(first, resumed):  # else it is saved already
                            self._save(step, learners)
                        raise ScoringError(f"step {step}: {error}") from error
                    journal.write(step, metrics)
                    report(Progress(stage=stage.name, step=step, total=self.total, metrics=metrics))
                    self._save_if_due(step + 1, learners)
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
        self.state.clear()
        self.state.update(read_state(latest.path))
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

    def _save_if_due(self, done: int, learners: Learners) -> None:
        if done % self.checkpointing.checkpoint_every == 0 or done in self._milestones():
            self._save(done, learners)

    def _save(self, done: int, learners: Learners) -> None:
        save_checkpoint(self._checkpoints, done, role_states(self.weights, learners), self.state)
        prune(self._checkpoints, done, self.checkpointing.keep_last, self._milestones())

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
