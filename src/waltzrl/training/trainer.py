"""The trainer: runs stages step by step, keeps a journal and checkpoints, and can be killed.

Whatever a step needs beyond weights and optimisers is a function of its number, so a run that
is killed and started again ends with the same weights as one that was not.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from waltzrl.budget import CostMeter
from waltzrl.errors import BudgetError, DivergenceError, ScoringError
from waltzrl.foundation.journal import Journal, WandbProject
from waltzrl.policies.weights import Weights
from waltzrl.training import ranks
from waltzrl.training.checkpoints import (
    RoleState,
    checkpoint_path,
    describe_damage,
    latest_good,
    load_checkpoint,
    prune_checkpoints,
    read_state,
    save_checkpoint,
    step_of,
)
from waltzrl.training.copies import RunCopy
from waltzrl.training.learner import Learner
from waltzrl.training.roles import Best
from waltzrl.training.rollouts import Sampler
from waltzrl.training.settings import CheckpointSettings, OptimizerSettings
from waltzrl.training.sharding import fill_copies
from waltzrl.training.stages import Learners, Stage
from waltzrl.training.validation import F1, Validation, best_validation

logger = logging.getLogger(__name__)

PATIENCE = 3
"""Steps in a row above the KL limit that count as divergence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training is; reported after each step."""

    stage: str
    step: int
    """The number of the step, 0-based, over all stages."""
    total: int
    """Steps of all stages."""
    metrics: Mapping[str, float]


Report = Callable[[Progress], None]
"""A function that is called after each step."""


@dataclass(eq=False)
class Trainer:
    """Trains any number of roles through stages in one run directory."""

    weights: Mapping[str, Weights]
    """The weights of every role by name, the frozen ones too; each name is a folder of every
    checkpoint."""
    stages: Sequence[Stage]
    """The stages in order."""
    folder: Path
    """The run directory, which exists."""
    checkpointing: CheckpointSettings
    """The settings of when to save and when to stop."""
    make_learner: Callable[[Weights, OptimizerSettings, int], Learner] = Learner
    """A function that makes a learner and binds how it computes."""
    state: dict[str, float] = field(default_factory=dict)
    """Numbers that steps remember beyond weights and optimisers; every checkpoint holds them."""
    validation: Validation | None = None
    sampler: Sampler | None = None
    """What samples for the stages. It gets the weights before the first step and after each."""
    meter: CostMeter | None = None
    """Charges each step, and stops training at its cap; the first rank's alone."""
    wandb: WandbProject | None = None
    """Where the metrics are shown too."""
    copy: RunCopy | None = None
    """Copies what is saved; the first rank's alone."""

    def __post_init__(self) -> None:
        self.total = sum(stage.steps for stage in self.stages)
        self._checkpoints = self.folder / "checkpoints"
        self._steps_above_limit = 0
        self._saved = 0
        """Steps before the checkpoint that was saved or restored last."""
        self._best: Best | None = None

    async def train(self, report: Report) -> None:
        """Continue from the newest whole checkpoint, or from the start, to the end.

        Raises:
            DivergenceError: a metric is not finite, or the KL stays above the limit; the last
                checkpoint before it is kept.
            ScoringError: too little of a step could be sampled or scored; a checkpoint before it
                is kept.
            BudgetError: the cap is reached; a checkpoint after the last step is kept.
        """
        resumed = self.restore()
        self._stop_at_cap(resumed, {})
        # Only the first rank writes the journal.
        writes = ranks.is_first()
        with Journal(self.folder, resumed - 1, self.wandb) if writes else nullcontext() as journal:
            # Only now: the journal, when it is opened, drops the steps that are taken again.
            self._best = ranks.ask_first(lambda: best_validation(self.folder))
            await self._publish(resumed, {})
            rates = await self._validate(resumed, {})
            # If training only makes them worse, the weights at the start are exported.
            if resumed == 0 and self._is_best(0):
                self._save(0, {})
            names = ", ".join(stage.settings.name for stage in self.stages)
            self._charge(f"start of {names} after {resumed} steps")
            for stage, first in self._remaining(resumed):
                name, optimizer = stage.settings.name, stage.settings.optimizer
                learners = {
                    role: self.make_learner(self.weights[role], optimizer, stage.steps)
                    for role in stage.learns
                }
                if first < resumed:  # inside this stage: its optimisers have a state
                    self._load(resumed, learners)
                for step in range(max(first, resumed), first + stage.steps):
                    # Rates measured since the last step are of the weights before this one.
                    metrics = rates | await self._step(stage, step, first, learners)
                    if journal is not None:
                        journal.write(step, metrics)
                    report(Progress(stage=name, step=step, total=self.total, metrics=metrics))
                    await self._publish(step + 1, learners)
                    rates = await self._validate(step + 1, learners)
                    if self._checkpoint_is_due(step + 1) or self._is_best(step + 1):
                        self._save(step + 1, learners)
                    # By its number, so that a step that a resumed run repeats is summed once.
                    self._charge(f"{name}/{step}", name)
                    self._stop_at_cap(step + 1, learners)
                    await asyncio.sleep(0)  # a stage that awaits nothing would block Ctrl-C
            if rates and journal is not None:  # of the final weights
                journal.write(self.total, rates)

    def newest_checkpoint(self) -> Path | None:
        """Return the newest whole checkpoint; None if there is none."""
        latest = ranks.ask_first(lambda: latest_good(self._checkpoints))
        for line in latest.refused if ranks.is_first() else ():
            logger.warning("%s", line)
        return latest.path

    def restore(self) -> int:
        """Load the newest whole checkpoint, and return how many steps precede it."""
        path = self.newest_checkpoint()
        if path is None:
            return 0
        done = step_of(path)
        # Weights alone: `train` makes the optimisers of a stage, and loads their state then.
        self._load(done, {})
        # In place, because the stages hold this very dictionary.
        self.state.clear()
        self.state.update(read_state(path))
        self._saved = done
        return done

    def restore_best(self) -> Best | None:
        """Load and return the validated step with the highest F1; None if there is none.

        Nothing is loaded either, with a warning, if its checkpoint is gone or damaged.
        """
        best = ranks.ask_first(lambda: best_validation(self.folder))
        if best is None:
            return None
        path = self._path(best.step)
        reason = ranks.ask_first(
            lambda: describe_damage(path) if path.exists() else "no checkpoint"
        )
        if reason:
            if ranks.is_first():
                text = "%s: step %d has the highest F1, but %s; the newest one is used"
                logger.warning(text, self.folder, best.step, reason)
            return None
        self._load(best.step, {})
        return best

    async def _step(
        self, stage: Stage, step: int, first: int, learners: Learners
    ) -> dict[str, float]:
        started = time.perf_counter()
        fill_copies(self.weights.values())
        for learner in learners.values():
            learner.schedule_step = step - first
        with self._saved_on_outage(step, learners):
            metrics = await stage.step(step - first, learners, not self._is_stop(step + 1))
        metrics["time/step_seconds"] = time.perf_counter() - started
        self._stop_if_diverged(step, metrics)
        return metrics

    async def _publish(self, done: int, learners: Learners) -> None:
        if self.sampler is not None:
            with self._saved_on_outage(done, learners):
                await self.sampler.publish(done, tuple(learners))

    async def _validate(self, done: int, learners: Learners) -> dict[str, float]:
        """Return the rates after `done` steps, if they are due; they go into the next line."""
        if self.validation is None or not self._validation_is_due(done):
            return {}
        started = time.perf_counter()
        fill_copies(self.weights.values())
        with self._saved_on_outage(done, learners):
            rates = await self.validation.measure()
        # Of equal ones the latest, as `best_validation` takes it.
        if F1 in rates and (self._best is None or rates[F1] >= self._best.f1):
            self._best = Best(done, rates[F1])
        return rates | {"time/validation_seconds": time.perf_counter() - started}

    @contextmanager
    def _saved_on_outage(self, done: int, learners: Learners) -> Iterator[None]:
        """Save the run when too little can be scored, so that it resumes at this very step."""
        try:
            yield
        except ScoringError as error:
            if done != self._saved:
                self._save(done, learners)
            raise ScoringError(f"step {done}: {error}") from error

    def _charge(self, id_: str, stage: str = "") -> None:
        if self.meter is not None:
            self.meter.charge(id_, stage)

    def _stop_at_cap(self, done: int, learners: Learners) -> None:
        """Save the run and stop it once its cap is reached; with a higher cap it goes on here."""
        # The first rank alone has the meter, and all must stop at the same step.
        reached = ranks.ask_first(lambda: "" if self.meter is None else self.meter.reached)
        if not reached or done == self.total:
            return
        if done != self._saved:
            self._save(done, learners)
        raise BudgetError(
            f"stopped after {done} of {self.total} steps: the run has used {reached}; a checkpoint "
            f"is in {self._checkpoints}; raise the cap and run the same command to resume"
        )

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

    def _checkpoint_is_due(self, done: int) -> bool:
        return done % self.checkpointing.checkpoint_every == 0 or done in self._milestones()

    def _validation_is_due(self, done: int) -> bool:
        return done % self.checkpointing.validate_every == 0 or done == self.total

    def _is_stop(self, done: int) -> bool:
        """Return whether a run may be resumed here, so that no step is sampled across it."""
        validates = self.validation is not None and self._validation_is_due(done)
        return validates or self._checkpoint_is_due(done)

    def _is_best(self, done: int) -> bool:
        return self._best is not None and self._best.step == done

    def _save(self, done: int, learners: Learners) -> None:
        save_checkpoint(self._checkpoints, done, role_states(self.weights, learners), self.state)
        kept = self._milestones() | ({self._best.step} if self._best is not None else set())
        if ranks.is_first():
            limits = (self._checkpoints, done, self.checkpointing.keep_last, kept)
            prune_checkpoints(*limits)
            if self.copy is not None:
                self.copy.keep(*limits)
        self._saved = done

    def _load(self, done: int, learners: Learners) -> None:
        load_checkpoint(self._path(done), role_states(self.weights, learners))

    def _path(self, done: int) -> Path:
        return checkpoint_path(self._checkpoints, done)


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
