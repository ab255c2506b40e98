"""Turns packed into one sequence for a forward pass: no padding, and no prompt read twice.

First comes what all prompts begin with, then the rest of each distinct prompt, then the replies,
each attending to its own prompt. The linear layers, nearly all of a model's work, process real
tokens only; attention alone pads its rows, within a layer.

Shapes: N tokens of the pack, M tokens to predict, E size of a hidden state, R rows, Q queries and
C keys of the longest row, H query heads, K key heads, D size of a head, V words of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from waltzrl.errors import PolicyError
from waltzrl.policies.attention import Scoring, replace_attention
from waltzrl.policies.decode import count_shared_tokens
from waltzrl.records import Tokens
from waltzrl.training.algorithms.tokens import token_logprobs

MANY_SCORES = 2**24
"""Scores up to which a plain product is faster than the tiled kernel; beyond, memory is the
limit."""
MANY_LOGITS = 2**25
"""Logits that take 128 MiB in float32."""

FEW_TOKENS = 64
"""Fewer than these are read twice rather than in a block of their own."""

recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Call a function, and again in the backward pass, which then finds nothing in memory but its
arguments. There is no dropout, so no random state to restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequence:
    """Several turns as one sequence."""

    ids_N: Tensor
    positions_N: Tensor
    """Position of each token in its own turn; a reply continues where its prompt ends."""
    before_M: Tensor
    """The position in the pack of the token before each reply token, turn by turn."""
    blocks: tuple["AttentionBlock", ...]
    """Queries with the keys that they attend to: the start of all prompts, prompts, replies."""

    def logprobs(
        self, model: PreTrainedModel, ids_M: Tensor, most_logits: int = MANY_LOGITS
    ) -> Tensor:
        """Return [M] the log-probabilities in nats of the reply tokens `ids_M`.

        Args:
            model: a causal LM.
            ids_M: the tokens of all replies, one reply after the other.
            most_logits: how many may be in memory together; beyond, they are computed in parts,
                and again in the backward pass.

        Raises:
            PolicyError: the architecture does not let its attention be replaced.
        """
        with replace_attention(model):
            # Transformers hands `current` on to every layer's attention, which calls this pack.
            out = model.base_model(
                input_ids=self.ids_N[None],
                position_ids=self.positions_N[None],
                use_cache=False,
                current=self,
            )
        hidden_ME = out.last_hidden_state.squeeze(0).index_select(0, self.before_M)
        size = max(1, most_logits // model.config.get_text_config().vocab_size)
        if len(ids_M) <= size:
            return _compute_logprobs(model, out, hidden_ME, ids_M)
        parts = zip(torch.split(hidden_ME, size), torch.split(ids_M, size), strict=True)
        return torch.cat([recomputed(_compute_logprobs, model, out, *part) for part in parts])

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Attend, as a `Pass`: [1, heads, N, D] each to [1, N, H, D]."""
        query, key, value = (heads.squeeze(0).transpose(0, 1) for heads in (query, key, value))
        attended = [block.attend(query, key, value, scoring) for block in self.blocks]
        return torch.cat(attended)[None]


def _compute_logprobs(
    model: PreTrainedModel, out: ModelOutput, hidden_ME: Tensor, ids_M: Tensor
) -> Tensor:
    """Return [M] log-probabilities by the model's own head, whatever it does besides a product.

    Args:
        model: its decoder is not run again.
        out: what the decoder returned.
        hidden_ME: the states from which the tokens are predicted, in place of those in `out`.
        ids_M: the tokens.

    Raises:
        PolicyError: the head is not called with what the decoder returns.
    """
    decoder = model.base_model
    given = iter([type(out)(**{**out, "last_hidden_state": hidden_ME[None]})])
    # An attribute of the instance hides the method of its class until it is deleted.
    decoder.forward = lambda *_, **__: next(given)
    try:
        # The decoder ignores its input now, and the model demands one.
        logits: Tensor = model(inputs_embeds=hidden_ME[None], use_cache=False).logits
    finally:
        del decoder.forward
    if next(given, None) is not None:
        raise PolicyError(
            f"{type(model).__name__} does not call its base model, which training needs; choose a"
            " base of another architecture"
        )
    return token_logprobs(logits.squeeze(0), ids_M)


@contextmanager
def recomputing_layers(model: PreTrainedModel) -> Iterator[None]:
    """Keep only the input of every layer; its backward pass, in the block too, runs it again.

    Transformers' own switch works in training mode only, which has dropout.

    Raises:
        PolicyError: the architecture does not mark its layers.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise PolicyError(
            f"{type(model).__name__} has no layers that can be recomputed; leave"
            " compute.checkpoint_activations off"
        )
    for layer in layers:
        layer.forward = partial(recomputed, layer.forward)
    try:
        with replace_attention(model):
            yield
    finally:
        for layer in layers:
            del layer.forward


def pack_turns(turns: Sequence[Tokens], device: torch.device) -> PackedSequence:
    """Pack `turns`; the last token of a reply predicts nothing and is left out."""
    ids: list[int] = []
    positions: list[int] = []

    def append(tokens: Sequence[int], first: int) -> range:
        """Add tokens whose turn is `first` long so far; return their places in the pack."""
        places = range(len(ids), len(ids) + len(tokens))
        ids.extend(tokens)
        positions.extend(range(first, first + len(tokens)))
        return places

    distinct = dict.fromkeys(turn.prompt_ids for turn in turns)
    start = turns[0].prompt_ids[: count_shared_tokens(distinct)]
    shared = append(start if len(start) * (len(distinct) - 1) >= FEW_TOKENS else (), 0)
    first = len(shared)
    rests = {prompt_ids: append(prompt_ids[first:], first) for prompt_ids in distinct}
    replies = [(rests[t.prompt_ids], append(t.ids[:-1], len(t.prompt_ids))) for t in turns]
    # The prompt's last token predicts the first of the reply.
    before = [place for rest, reply in replies for place in (rest[-1], *reply)]
    starting = [(shared, shared)] if shared else []
    reading = [(rest, (*shared, *rest)) for rest in rests.values()]
    replying = [(reply, (*shared, *rest, *reply)) for rest, reply in replies if reply]
    positions_N = torch.tensor(positions, device=device)
    return PackedSequence(
        ids_N=torch.tensor(ids, device=device),
        positions_N=positions_N,
        before_M=torch.tensor(before, device=device),
        blocks=tuple(
            AttentionBlock(rows, positions_N) for rows in (starting, reading, replying) if rows
        ),
    )


class AttentionBlock:
    """Rows of queries, each with the keys that it may attend to, padded on the right."""

    def __init__(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], positions_N: Tensor
    ) -> None:
        """Prepare the rows.

        Args:
            rows: [R] places in the pack of the queries and of the keys; a query sees the keys
                before it and its own.
            positions_N: of the whole pack.
        """
        self._queries_RQ, _ = _pad_rows([queries for queries, _ in rows], positions_N)
        self._keys_RC, real_RC = _pad_rows([keys for _, keys in rows], positions_N)
        longest = self._queries_RQ.shape[1]
        real = [r * longest + q for r, (queries, _) in enumerate(rows) for q in range(len(queries))]
        # Where the queries are among the flattened rows, without the padding.
        self._real = positions_N.new_tensor(real)
        back_RQC = positions_N[self._queries_RQ][:, :, None] - positions_N[self._keys_RC][:, None]
        # Padding counts as a key that comes later, which no query sees.
        self._back_RQC = back_RQC.masked_fill_(~real_RC[:, None], -1)
        self._biases: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return [queries, H, D] for `query` [N, H, D], `key` and `value` [N, K, D]."""
        query, key, value = (
            _gather_rows(query, self._queries_RQ),
            _gather_rows(key, self._keys_RC),
            _gather_rows(value, self._keys_RC),
        )
        shape = query.shape
        query = query.reshape(*key.shape[:2], -1, shape[-1])  # the queries of a key head together
        bias = self._bias(value.dtype, shape[1] // key.shape[1], scoring.window)
        # torch's kernel cannot cap scores. `bias` is as large as the scores of one key head.
        if scoring.softcap is None and bias.numel() * key.shape[1] > MANY_SCORES:
            attended = F.scaled_dot_product_attention(query, key, value, bias, scale=scoring.scale)
        else:
            scores = query * scoring.scale @ key.transpose(2, 3)
            if scoring.softcap is not None:
                scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
            attended = (scores + bias).softmax(-1) @ value
        attended = attended.view(*shape[:-1], -1)  # a value may be of another size than a key
        return attended.transpose(1, 2).flatten(0, 1).index_select(0, self._real)

    def _bias(self, dtype: torch.dtype, groups: int, window: int | None) -> Tensor:
        """Return [R, 1, groups * Q, C]: zero where a query may attend, minus infinity elsewhere."""
        # All layers of one window share it.
        if window not in self._biases:
            hidden = self._back_RQC < 0
            if window is not None:
                hidden = hidden | (self._back_RQC >= window)
            bias = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)
            self._biases[window] = bias.repeat(1, groups, 1)[:, None]
        return self._biases[window]


def _pad_rows(rows: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows padded with their first places, and a mask that is False on the padding."""
    longest = max(len(row) for row in rows)
    # With a place of the row, so that a padded query sees a key: a softmax over none is nan.
    places = [[*row, *[row[0]] * (longest - len(row))] for row in rows]
    lengths = like.new_tensor([len(row) for row in rows])
    real = torch.arange(longest, device=like.device) < lengths[:, None]
    return like.new_tensor(places), real


def _gather_rows(heads: Tensor, places: Tensor) -> Tensor:
    """Gather [N, heads, D] into [rows, heads, columns, D]."""
    flat = heads.flatten(1).index_select(0, places.flatten())
    return flat.view(*places.shape, *heads.shape[1:]).transpose(1, 2)
