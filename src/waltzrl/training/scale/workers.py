"""Rollouts in other processes: workers with agents of their own, and whoever asks them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from waltzrl.errors import MissingExtraError, ScoringError
from waltzrl.policies.weights import Weights
from waltzrl.training import ranks
from waltzrl.training.rollouts import Collaborators, Outcome, RolloutRequest
from waltzrl.training.scale.cluster import DIED, get_results, shorten_error
from waltzrl.training.sharding import gather_state, load_whole

try:
    import ray
    from ray.actor import ActorHandle
except ModuleNotFoundError as missing:
    raise MissingExtraError("compute.engine ray", "Ray", "ray") from missing

Published = Mapping[str, "ray.ObjectRef"]
"""The newest weights of each role, in Ray's object store."""


class RolloutWorker:
    """A process that rolls out.

    A call says all that is needed: repeated in a process that was started again, it returns the
    same.
    """

    def __init__(
        self, open_collaborators: Callable[[], AbstractAsyncContextManager[Collaborators]]
    ) -> None:
        """Prepare to open the agents at the first call: by then the base is made and warmed up."""
        self._open_collaborators = open_collaborators
        self._collaborators: Collaborators | None = None
        self._open = AsyncExitStack()  # until the process ends
        self._loaded: dict[str, ray.ObjectRef] = {}
        self._one_at_a_time = asyncio.Lock()  # learners that died may have left a call

    async def roll_out(self, request: RolloutRequest, published: Published) -> list[Outcome]:
        """Return what came of a share of a step's prompts.

        Raises:
            WaltzError: the run's files are not here, or are damaged.
        """
        async with self._one_at_a_time:
            if self._collaborators is None:
                opening = self._open_collaborators()
                self._collaborators = await self._open.enter_async_context(opening)
            weights = self._collaborators.team.weights
            # Ray resolves no references within a mapping, so only what is new is fetched.
            for role, reference in published.items():
                if self._loaded.get(role) != reference:
                    load_state(weights[role], role, await reference)
                    self._loaded[role] = reference
            return await self._collaborators.roll_out(request)


class WorkerSampler:
    """Rollout workers, which the first rank asks, for all."""

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

    async def sample(self, request: RolloutRequest) -> list[Outcome]:
        """Share out the prompts over the workers: so many sample what so many ranks would.

        Raises:
            ScoringError: a worker died more often than Ray may start it again.
        """
        if not ranks.is_first():
            return []
        count = len(self._actors)
        calls = [
            actor.roll_out.remote(request.share(number, count), self._published)
            for number, actor in enumerate(self._actors)
        ]
        try:
            outcomes: list[list[Outcome]] = await get_results(calls)
        except DIED as error:
            raise ScoringError(
                f"a rollout worker ended too often ({shorten_error(error)}); nothing was learnt"
                " from this step: see its log in Ray's, and run train again to resume"
            ) from error
        return [outcome for share in outcomes for outcome in share]

    async def publish(self, done: int, learned: Sequence[str]) -> None:
        """Put the weights of the roles that learned into the object store, at first those of all.

        Every rank calls it: of a sharded model each gives its part.
        """
        for role in learned if self._begun else self._weights:
            state = state_to_send(self._weights[role], role, self._dtype)
            if ranks.is_first():
                self._published[role] = ray.put(state)
        self._begun = True


def state_to_send(weights: Weights, role: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what learns on the CPU of the first rank: an adapter, or a model in `dtype`."""
    model = weights.causal_lm.model
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=role, save_embedding_layers=False)
        return {name: tensor.detach().cpu() for name, tensor in adapter.items()}
    # Other ranks get empty tensors, which `publish` drops.
    state = gather_state(model) or model.state_dict()
    return {name: tensor.detach().to("cpu", dtype) for name, tensor in state.items()}


def load_state(weights: Weights, role: str, state: Mapping[str, Tensor]) -> None:
    model = weights.causal_lm.model
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, dict(state), role)
    else:
        load_whole(model, state)
