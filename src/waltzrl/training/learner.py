"""One role that learns: its weights, its optimiser, and one step from a batch of samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from peft.helpers import disable_input_dtype_casting
from torch import Tensor

from waltzrl.errors import DivergenceError
from waltzrl.policies.compute import Compute, keep_freed_memory
from waltzrl.policies.weights import Weights, activate_adapter, role_parameters
from waltzrl.training import ranks
from waltzrl.training.packing import recomputing_layers
from waltzrl.training.samples import (
    Batch,
    Sample,
    collate,
    divide_into_shares,
    micro_batches,
    reply_logprobs,
)
from waltzrl.training.settings import OptimizerSettings
from waltzrl.training.sharding import ShardedWeights, add_up_gradients, gather_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimiser step did."""

    loss: float
    gradient_norm: float
    """Norm of the gradient before clipping."""
    tokens: int
    """Reply tokens learnt from."""


class Scorer:
    """Computes how likely given replies are under a role's weights."""

    def __init__(
        self,
        weights: Weights,
        micro_batch_tokens: int,
        dtype: torch.dtype = torch.float32,
        *,
        checkpoint_activations: bool = False,
    ) -> None:
        """Prepare to score.

        Args:
            weights: may be shared with other scorers.
            micro_batch_tokens: tokens in one forward pass.
            dtype: float32, or bfloat16 for autocast over float32 weights.
            checkpoint_activations: compute them again in the backward pass.
        """
        self.weights = weights
        self.dtype = dtype
        self._checkpoint_activations = checkpoint_activations
        self._micro_batch_tokens = micro_batch_tokens
        self._device = next(weights.causal_lm.model.parameters()).device

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return [samples][tokens] log-probabilities in nats, without a gradient."""
        own: list[tuple[int, list[float]]] = []
        with torch.no_grad():
            for batch, positions in self.micro_batches(samples):
                with self.logprobs(batch) as logprobs_BT:
                    if positions:
                        own += zip(positions, remove_padding(logprobs_BT, batch), strict=True)
        scores = dict(ranks.gather_items(own))
        return [scores[position] for position in range(len(samples))]

    @contextmanager
    def logprobs(self, batch: Batch) -> Iterator[Tensor]:
        """Yield [B, T] log-probabilities in nats of the reply tokens, with a gradient.

        Their backward pass belongs into the block: it may run layers again, with the adapter and
        the attention that are active here.
        """
        half = self.dtype == torch.bfloat16
        weights = self.weights
        with (
            activate_adapter(weights.causal_lm.model, weights.adapter) as model,
            recomputing_layers(model) if self._checkpoint_activations else nullcontext(),
            # PEFT would make every input float32, and autocast bfloat16 again.
            disable_input_dtype_casting(model, active=half),
        ):
            with torch.autocast(
                self._device.type,
                torch.bfloat16,
                enabled=half,
                # A cache would hold all weights once more.
                cache_enabled=not (self._checkpoint_activations or ranks.count_ranks() > 1),
            ):
                if isinstance(weights, ShardedWeights):
                    logprobs_BT = weights.logprobs(batch)
                else:
                    logprobs_BT = reply_logprobs(model, batch)
            yield logprobs_BT

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[tuple[Batch, list[int]]]:
        """Yield this rank's share of the samples as batches, each with their positions.

        All ranks yield as many batches, because they compute together: where a rank has fewer, the
        others are the shortest sample, without a position.
        """
        of_ranks = self._positions(samples)
        own = of_ranks[ranks.rank()]
        for positions in own:
            chosen = [samples[position] for position in positions]
            yield collate(chosen, self._device), positions
        for _ in range(max(map(len, of_ranks)) - len(own)):
            shortest = min(samples, key=lambda sample: len(sample.tokens.prompt_ids))
            yield collate([shortest], self._device), []

    def needs_one_pass(self, samples: Sequence[Sample]) -> bool:
        """Return whether all samples are one micro-batch of one rank."""
        return ranks.count_ranks() == 1 and len(self._positions(samples)[0]) == 1

    def _positions(self, samples: Sequence[Sample]) -> list[list[list[int]]]:
        """Return the positions of the samples in every micro-batch of every rank."""
        return [
            [
                [share[place] for place in places]
                for places in micro_batches([samples[p] for p in share], self._micro_batch_tokens)
            ]
            for share in divide_into_shares(samples, ranks.count_ranks())
        ]

    def with_weights(self, weights: Weights) -> "Scorer":
        """Return a scorer of other weights, such as a reference, that computes in the same way."""
        # Without recomputed layers, because nothing is learnt there and so nothing runs backward.
        return Scorer(weights, self._micro_batch_tokens, self.dtype)


def remove_padding(values_BT: Tensor, batch: Batch) -> list[list[float]]:
    """Return [B][tokens] the values of each reply."""
    lengths = batch.mask_BT.sum(1).tolist()
    return [row[:length] for row, length in zip(values_BT.tolist(), lengths, strict=True)]


LossOfMicroBatch = Callable[[Tensor, Batch, list[int]], Tensor]
"""(logprobs [B, T], batch, positions of its samples) -> this micro-batch's share of the loss."""


class Learner:
    """A role that learns: a scorer, and the AdamW that updates its weights."""

    def __init__(
        self,
        weights: Weights,
        settings: OptimizerSettings,
        total_steps: int,
        dtype: torch.dtype = torch.float32,
        *,
        checkpoint_activations: bool = False,
    ) -> None:
        """Prepare to learn.

        Args:
            weights: float32; they are updated in place.
            settings: of the optimiser.
            total_steps: length of the learning rate's schedule.
            dtype: of forward and backward; see `Scorer`.
            checkpoint_activations: see `Scorer`.
        """
        if weights.causal_lm.model.device.type == "cpu":
            keep_freed_memory()
        self.scorer = Scorer(
            weights,
            settings.micro_batch_tokens,
            dtype,
            checkpoint_activations=checkpoint_activations,
        )
        self.settings = settings
        self.total_steps = total_steps
        self.schedule_step = 0
        """Position of the learning rate on its schedule, 0-based; the trainer sets it."""
        self._parameters = [p for _, p in role_parameters(weights.causal_lm.model, weights.adapter)]
        self.adamw = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=(0.9, settings.beta2),
            fused=True,
        )

    def step(self, samples: Sequence[Sample], loss_of: LossOfMicroBatch) -> StepResult:
        """Learn once from `samples`, in as many micro-batches as their length requires.

        Args:
            samples: of the whole step; every rank learns from its share of them.
            loss_of: divides by what all samples have.

        Raises:
            DivergenceError: the loss or the gradient is not finite; the weights are unchanged.
        """
        self.adamw.zero_grad(set_to_none=True)
        parts = []
        for batch, positions in self.scorer.micro_batches(samples):
            with self.scorer.logprobs(batch) as logprobs_BT:
                # A rank that has run out of samples still takes part in the backward pass.
                part = (
                    loss_of(logprobs_BT, batch, positions) if positions else 0 * logprobs_BT.sum()
                )
                torch.autograd.backward(part)
            parts.append(part.detach())
        add_up_gradients(self._parameters)
        # Summed on the device and read once: every .item() would wait for the GPU.
        loss = ranks.add_up(torch.stack(parts).sum()).item()
        clip = self.settings.gradient_clip
        # The norm of sharded gradients is a DTensor, of which each rank has only a part.
        norm = gather_whole(torch.nn.utils.clip_grad_norm_(self._parameters, clip)).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergenceError(
                f"loss {loss} and gradient norm {norm} at step {self.schedule_step}: this step "
                "changed nothing; lower the learning rate and resume from the last checkpoint"
            )
        for group in self.adamw.param_groups:
            group["lr"] = self.settings.rate(self.schedule_step, self.total_steps)
        self.adamw.step()
        tokens = sum(len(sample.tokens.ids) for sample in samples)
        return StepResult(loss=loss, gradient_norm=norm, tokens=tokens)


def learner_on(compute: Compute) -> partial[Learner]:
    """Return what makes learners that compute as a run does."""
    return partial(
        Learner,
        dtype=compute.dtype,
        checkpoint_activations=compute.checkpoint_activations,
    )
