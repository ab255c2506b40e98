"""Attention while decoding: a buffer of keys and values per layer, which finished rows leave.

Transformers lets a model's attention be replaced by name. Ours replaces the cache as well, so that
nothing is concatenated, no key is repeated for grouped queries, and a finished row costs nothing
more. It works for every architecture that routes its attention through
`transformers.AttentionInterface`.

Shapes: R rows, U distinct prompts, H query heads, K key heads, P columns of a chunk of prompts,
C columns of the buffer, D size of a head. All rows end at the same column; shorter prompts are
padded on the left, and `starts` says where each row begins.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from itertools import count
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface, PreTrainedModel

from waltzrl.errors import PolicyError

NAME = "waltzrl_decoding"
BLOCK = 64
"""The columns by which a buffer grows."""
LAYERS = frozenset({"full_attention", "sliding_attention"})
"""The kinds of layers whose tokens see each other through the attention alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How a layer turns queries and keys into scores."""

    scale: float
    window: int | None
    """The number of columns that a query sees, itself included; None sees all."""
    softcap: float | None
    """The bound of the scores' absolute value, by tanh."""


class Pass(Protocol):
    """What the attention of one forward pass does, call by call.

    A layer may call it several times, each with keys and values of their own, such as DiffLlama's.
    The order of the calls is the same in every forward pass.
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Keep `key` and `value` [N, K, Q, D], and attend with `query` [N, H, Q, D].

        Returns:
            [N, Q, H, D].
        """
        ...


class KeyValues:
    """The keys and values of every call for the rows that are still being decoded."""

    def __init__(self, starts: Tensor, prompt_columns: int) -> None:
        self.starts = starts
        """[R] The first column of each row."""
        self.end = prompt_columns
        """The number of columns that are filled."""
        self._rows = len(starts)
        # Read once only: on a GPU it waits for all that is queued.
        self._padded = bool(starts.any())
        self._columns = prompt_columns + BLOCK
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._biases: dict[int, Tensor] = {}

    def buffers(self, call: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return a call's buffers [R * K, C, D], created at first use like `key` and `value`."""
        if call not in self._buffers:
            exact = key.dtype == torch.float32  # each dtype has its own fastest memory layout
            self._buffers[call] = (
                self._buffer(key, columns_adjacent=not exact),
                self._buffer(value, columns_adjacent=exact),
            )
        return self._buffers[call]

    def _buffer(self, like: Tensor, *, columns_adjacent: bool) -> Tensor:
        flat, size = self._rows * like.shape[1], like.shape[-1]
        if columns_adjacent:
            return like.new_zeros(flat, size, self._columns).transpose(1, 2)
        return like.new_zeros(flat, self._columns, size)

    def visible(self, dtype: torch.dtype, window: int | None) -> slice:
        """Return the columns that a token in column `end` has to read.

        In float32 no column after its own. In other dtypes whole buffers, masked where they are
        empty: a product of a part would copy it first, which costs more than the unused columns.
        """
        if window is not None and window <= self.end:
            return slice(self.end + 1 - window, self.end + 1)
        return slice(0, self.end + 1 if dtype == torch.float32 else self._columns)

    def bias(self, heads: int, like: Tensor, visible: slice) -> Tensor | None:
        """Return [rows * heads, 1, visible] for a token in column `end`: zero where it may attend.

        Very negative in the columns before its row and after itself. None is zero everywhere.
        """
        if not self._padded and visible.stop == self.end + 1:
            return None
        if heads not in self._biases:
            columns = torch.arange(self._columns, device=like.device)
            hidden = (columns < self.starts[:, None]) | (columns > self.end)
            bias = torch.zeros_like(hidden, dtype=like.dtype)
            bias.masked_fill_(hidden, torch.finfo(like.dtype).min)
            self._biases[heads] = bias.repeat_interleave(heads, 0)[:, None]
        # This is the only column that has become visible since the last token.
        self._biases[heads][:, :, self.end] = 0
        return self._biases[heads][:, :, visible]

    def advance(self) -> None:
        """Count the column that was just filled, and grow if it was the last."""
        self.end += 1
        if self.end < self._columns:
            return
        self._columns += BLOCK
        self._biases.clear()
        for call, (keys, values) in self._buffers.items():  # each old buffer is freed at once
            self._buffers[call] = F.pad(keys, (0, 0, 0, BLOCK)), F.pad(values, (0, 0, 0, BLOCK))

    def keep(self, slots: Sequence[int]) -> None:
        """Keep `slots` only, in this order; only rows whose slot changes are copied."""
        index = self.starts.new_tensor(slots)
        self.starts = self.starts[index]
        self._biases.clear()
        moved = [slot for slot, source in enumerate(slots) if slot != source]
        if not moved:
            return
        target = index.new_tensor(moved)
        # The buffers keep the number of their rows, of which `TokenPass` reads the first ones.
        for buffers in self._buffers.values():
            for buffer in buffers:
                rows = buffer.view(self._rows, -1, *buffer.shape[1:])[:, :, : self.end]
                rows[target] = rows[index[target]]


class StartPass:
    """Reads what all prompts begin with, once, and keeps it for the passes over the rest."""

    def __init__(self, length: int) -> None:
        self.length = length
        """The number of tokens that all prompts begin with."""
        self.calls: list[tuple[Tensor, Tensor]] = []
        """The keys and values [1, K, length, D] of each call."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        self.calls.append((key, value))
        lengths = torch.tensor([self.length], device=query.device)
        bias = _make_causal_bias(query, lengths, 0, scoring)
        return _compute_attention(query, key, value, bias, scoring)


class PromptPass:
    """Reads a chunk of distinct prompts, and keeps each for every row that begins with it."""

    def __init__(
        self,
        cache: KeyValues,
        rows: slice,
        source: Tensor,
        lengths: Tensor,
        start: StartPass | None = None,
    ) -> None:
        """Prepare to fill `rows` of `cache`.

        Args:
            cache: takes the keys and values.
            rows: the slots that begin with these prompts.
            source: [rows] which of the chunk's prompts each slot begins with.
            lengths: [U] tokens of each prompt, without its start.
            start: has read what all prompts begin with; None if that is nothing.
        """
        self._cache = cache
        self._rows = rows
        self._source = source
        self._lengths = lengths
        self._start = start
        self._calls = count()
        self._biases: dict[int | None, Tensor] = {}
        if start is not None:
            first = cache.end - start.length - lengths[source]
            self._start_columns = first[:, None] + torch.arange(start.length, device=first.device)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        end, call = self._cache.end, next(self._calls)
        rows = [
            buffer.view(-1, key.shape[1], *buffer.shape[1:])[self._rows]
            for buffer in self._cache.buffers(call, key, value)
        ]
        for kept, new in zip(rows, (key, value), strict=True):
            # A prompt is read once, and copied to every row that begins with it.
            kept[:, :, end - new.shape[2] : end] = new[self._source]
        shared = 0
        if self._start is not None:
            # After the rest, whose padding it replaces.
            shared, starts = self._start.length, self._start.calls[call]
            each = torch.arange(len(self._source), device=key.device)[:, None]
            for kept, start in zip(rows, starts, strict=True):
                # Indices on both sides of a slice put their dimensions first: [rows, length, K, D].
                kept[each, :, self._start_columns] = start.transpose(1, 2)
            key, value = (
                torch.cat([start.expand(len(new), -1, -1, -1), new], 2)
                for start, new in zip(starts, (key, value), strict=True)
            )
        if scoring.window not in self._biases:
            self._biases[scoring.window] = _make_causal_bias(query, self._lengths, shared, scoring)
        return _compute_attention(query, key, value, self._biases[scoring.window], scoring)


def _compute_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scoring: Scoring
) -> Tensor:
    """Return [U, Q, H, D] for queries [U, H, Q, D], keys and values [U, K, C, D]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if scoring.softcap is None:
        attended = F.scaled_dot_product_attention(query, key, value, bias, scale=scoring.scale)
    else:
        scores = query @ key.transpose(2, 3) * scoring.scale
        attended = (_cap_scores(scores, scoring.softcap) + bias).softmax(-1) @ value
    return attended.transpose(1, 2)


def _make_causal_bias(query: Tensor, lengths: Tensor, shared: int, scoring: Scoring) -> Tensor:
    """Return [U, 1, Q, shared + Q]: zero where a query may attend, very negative elsewhere.

    Not minus infinity, because the queries of the padding may attend to nothing.

    Args:
        query: [U, H, Q, D], padded on the left.
        lengths: [U] queries without the padding.
        shared: keys before them, which all rows have.
        scoring: of the layer.
    """
    columns = torch.arange(-shared, query.shape[2], device=query.device)
    # [Q, shared + Q] how far each key stands before each query.
    back = columns[shared:, None] - columns
    padded = (columns >= 0) & (columns < query.shape[2] - lengths[:, None])
    hidden = (back < 0) | padded[:, None]
    if scoring.window is not None:
        # The padding between the start and the rest counts in no window.
        before = (query.shape[2] - lengths)[:, None, None] * (columns < 0)
        hidden = hidden | (back - before >= scoring.window)
    bias = torch.zeros_like(hidden, dtype=query.dtype)
    return bias.masked_fill_(hidden, torch.finfo(query.dtype).min)[:, None]


class TokenPass:
    """Reads one new token per row."""

    def __init__(self, cache: KeyValues) -> None:
        self._cache = cache
        self._calls = count()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        rows, heads, _, size = query.shape
        flat = rows * key.shape[1]
        keys, values = self._cache.buffers(next(self._calls), key, value)
        last = self._cache.end
        keys[:flat, last] = key.reshape(flat, -1)
        values[:flat, last] = value.reshape(flat, -1)
        visible = self._cache.visible(key.dtype, scoring.window)
        bias = self._cache.bias(key.shape[1], key, visible)
        # [rows * K, H / K, D]: the heads that share keys are the queries of one product.
        grouped = query.reshape(flat, heads // key.shape[1], size) * scoring.scale
        scores = torch.bmm(grouped, keys[:flat, visible].transpose(1, 2))
        if scoring.softcap is not None:
            scores = _cap_scores(scores, scoring.softcap)
        if bias is not None:
            scores += bias
        attended = torch.bmm(scores.softmax(-1), values[:flat, visible])
        return attended.view(rows, 1, heads, -1)


@contextmanager
def replace_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use our attention, and no dropout, in `model` inside the block.

    Raises:
        PolicyError: the architecture does not let its attention be replaced, or it has layers in
            which tokens see each other in another way, such as convolutions.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if others := sorted(set(kinds) - LAYERS):
        raise PolicyError(
            f"{type(model).__name__} has layers of kind {others[0]}, which local decoding does not"
            " support; serve it with vLLM and use a remote policy"
        )
    if "position_ids" not in signature(type(model).forward).parameters:
        raise PolicyError(
            f"{type(model).__name__} takes no position_ids, which local decoding needs; serve it"
            " with vLLM and use a remote policy"
        )
    training, usual = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation(NAME)
    try:
        if model.config._attn_implementation != NAME:
            raise PolicyError(
                f"{type(model).__name__} does not route its attention through transformers'"
                " AttentionInterface, which local decoding needs; serve it with vLLM and use a"
                " remote policy"
            )
        yield
    finally:
        model.set_attn_implementation(usual)
        model.train(training)


class _Options(TypedDict, total=False):
    """The options that transformers passes to an attention function and that we use."""

    scaling: float
    sliding_window: int | None
    softcap: float | None
    s_aux: Tensor | None
    current: Pass


def _attend_in_module(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Unpack[_Options],
) -> tuple[Tensor, None]:
    # `s_aux` are attention sinks, such as those of gpt-oss; a mask that comes in spite of ours is
    # the module's own, and part of what it computes. BERT's tokens see those that follow, too.
    own = attention_mask is not None or options.get("s_aux") is not None
    if "current" not in options or own or not getattr(module, "is_causal", True):
        raise PolicyError(
            f"{type(module).__name__} has an attention that local decoding does not support;"
            " serve this model with vLLM and use a remote policy"
        )
    scoring = Scoring(
        scale=options["scaling"],
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
    )
    return options["current"](query, key, value, scoring), None


def _cap_scores(scores: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(scores / bound)


AttentionInterface.register(NAME, _attend_in_module)
