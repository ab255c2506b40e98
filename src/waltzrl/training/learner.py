"""One policy that learns: its weights, its optimiser, and one step from a batch of samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waltzrl.errors import DivergenceError
from waltzrl.policies.weights import CausalLM, activated, role_parameters
from waltzrl.training.samples import Batch, Sample, collate, micro_batches, reply_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How a policy's weights move."""

    learning_rate: float
    """Peak; about 5e-7 for a full 8B model, 1e-5 with LoRA, 1e-3 for the demo's small ones."""
    warmup_steps: int = 10
    """Steps of linear increase from 0."""
    final_share: float = 1.0
    """Share of the peak left at the last step of a cosine decay; 1 keeps it constant."""
    weight_decay: float = 0.0
    beta2: float = 0.999
    """How long the size of gradients is remembered; 0.95 learns faster from scratch."""
    gradient_clip: float = 1.0
    """Largest gradient norm."""
    micro_batch_tokens: int = 8192
    """Tokens in one forward pass; lower it when memory runs out, results stay the same."""
    bf16: bool = False
    """Forward and backward in bfloat16 with fp32 master weights."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.gradient_clip > 0):
            raise ValueError("optimizer.learning_rate and optimizer.gradient_clip must be above 0")
        if not (0 <= self.beta2 < 1 and 0 <= self.final_share <= 1 and self.weight_decay >= 0):
            raise ValueError(
                "optimizer.beta2 lies in [0, 1), final_share in [0, 1], weight_decay is 0 or more"
            )
        if self.warmup_steps < 0 or self.micro_batch_tokens < 1:
            raise ValueError("optimizer.warmup_steps is 0 or more, micro_batch_tokens 1 or more")

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of 0-based `step` out of `total`."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        cosine = (1 + math.cos(math.pi * min(1.0, done))) / 2
        return self.learning_rate * (self.final_share + (1 - self.final_share) * cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimiser step did."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    tokens: int
    """Reply tokens learnt from."""


class Scorer:
    """A policy's weights seen from outside: how likely it finds what was said."""

    def __init__(
        self, causal_lm: CausalLM, adapter: str | None, micro_batch_tokens: int, *, bf16: bool
    ) -> None:
        self.causal_lm = causal_lm
        self.adapter = adapter
        """The role's adapter on a shared base; None is the model itself, or the bare base."""
        self.bf16 = bf16
        self._micro_batch_tokens = micro_batch_tokens
        self._device = next(causal_lm.model.parameters()).device

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return [samples][tokens] log-probabilities in nats, without a gradient."""
        found: list[list[float]] = [[] for _ in samples]
        with torch.no_grad():
            for batch, positions in self.micro_batches(samples):
                rows = self.logprobs(batch).tolist()
                for position, row in zip(positions, rows, strict=True):
                    found[position] = row[: len(samples[position].tokens.ids)]
        return found

    def logprobs(self, batch: Batch) -> Tensor:
        """Return [B, T] log-probabilities in nats of the reply tokens, with a gradient."""
        with (
            activated(self.causal_lm.model, self.adapter) as model,
            torch.autocast(self._device.type, torch.bfloat16, enabled=self.bf16),
        ):
            return reply_logprobs(model, batch)

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[tuple[Batch, list[int]]]:
        """Yield the samples as batches, each with the positions of its samples."""
        for positions in micro_batches(samples, self._micro_batch_tokens):
            chosen = [samples[position] for position in positions]
            yield collate(chosen, self._device), positions


LossOfMicroBatch = Callable[[Tensor, Batch, list[int]], Tensor]
"""(logprobs [B, T], batch, positions of its samples) -> this micro-batch's share of the loss."""


class Learner:
    """A policy that learns: a scorer, and the AdamW that moves its weights."""

    def __init__(
        self, causal_lm: CausalLM, adapter: str | None, optimizer: Optimizer, total_steps: int
    ) -> None:
        self.scorer = Scorer(causal_lm, adapter, optimizer.micro_batch_tokens, bf16=optimizer.bf16)
        self.settings = optimizer
        self.total_steps = total_steps
        self.schedule_step = 0
        """Where the learning rate stands on its schedule, 0-based; the trainer moves it."""
        self._parameters = [p for _, p in role_parameters(causal_lm.model, adapter)]
        self.adamw = torch.optim.AdamW(
            self._parameters,
            lr=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            betas=(0.9, optimizer.beta2),
            fused=True,
        )

    def step(self, samples: Sequence[Sample], loss_of: LossOfMicroBatch) -> StepResult:
        """Learn once from `samples`, in as many micro-batches as their length asks for.

        Raises:
            DivergenceError: the loss or the gradient is not a number; the weights are untouched.
        """
        self.adamw.zero_grad(set_to_none=True)
        parts = []
        for batch, positions in self.scorer.micro_batches(samples):
            part = loss_of(self.scorer.logprobs(batch), batch, positions)
            torch.autograd.backward(part)
            parts.append(part.detach())
        loss = torch.stack(parts).sum().item()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.gradient_clip).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergenceError(
                f"loss {loss} and gradient norm {norm} at step {self.schedule_step}: this step "
                "changed nothing; lower the learning rate and go on from the last checkpoint"
            )
        for group in self.adamw.param_groups:
            group["lr"] = self.settings.rate(self.schedule_step, self.total_steps)
        self.adamw.step()
        tokens = sum(len(sample.tokens.ids) for sample in samples)
        return StepResult(loss=loss, gradient_norm=norm, tokens=tokens)
