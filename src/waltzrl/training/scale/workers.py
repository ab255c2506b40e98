"""Rollouts in other processes: workers with agents of their own, and whoever asks them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from waltzrl.collaboration import Drafter
from waltzrl.errors import MissingExtraError, ScoringError
from waltzrl.evaluation.judges import Judge
from waltzrl.policies.weights import Weights
from waltzrl.records import Prompt
from waltzrl.training import ranks
from waltzrl.training.roles import Team
from waltzrl.training.rollouts import (
    Asked,
    BoundPattern,
    Outcome,
    ReplayedDrafts,
    Spread,
    roll_out_and_judge,
)
from waltzrl.training.scale.cluster import DIED, get_results, shorten_error
from waltzrl.training.sharding import gather_state, load_whole
from waltzrl.training.stages import worker_seed

try:
    import ray
    from ray.actor import ActorHandle
except ModuleNotFoundError as missing:
    raise MissingExtraError("compute.engine ray", "Ray", "ray") from missing

Published = Mapping[str, "ray.ObjectRef"]
"""The newest weights of each role, in Ray's object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """What rolls out the prompts of a stage."""

    team: Team
    pattern: BoundPattern
    """The pattern, which knows the reviewer of `team`."""
    judge: Judge

    async def roll_out(self, prompts: Sequence[tuple[Prompt, bool]], seed: int) -> list[Outcome]:
        """Collaborate and judge, as a rank does with its share.

        Args:
            prompts: each with whether the initial agent drafts.
            seed: of this share of the step.
        """
        self.team.seed(seed)
        conversation = self.team.conversation
        replaying = ReplayedDrafts(conversation, self.team.initial)
        drafters: Mapping[bool, Drafter] = {True: replaying, False: conversation}
        rollouts = (
            roll_out_and_judge(prompt, drafters[replayed], pattern=self.pattern, judge=self.judge)
            for prompt, replayed in prompts
        )
        return await asyncio.gather(*rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """All that a worker holds of a run."""

    weights: Mapping[str, Weights]
    """The weights of every role."""
    stages: Mapping[str, Collaborators]
    """The collaborators of each stage, by its name; the validation too."""


class RolloutWorker:
    """A process that rolls out.

    A call says all that is needed: repeated in a process that was started again, it returns the
    same.
    """

    def __init__(self, open_crew: Callable[[], AbstractAsyncContextManager[Crew]]) -> None:
        """Prepare to open the crew at the first call: by then its base is made and warmed up."""
        self._open_crew = open_crew
        self._crew: Crew | None = None
        self._open = AsyncExitStack()  # until the process ends
        self._loaded: dict[str, ray.ObjectRef] = {}
        self._one_at_a_time = asyncio.Lock()  # learners that died may have left a call

    async def roll_out(
        self, stage: str, prompts: Sequence[tuple[Prompt, bool]], seed: int, published: Published
    ) -> list[Outcome]:
        """Return what came of a share of a step's prompts.

        Raises:
            WaltzError: the run's files are not here, or are damaged.
        """
        async with self._one_at_a_time:
            if self._crew is None:
                self._crew = await self._open.enter_async_context(self._open_crew())
            for role, reference in published.items():
                if self._loaded.get(role) != reference:
                    load_state(self._crew.weights[role], role, await reference)
                    self._loaded[role] = reference
            return await self._crew.stages[stage].roll_out(prompts, seed)


class RolloutWorkers:
    """The workers as the ranks see them; the first rank asks, for all."""

    def __init__(
        self, actors: Sequence[ActorHandle], weights: Mapping[str, Weights], dtype: torch.dtype
    ) -> None:
        """Take over the workers of a run.

        Args:
            actors: each a `RolloutWorker`.
            weights: of every role, as they learn.
            dtype: that the workers decode in; full models are sent in it.
        """
        self._actors, self._weights, self._dtype = actors, weights, dtype
        self._begun = False
        self._published: dict[str, ray.ObjectRef] = {}

    async def publish(self, done: int, learned: Sequence[str]) -> None:
        """Put the weights of the roles that learned into the object store, at first those of all.

        Every rank calls it: of a sharded model each gives its part.
        """
        for role in learned if self._begun else self._weights:
            state = state_to_send(self._weights[role], role, self._dtype)
            if ranks.is_first():
                self._published[role] = ray.put(state)
        self._begun = True

    def spread(self, stage: str) -> Spread:
        """Return what shares out the prompts of a stage over the workers.

        So many workers sample what so many ranks would.
        """

        async def over_workers(
            asked: Asked, judged: Callable[[Prompt, Drafter], Awaitable[Outcome]], seed: int
        ) -> list[Outcome]:
            return await self._ask(stage, asked, seed) if ranks.is_first() else []

        return over_workers

    async def _ask(self, stage: str, asked: Asked, seed: int) -> list[Outcome]:
        """Return what came of all prompts.

        Raises:
            ScoringError: a worker died more often than Ray may start it again.
        """
        prompts = [(prompt, isinstance(drafter, ReplayedDrafts)) for prompt, drafter in asked]
        shares = ranks.share_out(prompts, len(self._actors))
        calls = [
            actor.roll_out.remote(stage, share, worker_seed(seed, number), self._published)
            for number, (actor, share) in enumerate(zip(self._actors, shares, strict=True))
        ]
        try:
            outcomes: list[list[Outcome]] = await get_results(calls)
        except DIED as error:
            raise ScoringError(
                f"a rollout worker ended too often ({shorten_error(error)}); nothing was learnt"
                " from this step: see its log in Ray's, and run train again to resume"
            ) from error
        return [outcome for share in outcomes for outcome in share]


def state_to_send(weights: Weights, role: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what learns on the CPU of the first rank: an adapter, or a model in `dtype`."""
    model = weights.causal_lm.model
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=role, save_embedding_layers=False)
        return {name: tensor.detach().cpu() for name, tensor in adapter.items()}
    state = gather_state(model) or model.state_dict()
    return {name: tensor.detach().to("cpu", dtype) for name, tensor in state.items()}


def load_state(weights: Weights, role: str, state: Mapping[str, Tensor]) -> None:
    model = weights.causal_lm.model
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, dict(state), role)
    else:
        load_whole(model, state)
