"""The stages of training: imitation of demonstrations, and reinforcement learning.

A stage is a number of steps and the roles that learn in them; the trainer knows no more of it.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from waltzrl.agents.exports import ATTACKER
from waltzrl.evaluation.patterns import Advice
from waltzrl.records import Prompt
from waltzrl.training import ranks
from waltzrl.training.algorithms.tokens import sequence_mean, token_mean
from waltzrl.training.learner import Learner, LossOfMicroBatch
from waltzrl.training.reinforce import UpdateResult, reinforce
from waltzrl.training.rewards import FeedbackReward
from waltzrl.training.roles import Team
from waltzrl.training.rollouts import (
    Count,
    Rollout,
    RolloutPrompt,
    RolloutRequest,
    Sampler,
    Share,
    accepted_samples,
    attacker_samples,
    conversation_samples,
    feedback_samples,
    gather_rollouts,
    judged_review_samples,
    sample_share,
)
from waltzrl.training.samples import Batch, Sample
from waltzrl.training.settings import ImitationStage, ReinforcementStage, StageSettings
from waltzrl.training.validation import attack_metrics, length_metrics, rollout_rates

Learners = Mapping[str, Learner]
"""The learners, by the names of their roles."""
Example = TypeVar("Example")


class Stage(Protocol):
    """A part of training."""

    @property
    def settings(self) -> StageSettings: ...

    @property
    def steps(self) -> int: ...

    @property
    def learns(self) -> tuple[str, ...]:
        """Names of the roles that learn."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every demonstration or prompt has been used once."""
        ...

    async def step(self, number: int, learners: Learners, ahead: bool = False) -> dict[str, float]:
        """Take 0-based step `number` of this stage; return its metrics.

        Args:
            number: of the step.
            learners: of the roles that learn.
            ahead: whether the next step may be sampled meanwhile.

        Raises:
            ScoringError: too little could be scored; nothing was learnt.
        """
        ...


def shuffle_positions(count: int, size: int, step: int, seed: str) -> list[int]:
    """Return the positions for one step when `count` items are dealt in shuffled epochs.

    A function of its arguments alone, so a resumed run deals as an uninterrupted one does.
    """
    positions = (divmod(position, count) for position in range(step * size, (step + 1) * size))
    return [_shuffle_epoch(count, f"{seed}/{epoch}")[within] for epoch, within in positions]


# Asked for once for each position of a step, which may reach into the next epoch.
@lru_cache(maxsize=4)
def _shuffle_epoch(count: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(count), count)


@dataclass(frozen=True, kw_only=True)
class Imitation(Generic[Example]):
    """Supervised training of one model on examples."""

    settings: ImitationStage
    demonstrations: Sequence[Example]
    to_sample: Callable[[Example], Sample]
    """A function from an example to a sample, such as `demonstration_sample` with its agents
    bound."""
    role: str = "conversation"
    """The role that learns, whichever agent's turn is demonstrated."""
    seed: int = 0
    _samples: dict[int, Sample] = field(default_factory=dict, init=False)

    @property
    def steps(self) -> int:
        return self.settings.steps

    @property
    def learns(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.demonstrations) / self.settings.batch_size)

    async def step(self, number: int, learners: Learners, ahead: bool = False) -> dict[str, float]:
        # This text never changes, so that runs stay repeatable.
        seed = f"lessons/{self.seed}"
        count, size = len(self.demonstrations), self.settings.batch_size
        batch = [
            self._sample(position) for position in shuffle_positions(count, size, number, seed)
        ]
        return imitate(self.role, learners[self.role], batch)

    def _sample(self, position: int) -> Sample:
        """Return a demonstration as tokens, made when a step first needs it."""
        if position not in self._samples:
            self._samples[position] = self.to_sample(self.demonstrations[position])
        return self._samples[position]


def imitate(
    role: str, learner: Learner, samples: Sequence[Sample], *, by_reply: bool = False
) -> dict[str, float]:
    """Take a supervised step of a role on samples; return its metrics.

    Every token weighs the same, or every reply, as in the paper's loss: by tokens, long answers
    weigh more than short refusals.
    """
    tokens = sum(len(sample.tokens.ids) for sample in samples)
    result = learner.step(
        samples, imitation_by_reply(len(samples)) if by_reply else imitation(tokens)
    )
    return {
        f"loss/{role}": result.loss,
        f"gradient/{role}_norm": result.gradient_norm,
        f"tokens/{role}": result.tokens,
    }


def imitation(token_count: int) -> LossOfMicroBatch:
    """Return the supervised loss: the mean of -log pi over `token_count` reply tokens."""

    def loss_of(logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        return token_mean(-logprobs_BT, batch.mask_BT, token_count)

    return loss_of


def imitation_by_reply(reply_count: int) -> LossOfMicroBatch:
    """Return the supervised loss: of `reply_count` replies the mean of each one's mean -log pi."""

    def loss_of(logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        return sequence_mean(-logprobs_BT, batch.mask_BT, reply_count)

    return loss_of


_Sampled = tuple[Share, float]


@dataclass(frozen=True, kw_only=True)
class Reinforcement:
    """Rollouts, verdicts, rewards, and one update of each role that learns.

    prompts -> rollouts, verdicts -> samples, rewards -> advantages, loss, weights
       `Sampler.sample`      `take_samples`      `reinforce`
    """

    settings: ReinforcementStage
    team: Team
    prompts: Sequence[Prompt]
    sampler: Sampler
    reward: FeedbackReward
    """The function that `settings.reward` names."""
    max_rounds: int = 1
    """The most rounds of feedback on a prompt, in the patterns that have any."""
    class_counts: dict[str, float] = field(default_factory=dict)
    """The classes of the replies that were reviewed lately, over all stages of a run."""
    least_scored_share: float
    """The share that `CheckpointSettings` explains."""
    seed: int = 0
    count: Count | None = None
    advice: Advice = field(default_factory=Advice)
    """What the judge advises where it reviews."""
    staleness: int = 0
    """The staleness that `ComputeSettings` explains; above 0 only where `sampler` samples outside
    of this process."""
    _ahead: dict[int, "asyncio.Task[_Sampled]"] = field(default_factory=dict, init=False)
    """Samples that are taken before their step, by the number of the step."""

    @property
    def steps(self) -> int:
        return self.settings.total_steps(len(self.prompts))

    @property
    def learns(self) -> tuple[str, ...]:
        return self.settings.learns

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.prompts) / self.settings.prompts_per_step)

    async def step(self, number: int, learners: Learners, ahead: bool = False) -> dict[str, float]:
        started = time.perf_counter()
        request, draw = self._choose_prompts(number)
        # Sampled while the step before was learnt, by weights that lack that update.
        stale = number in self._ahead
        outcomes, seconds = await (self._ahead.pop(number) if stale else self._sample(request))
        rollouts = gather_rollouts(request.prompts, outcomes, self.least_scored_share)
        waited = time.perf_counter() - started
        if self.count is not None:
            self.count(rollouts)
        metrics = rollout_rates(rollouts) | length_metrics(rollouts)
        metrics |= attack_metrics(rollouts)
        update = partial(self._update, rollouts, draw, learners, stale)
        overlaps = ahead and self.staleness > 0
        metrics |= await self._while_sampling(number + 1, update) if overlaps else update()
        # A step that was sampled ahead waits for less than its rollouts took.
        metrics["time/rollout_seconds"] = max(waited, seconds)
        metrics["tokens/sampled"] = float(sum(rollout.sampled_tokens for rollout in rollouts))
        if self.staleness:
            metrics["staleness/updates"] = float(stale)
        return metrics

    def _choose_prompts(self, number: int) -> tuple[RolloutRequest, random.Random]:
        """Return what a step rolls out, and the random numbers that are left for its samples."""
        # All that is random in a step comes from its number: a resumed run repeats it exactly.
        draw = random.Random(f"{self.settings.name}/{self.seed}/{number}")
        # The bits above these are the number of the process that samples.
        seed = draw.getrandbits(40)
        size, order = self.settings.prompts_per_step, f"prompts/{self.seed}"
        # A draw of its own, so that a stage without attacks is what it was before there were any.
        attacks = random.Random(f"attacks/{self.settings.name}/{self.seed}/{number}")
        prompts = [
            RolloutPrompt(
                prompt := self.prompts[position],
                replayed=draw.random() < self.settings.replayed_share,
                attacked=prompt.label is not None
                and attacks.random() < self.settings.attacked_share,
            )
            for position in shuffle_positions(len(self.prompts), size, number, order)
            for _ in range(self.settings.group_size)
        ]
        max_rounds = self.settings.limit_rounds(self.max_rounds)
        advice = self.advice if self.settings.reviewer == "judge" else None
        request = RolloutRequest(prompts=prompts, max_rounds=max_rounds, seed=seed, advice=advice)
        return request, draw

    async def _sample(self, request: RolloutRequest) -> _Sampled:
        """Return what came of this rank's share, and the seconds that it took."""
        started = time.perf_counter()
        outcomes = await sample_share(self.sampler, request)
        return outcomes, time.perf_counter() - started

    def _update(
        self, rollouts: Sequence[Rollout], draw: random.Random, learners: Learners, stale: bool
    ) -> dict[str, float]:
        """Update every role that learns; return what that did."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for role in self.learns:
            # In the order of the recipe, because all roles share the draws.
            taken = self.take_samples(role, rollouts, draw)
            samples = [replace(sample, stale=stale) for sample in taken]
            if not samples:
                continue
            if self.settings.objective == "expert-iteration":
                metrics |= imitate(role, learners[role], samples, by_reply=True)
                continue
            learner, own = learners[role], self.team.roles[role]
            # A role whose reference is what learns has no divergence from it.
            frozen = own.reference is not own.weights
            reference = learner.scorer.with_weights(own.reference) if frozen else None
            result = reinforce(learner, samples, reference, self.settings.algorithm)
            metrics |= update_metrics(role, result)
        return metrics | {"time/update_seconds": time.perf_counter() - started}

    def take_samples(
        self, role: str, rollouts: Sequence[Rollout], draw: random.Random
    ) -> list[Sample]:
        """Return what a role learns from rollouts: turns of its own, each with its reward."""
        if role == ATTACKER:
            return attacker_samples(rollouts)
        if self.settings.objective == "expert-iteration":
            if role == "conversation":
                return accepted_samples(rollouts, draw)
            return judged_review_samples(rollouts, self.team, self.advice)
        if role == "conversation":
            return conversation_samples(rollouts, draw)
        return feedback_samples(
            rollouts,
            draw,
            reward=self.reward,
            coefficients=self.settings.coefficients,
            round_cost=self.settings.round_cost,
            class_counts=self.class_counts,
        )

    async def _while_sampling(
        self, following: int, update: Callable[[], dict[str, float]]
    ) -> dict[str, float]:
        """Update in a thread while the following step is sampled, and wait for both.

        So weights are published, validated and saved only while nothing is sampled. What sampling
        raises is raised by its own step.
        """
        request, _ = self._choose_prompts(following)
        self._ahead[following] = sampling = asyncio.create_task(self._sample(request))
        updating = ranks.in_thread(update)
        # Neither cancels the other, and what sampling raises stays in its task.
        updates, _ = await asyncio.gather(updating, sampling, return_exceptions=True)
        if isinstance(updates, BaseException):
            raise updates
        return updates


def update_metrics(role: str, result: UpdateResult) -> dict[str, float]:
    """Return what an update of a role did, under the names in the journal."""
    metrics = {
        f"reward/{role}_mean": result.score_mean,
        f"loss/{role}": result.loss,
        f"gradient/{role}_norm": result.gradient_norm,
        f"tokens/{role}": result.tokens,
        f"entropy/{role}_nats": result.entropy,
        f"advantage/{role}_sigma": result.advantage_sigma,
        f"ratio/{role}_mean": result.ratio.mean,
        f"ratio/{role}_max": result.ratio.maximum,
        f"ratio/{role}_clipped_share": result.ratio.clipped,
        f"ratio/{role}_sampler_mean": result.ratio.sampler_mean,
        f"ratio/{role}_sampler_max": result.ratio.sampler_maximum,
    }
    return metrics if result.kl is None else metrics | {f"kl/{role}_nats": result.kl}
