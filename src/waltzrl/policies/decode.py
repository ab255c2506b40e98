"""Batched decoding of any Hugging Face causal LM, several times faster than `model.generate`.

What all prompts begin with, such as a system message, is read once, then the rest of every distinct
prompt, those of similar length together; then all rows take one token at a time, and a finished row
leaves the batch and the cache.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from waltzrl.errors import PolicyError
from waltzrl.policies.attention import (
    KeyValues,
    Pass,
    PromptPass,
    StartPass,
    TokenPass,
    replace_attention,
)

CHUNK_TOKENS = 1024
"""Prompts are read in chunks of about this many tokens: little padding, little memory."""
FEW_TOKENS = 16
"""The number of tokens below which a start is read with each prompt rather than in a pass of its
own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt to continue, and how far."""

    prompt: tuple[int, ...]
    """[P] token ids, at least one."""
    limit: int
    """Largest number of new tokens."""
    enough: Callable[[Sequence[int]], bool] | None = None
    """The function that is called with the new tokens so far, after each; True ends the reply
    there.
    """
    seed: int | None = None
    """The seed of this reply alone; None draws from the generator that all share."""
    guide: Callable[[Sequence[int], Tensor], int | None] | None = None
    """The function that is called with the new tokens so far and the logits [V] of the next, before
    each; it returns the token that must come next, or None for any.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The continuation of a prompt."""

    ids: tuple[int, ...]
    """[T] the tokens, with the end-of-turn token when there was one."""
    logprobs: tuple[float, ...]
    """[T] log-probability in nats of each token at the sampling temperature (at 1 when greedy)."""
    finish: Literal["stop", "length"]


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    asks: Sequence[Ask],
    temperature: float,
    end_ids: Collection[int],
    generator: torch.Generator,
    top_p: float = 1.0,
) -> list[Decoded]:
    """Continue every prompt until it ends or reaches its limit.

    Args:
        model: a causal LM; its attention and mode are replaced meanwhile.
        asks: [R] at least one; equal prompts are read once.
        temperature: 0 takes the likeliest token.
        end_ids: tokens that end a reply.
        generator: on the model's device; draws one number per row and token.
        top_p: see `choose_tokens`.

    Returns:
        [R] in the order of `asks`.

    Raises:
        PolicyError: the architecture is not supported, or the logits are not finite.
    """
    # Equal prompts become neighbours, and prompts of a chunk need little padding.
    order = sorted(range(len(asks)), key=lambda row: (len(asks[row].prompt), asks[row].prompt))
    rows = [_Row(index=index, ask=asks[index]) for index in order]
    done: list[_Row] = []
    with replace_attention(model):
        cache, logits = _read_prompts_of_batch(model, [row.ask.prompt for row in rows])
        while rows:
            _permit_tokens(rows, logits)
            draws = _draw_numbers(rows, logits, generator) if temperature else None
            ids, logprobs = choose_tokens(logits, temperature, draws, top_p)
            _record_tokens(rows, ids, logprobs)
            unfinished = [slot for slot, row in enumerate(rows) if not row.finished(end_ids)]
            # Finished rows leave at once, so that a step costs only what the others need.
            if len(unfinished) < len(rows):
                done += [row for row in rows if row.finished(end_ids)]
                slots = _fill_gaps(unfinished)
                cache.keep(slots)
                ids = ids[slots]
                rows = [rows[slot] for slot in slots]
            if rows:
                positions = cache.end - cache.starts
                logits = _run_forward(model, ids[:, None], positions[:, None], TokenPass(cache))
                cache.advance()
    return [row.decoded(end_ids) for row in sorted(done, key=lambda row: row.index)]


def choose_tokens(
    logits: Tensor, temperature: float, draws: Tensor | None, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: [N, V].
        temperature: 0 takes the likeliest token.
        draws: [N, 1] uniform numbers; None when greedy.
        top_p: sample among the likeliest tokens whose probabilities add up to this. The
            log-probabilities are those before the others are excluded.

    Returns:
        [N] ids and [N] their log-probabilities at this temperature (at 1 when greedy), in float32.
    """
    logits = logits.float()
    if draws is None:
        best, ids = logits.max(-1)
        return ids, best - logits.logsumexp(-1)
    scaled = logits - logits.amax(-1, keepdim=True)
    if temperature != 1.0:
        scaled /= temperature
    weights = scaled.exp()
    mass = weights.cumsum(-1)
    total = mass[:, -1:]
    if top_p < 1:
        mass = _keep_nucleus(weights, top_p * total).cumsum(-1)
    # With `right`, a draw of 0 chooses no token of weight 0 that stands before all others.
    ids = torch.searchsorted(mass, draws * mass[:, -1:], right=True)
    # A draw of almost 1 may be rounded to the total, which lies beyond the last token.
    ids.clamp_(max=logits.shape[-1] - 1)
    return ids[:, 0], (scaled.gather(-1, ids) - total.log())[:, 0]


def _keep_nucleus(weights: Tensor, mass: Tensor) -> Tensor:
    """Set to zero the weights [N, V] beyond the largest that reach `mass` [N, 1] together."""
    ordered, order = weights.sort(-1, descending=True)
    # Less its own weight, so that the token which reaches the mass is kept.
    ordered[ordered.cumsum(-1) - ordered >= mass] = 0.0
    return torch.zeros_like(weights).scatter_(-1, order, ordered)


@dataclass(slots=True, kw_only=True)
class _Row:
    """A reply that is growing."""

    index: int
    """The position among the caller's asks."""
    ask: Ask
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    generator: torch.Generator | None = None
    """The generator of a reply with a seed of its own."""

    def finished(self, end_ids: Collection[int]) -> bool:
        return len(self.ids) == self.ask.limit or self.ended(end_ids)

    def ended(self, end_ids: Collection[int]) -> bool:
        enough = self.ask.enough
        return self.ids[-1] in end_ids or (enough is not None and enough(self.ids))

    def decoded(self, end_ids: Collection[int]) -> Decoded:
        return Decoded(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            finish="stop" if self.ended(end_ids) else "length",
        )


def _draw_numbers(rows: Sequence[_Row], logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return a uniform number [N, 1] for each row."""
    # Drawn for all rows, so that one row's own seed does not change the numbers of the others.
    draws = torch.rand((len(rows), 1), generator=generator, device=logits.device)
    for slot, row in enumerate(rows):
        if row.ask.seed is not None:
            if row.generator is None:
                row.generator = torch.Generator(logits.device).manual_seed(row.ask.seed)
            draws[slot] = torch.rand(1, generator=row.generator, device=logits.device)
    return draws


def _permit_tokens(rows: Sequence[_Row], logits: Tensor) -> None:
    """Leave only one token possible in the logits [N, V] of rows whose guides demand it."""
    for slot, row in enumerate(rows):
        guide = row.ask.guide
        if guide is not None and (token := guide(row.ids, logits[slot])) is not None:
            logits[slot] = -math.inf
            logits[slot, token] = 0.0


def _record_tokens(rows: Sequence[_Row], ids: Tensor, logprobs: Tensor) -> None:
    for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
        # An infinite logit shows here as NaN too: what is subtracted from it is as infinite.
        if math.isnan(logprob):
            raise PolicyError(
                "the policy's logits are not finite numbers: its weights have diverged, or their"
                " dtype is too narrow; go back to an earlier checkpoint or use bfloat16 or float32"
            )
        row.ids.append(token)
        row.logprobs.append(logprob)


def _fill_gaps(unfinished: list[int]) -> list[int]:
    """Order the unfinished slots so that as few as possible move."""
    count = len(unfinished)
    late = [slot for slot in unfinished if slot >= count]
    staying = set(unfinished)
    return [slot if slot in staying else late.pop() for slot in range(count)]


def _read_prompts_of_batch(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]
) -> tuple[KeyValues, Tensor]:
    """Read the sorted prompts; return the cache and the logits [R, V] after each."""
    # Padded on the left: all rows then write their next token into the same column.
    starts = torch.tensor([len(prompts[-1]) - len(prompt) for prompt in prompts]).to(model.device)
    cache = KeyValues(starts, len(prompts[-1]))
    start = _read_start(model, prompts)
    shared = 0 if start is None else start.length
    logits, first = [], 0
    for chunk in _split_into_chunks([prompt[shared:] for prompt in prompts]):
        lengths = torch.tensor([len(prompt) for prompt, _ in chunk])
        width = int(lengths[-1])
        # Any id will do in the padding, which `PromptPass` hides from all queries.
        ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt, _ in chunk])
        source = torch.arange(len(chunk)).repeat_interleave(torch.tensor([n for _, n in chunk]))
        positions = shared + (torch.arange(width) - (width - lengths)[:, None]).clamp_(min=0)
        ids, source, positions, lengths = (
            tensor.to(model.device) for tensor in (ids, source, positions, lengths)
        )
        rows = slice(first, first := first + len(source))
        prompt_pass = PromptPass(cache, rows, source, lengths, start)
        logits.append(_run_forward(model, ids, positions, prompt_pass)[source])
    return cache, torch.cat(logits)


def _read_start(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> StartPass | None:
    """Read what all prompts begin with; None where reading it once saves little."""
    distinct = set(prompts)
    length = count_shared_tokens(distinct)
    if len(distinct) == 1 or length < FEW_TOKENS:
        return None
    start = StartPass(length)
    ids = torch.tensor([prompts[0][:length]], device=model.device)
    _run_forward(model, ids, torch.arange(length, device=model.device)[None], start)
    return start


def count_shared_tokens(prompts: Collection[tuple[int, ...]]) -> int:
    """Return how many tokens all prompts begin with; each keeps one of its own."""
    least, most = min(prompts), max(prompts)  # in the order of tuples these have least in common
    limit = min(map(len, prompts)) - 1
    return next((n for n in range(limit) if least[n] != most[n]), limit)


def _split_into_chunks(
    prompts: Sequence[tuple[int, ...]],
) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """Yield lists of (distinct prompt, times it occurs) from sorted prompts."""
    chunk: list[tuple[tuple[int, ...], int]] = []
    for prompt, same in groupby(prompts):
        # Prompts come in the order of their lengths, so this one is the width of its chunk.
        if chunk and (len(chunk) + 1) * len(prompt) > CHUNK_TOKENS:
            yield chunk
            chunk = []
        chunk.append((prompt, len(list(same))))
    yield chunk


def _run_forward(model: PreTrainedModel, ids: Tensor, positions: Tensor, current: Pass) -> Tensor:
    """Return the logits [N, V] after the last of `ids` [N, Q]."""
    logits: Tensor = model(
        input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1, current=current
    ).logits
    return logits[:, -1]
