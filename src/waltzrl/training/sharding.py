"""Models of which every rank holds a part, by torch's FSDP2.

Weights, gradients, the moments of AdamW, and references that draft nothing are split over the
ranks. A layer is put together for its forward and for its backward pass, and split again. Adapters
and their frozen base are whole on every rank: to decode, a rank needs all of the base anyway.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.weights import Weights, copy_model, store_transposed
from waltzrl.training import ranks
from waltzrl.training.parts import copy_own_rows
from waltzrl.training.samples import Batch, reply_logprobs


class GatheredCopy(DecodingCopy):
    """A whole copy of a sharded model, to decode with.

    It is filled where all ranks are at the same point, and not before every batch that is decoded:
    ranks decode different numbers of batches.
    """

    @cached_property
    def _copy(self) -> PreTrainedModel:
        device = ranks.device()
        # The parameters are made on the device; `to` moves the buffers.
        copied = copy_model(
            self._base, lambda values: torch.empty_like(values, dtype=self._dtype, device=device)
        ).to(device)
        if device.type == "cpu":
            store_transposed(copied)
        return copied.requires_grad_(False)

    def updated(self, adapter: str | None) -> PreTrainedModel:
        """Return the copy as it was filled last."""
        assert adapter is None, "models with adapters are whole on every rank"
        return self._copy

    @torch.no_grad()
    def fill(self) -> None:
        """Fill the copy from all ranks, weight by weight."""
        copied = dict(self._copy.named_parameters())
        for name, parameter in self._base.named_parameters():
            copied[name].copy_(gather_whole(parameter))


class ReplyLogprobs(nn.Module):
    """The forward pass of an update as one module, around which FSDP puts weights together."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Return what `reply_logprobs` does."""
        return reply_logprobs(self.model, batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights(Weights):
    """Weights of which this rank holds a part."""

    logprobs: ReplyLogprobs
    """Every forward pass is one of this module."""
    copy: GatheredCopy | None
    """The copy that decodes; None where nothing does."""


def shard_models(
    weights: Mapping[str, Weights],
    copies: torch.dtype | None,
    kept: torch.dtype = torch.float32,
) -> dict[str, Weights]:
    """Split full models over the ranks, in place; one process leaves all as it is.

    One layer after the other is read, converted and moved to the ranks' devices, and split.

    Args:
        weights: of each role; roles that share weights go on sharing them.
        copies: type of the copies that decode; None where nothing does.
        kept: type of the parts.
    """
    if ranks.count_ranks() == 1:
        return dict(weights)
    split: dict[int, Weights] = {}
    for own in weights.values():
        if id(own) not in split:
            split[id(own)] = _shard_weights(own, copies, kept)
    return {role: split[id(own)] for role, own in weights.items()}


def _shard_weights(weights: Weights, copies: torch.dtype | None, kept: torch.dtype) -> Weights:
    model = weights.causal_lm.model
    # What an adapter learns is small: each rank keeps the model whole.
    if isinstance(model, PeftModel):
        return weights
    copy = None if copies is None else GatheredCopy(model, copies)
    if copy is not None:
        copy.updated(None)  # makes it, which later nobody could: what is split cannot be copied
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    logprobs = ReplyLogprobs(model)
    mesh = init_device_mesh(ranks.device().type, (ranks.count_ranks(),))
    # Inner modules first, as FSDP2 wants it: the outer unit takes what they have left.
    for module in (*layers, logprobs):
        for parameter in module.parameters():
            if not isinstance(parameter, DTensor):  # FSDP takes no transposed ones
                parameter.data = parameter.data.to(kept).contiguous()
        unit = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        # Every rank has a share of one loss: gradients are added up, not averaged.
        unit.set_force_sum_reduction_for_comms(enable=True)
        unit.set_gradient_divide_factor(1.0)
    return ShardedWeights(causal_lm=weights.causal_lm, adapter=None, logprobs=logprobs, copy=copy)


def fill_copies(weights: Iterable[Weights]) -> None:
    """Bring what decodes up to date with the sharded weights."""
    for copy in dict.fromkeys(own.copy for own in weights if isinstance(own, ShardedWeights)):
        if copy is not None:
            copy.fill()


def add_up_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of whole parameters over the ranks; FSDP has added up those of parts."""
    gradients = [
        parameter.grad
        for parameter in parameters
        if parameter.grad is not None and not isinstance(parameter, DTensor)
    ]
    if ranks.count_ranks() == 1 or not gradients:
        return
    # One exchange for all gradients, because each has a latency of its own.
    flat = ranks.add_up(torch.cat([gradient.flatten() for gradient in gradients]))
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))


def gather_whole(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece, on every rank."""
    if isinstance(tensor, DTensor):
        put_together: Tensor = tensor.full_tensor()
        return put_together
    return tensor


def gather_state(model: nn.Module) -> dict[str, Tensor] | None:
    """Return the state of a sharded model on the CPU of the first rank; None if it is whole."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)  # tied weights are one object
    if not any(isinstance(tensor, DTensor) for tensor in state.values()):
        return None
    # All ranks gather each tensor, and all but the first drop it again.
    pieces = {id(tensor): _gather_on_first_cpu(tensor.detach()) for tensor in state.values()}
    return {name: pieces[id(tensor)] for name, tensor in state.items()}


def _gather_on_first_cpu(tensor: Tensor) -> Tensor:
    """Return a sharded tensor in one piece on the CPU; an empty one on other ranks."""
    piece = gather_whole(tensor)
    return piece.cpu() if ranks.is_first() else piece.new_empty(0)


def load_whole(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a whole state into a model, of which every rank may have a part."""
    for name, parameter in model.named_parameters():
        copy_own_rows(parameter, state[name])
