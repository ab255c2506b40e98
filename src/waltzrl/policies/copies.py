"""A plain copy of a model to decode with: in another dtype, or with an adapter merged.

Decoding reads every weight for every token, so half the bytes take about half the time; and an
adapter that is merged is read with the weights, and not in a hundred small products beside them.
"""

import copy
from functools import cached_property

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from waltzrl.policies.weights import narrow_parameters


class DecodingCopy:
    """A copy of one model; the roles whose adapters share the model share it."""

    def __init__(self, model: PreTrainedModel | PeftModel, dtype: torch.dtype) -> None:
        """Prepare to copy a model; the first use makes the copy.

        Args:
            model: is left as it is; its adapters, if it has any, are LoRA's.
            dtype: of the copy.
        """
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        self._layers: dict[str, LoraLayer] = {
            f"{name}.weight": module
            for name, module in base.named_modules()
            if isinstance(module, LoraLayer)
        }
        self._base, self._dtype = base, dtype

    @cached_property
    def _copy(self) -> PreTrainedModel:
        copied = copy.deepcopy(self._base)
        # A list, because modules are replaced on the way.
        for name, module in [*copied.named_modules()]:
            if isinstance(module, LoraLayer):
                copied.set_submodule(name, module.get_base_layer())
        narrow_parameters(copied, self._dtype)
        copied.requires_grad_(False)
        return copied

    @torch.no_grad()
    def updated(self, adapter: str | None) -> PreTrainedModel:
        """Bring the copy up to date with the model, merge an adapter, and return it.

        Args:
            adapter: None is the bare model.
        """
        parameters = {
            name.replace(".base_layer.", "."): parameter
            for name, parameter in self._base.named_parameters()
        }
        for name, copied in self._copy.named_parameters():
            layer = self._layers.get(name)
            if adapter is None or layer is None:
                copied.copy_(parameters[name])
            else:  # in float32, to round only once
                copied.copy_(parameters[name].float() + layer.get_delta_weight(adapter))
        return self._copy
