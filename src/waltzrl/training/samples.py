"""The single bridge from records to tensors.

Demonstrations and rollouts both end as `Sample`s: token ids a policy was shown, ids that it said
or should say, and, for a rollout, the score it was paid.

Shapes: B samples, S context and reply together, T reply tokens, V words of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from waltzrl.records import Tokens
from waltzrl.training.algorithms.likelihood import token_logprobs
from waltzrl.training.packing import PackedSequence, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn to learn from."""

    tokens: Tokens
    score: float = 0.0
    """What the turn was paid; not used by supervised learning."""
    group: int = 0
    """Equal for samples whose scores are compared with each other (the same prompt)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples as tensors: contexts and replies packed, what belongs to reply tokens padded."""

    pack: PackedSequence
    reply_ids_M: Tensor
    """The tokens of all replies, one reply after the other."""
    mask_BT: Tensor
    """True on the tokens of the reply."""
    old_logprobs_BT: Tensor
    """0 where the sample has none."""


def collate(samples: Sequence[Sample], device: torch.device) -> Batch:
    """Put samples into one batch on `device`."""
    said = [sample.tokens for sample in samples]
    length = max(len(tokens.ids) for tokens in said)
    lengths = torch.tensor([len(tokens.ids) for tokens in said], device=device)
    old = [[*t.logprobs, *[0.0] * (length - len(t.logprobs))] for t in said]
    return Batch(
        pack=pack(said, device),
        reply_ids_M=torch.tensor([token for t in said for token in t.ids], device=device),
        mask_BT=torch.arange(length, device=device) < lengths[:, None],
        old_logprobs_BT=torch.tensor(old, device=device),
    )


def reply_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return [B, T] log-probabilities in nats of the reply tokens, 0 after each reply."""
    logprobs_M = token_logprobs(batch.pack.predict(model), batch.reply_ids_M)
    return torch.zeros_like(batch.old_logprobs_BT).masked_scatter(batch.mask_BT, logprobs_M)


def micro_batches(samples: Sequence[Sample], token_limit: int) -> Iterator[list[int]]:
    """Yield positions of samples, of like length together, so that each batch stays in the limit.

    Counted are padded tokens, a shared prompt once. A sample longer than the limit is a
    micro-batch of its own.
    """
    said = [sample.tokens for sample in samples]

    def likeness(place: int) -> tuple[int, tuple[int, ...], int]:
        return len(said[place].prompt_ids), said[place].prompt_ids, len(said[place].ids)

    together: list[int] = []
    prompts: set[tuple[int, ...]] = set()
    longest = 0
    for place in sorted(range(len(said)), key=likeness):
        prompt, reply = said[place].prompt_ids, said[place].ids
        longest = max(longest, len(reply))
        size = len(prompts | {prompt}) * len(prompt) + (len(together) + 1) * longest
        if together and size > token_limit:
            yield together
            together, prompts, longest = [], set(), len(reply)
        together.append(place)
        prompts.add(prompt)
    if together:
        yield together
