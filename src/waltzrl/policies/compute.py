"""Device, dtype and CPU threads: decided once, at the start of a process, and passed on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from waltzrl.errors import RecipeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """What a recipe says about the hardware."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward, backward and decoding; weights that learn are kept in float32. `auto` is bfloat16
    on a GPU and float32 on a CPU."""
    checkpoint_activations: bool = False
    """Keep only the input of each layer, and run the layers again in the backward pass: the same
    gradients in much less memory, for about a third more time in an update. Turn it on before
    lowering `micro_batch_tokens`; `waltzrl train RECIPE --dry-run` says what each saves."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads; the same number gives the same weights bit for bit. None is torch's choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where models live, and what they compute in."""

    device: "torch.device"
    dtype: "torch.dtype"
    checkpoint_activations: bool = False


def resolve_compute(settings: ComputeSettings) -> Compute:
    """Choose the device and the dtype, and set the number of CPU threads of this process.

    Raises:
        RecipeError: the settings need CUDA, but torch finds no GPU.
    """
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    has_cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not has_cuda:
        raise RecipeError("compute.device is cuda, but torch finds no GPU; use cpu or auto")
    on_gpu = has_cuda and settings.device != "cpu"
    half = settings.dtype == "bfloat16" or (settings.dtype == "auto" and on_gpu)
    return Compute(
        device=torch.device("cuda" if on_gpu else "cpu"),
        dtype=torch.bfloat16 if half else torch.float32,
        checkpoint_activations=settings.checkpoint_activations,
    )
