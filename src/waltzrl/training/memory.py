"""The memory of a step beside the models', worked out on shapes: nothing is loaded or allocated.

The update of a role is run forward and backward with fake tensors, which have a shape and no
content, while a meter adds up what is alive: so what it counts is what the real update keeps, in
every architecture, layout and number format. Decoding is arithmetic.
"""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig

from waltzrl.agents.exports import ROLES
from waltzrl.policies.attention import BLOCK
from waltzrl.policies.blocks import fuse_blocks
from waltzrl.policies.local import Decoding
from waltzrl.policies.weights import (
    CausalLM,
    Weights,
    add_adapters,
    narrow_parameters,
    role_parameters,
)
from waltzrl.records import Tokens
from waltzrl.training.learner import Scorer
from waltzrl.training.models import create_tokenizer
from waltzrl.training.samples import Sample, collate, micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns of one role in a step."""

    context_tokens: tuple[int, ...]
    """Tokens of each turn's context; no two turns have the same context."""
    shared_tokens: int
    """The instructions, with which all contexts begin."""
    reply_tokens: int
    """Tokens of each turn's reply: as many as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How a role learns."""

    adapter_rank: int | None
    """Rank of the adapter; None for a full model."""
    dtype: torch.dtype
    """The type of forward and backward, and of the base of an adapter."""
    micro_batch_tokens: int
    checkpoint_activations: bool


def update_bytes(config: PretrainedConfig, update: Update, turns: Turns) -> int:
    """Return the bytes that one update needs beside weights, gradients and optimiser.

    They are those of its largest micro-batch. All layers keep the same, so that one and three of
    them tell what all need.
    """
    layers: int = config.get_text_config().num_hidden_layers
    one, three = (_estimate_peak(_with_layers(config, few), update, turns) for few in (1, 3))
    return one + (three - one) * (layers - 1) // 2


def rollout_bytes(config: PretrainedConfig, dtype: torch.dtype, turns: Turns) -> int:
    """Return the bytes of keys, values and logits while a batch of turns is decoded."""
    text = config.get_text_config()
    # The buffers of keys and values grow block by block.
    columns = max(turns.context_tokens) + BLOCK * -(-turns.reply_tokens // BLOCK)
    most = Decoding()
    rows = max(1, min(len(turns.context_tokens), most.max_rows, most.max_tokens // columns))
    # Not every architecture groups its queries, or names the size of a head.
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    keys_and_values = 2 * text.num_hidden_layers * rows * columns * heads * size * dtype.itemsize
    sampling = 4 * rows * text.vocab_size * 4  # logits, scaled, as weights and added up, in float32
    return int(keys_and_values + sampling)


def _with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Return the config of the same model with its first few layers only."""
    fewer = copy.deepcopy(config)
    text = fewer.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        # repeated, because the model may have fewer than are asked for
        text.layer_types = (text.layer_types * layers)[:layers]
    return fewer


def _estimate_peak(config: PretrainedConfig, update: Update, turns: Turns) -> int:
    """Return the most bytes that are alive at once in an update."""
    samples = largest_micro_batch(turns, update.micro_batch_tokens)
    # Shapes alone, because the model may be larger than this machine's memory.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        fuse_blocks(model)
        causal_lm, adapter = CausalLM(model=model, tokenizer=create_tokenizer(())), None
        if update.adapter_rank is not None:
            adapter = ROLES[0]
            narrow_parameters(model, update.dtype)
            causal_lm = add_adapters(causal_lm, [adapter], update.adapter_rank)
    with FakeTensorMode(allow_non_fake_inputs=True):
        causal_lm.model.to_empty(device="cpu")  # as it seems to the operations
        # `to_empty` has given each of several tied weights a storage of its own.
        model.tie_weights()
        for _, parameter in role_parameters(causal_lm.model, adapter):
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
        scorer = Scorer(
            Weights(causal_lm=causal_lm, adapter=adapter),
            update.micro_batch_tokens,
            update.dtype,
            checkpoint_activations=update.checkpoint_activations,
        )
        model_tensors = [*causal_lm.model.parameters(), *causal_lm.model.buffers()]
        with (
            Meter(model_tensors) as meter,
            scorer.logprobs(collate(samples, torch.device("cpu"))) as logprobs_BT,
        ):
            torch.autograd.backward(logprobs_BT.sum())
    peak: int = meter.peak
    return peak


def largest_micro_batch(turns: Turns, micro_batch_tokens: int) -> list[Sample]:
    """Make a sample of each turn, and return those that are the most tokens in one pass."""
    reply = (0,) * turns.reply_tokens
    shared = (0,) * turns.shared_tokens
    # Each context has a token of its own, so that no more is shared than the instructions.
    samples = [
        Sample(
            tokens=Tokens(
                prompt_ids=shared + (number,) * (length - len(shared)), ids=reply, logprobs=()
            )
        )
        for number, length in enumerate(turns.context_tokens, start=1)
    ]
    batches = [
        [samples[position] for position in positions]
        for positions in micro_batches(samples, micro_batch_tokens)
    ]

    def in_one_pass(batch: Sequence[Sample]) -> int:
        own = (len(sample.tokens.prompt_ids) - turns.shared_tokens for sample in batch)
        return sum(own) + len(batch) * turns.reply_tokens

    return max(batches, key=in_one_pass)


def _drop_gradient(parameter: Tensor) -> None:
    """Forget a gradient: it is counted with the models."""
    parameter.grad = None


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the tensors that operations return, until they are freed."""

    def __init__(self, counted: Sequence[Tensor]) -> None:
        """Start at zero; `counted` are those of the model, which views of them must not add."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        """Most bytes alive at any time."""
        self._alive = dict.fromkeys((tensor.untyped_storage()._cdata for tensor in counted), 0)
        """Bytes of each storage."""
        self._total = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return returned

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._alive:
            self._alive[storage._cdata] = storage.nbytes()
            self._total += storage.nbytes()
            self.peak = max(self.peak, self._total)
            # torch keeps the Python object of a storage for as long as its memory is in use.
            weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, storage: int) -> None:
        self._total -= self._alive.pop(storage)
