"""Parts of Llama-like blocks with fewer passes over memory than transformers make.

Each part computes what the module's own code computes, up to rounding in float32. A module is
recognised by its code, so one that computes anything else keeps its own.

Shapes: N tokens, E size of a hidden state, H heads, D size of a head; I inputs and O outputs of a
linear layer, R rank of an adapter.
"""

import inspect
from types import FunctionType, MethodType
from typing import Protocol

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama
from transformers.utils.deprecation import deprecate_kwarg


def fuse_blocks(model: PreTrainedModel) -> None:
    """Replace the norms, the activations and the rotary embeddings of the blocks, in place."""
    for module in model.modules():
        forward = inspect.unwrap(
            type(module).forward, stop=lambda each: not _has_same_code(each, RENAMES)
        )
        if _has_same_code(forward, llama.LlamaRMSNorm.forward):
            module.forward = MethodType(_run_norm, module)
        elif _has_same_code(forward, llama.LlamaMLP.forward) and isinstance(
            module.act_fn, nn.SiLU | SiLUActivation
        ):
            module.forward = MethodType(_run_mlp, module)
        elif _rotates_halves(_find_global(forward, ROTARY)):
            module.forward = MethodType(_replace_rotary(forward), module)


def fuse_adapters(model: PeftModel) -> None:
    """Make each linear layer and its LoRA adapter one operation, in place."""
    for module in model.modules():
        # Not `isinstance`, because a subclass may compute something else.
        if type(module) is LoraLinear:
            module.forward = MethodType(_run_adapted, module)


ROTARY = "apply_rotary_pos_emb"
"""The name in transformers of the rotary embedding wherever an attention uses one."""
RENAMES = deprecate_kwarg("old", "0")(lambda: None)
"""Takes an argument's former name too, as attentions do since transformers 5.24.

A replaced forward takes the present name only, which is the one that blocks pass.
"""


def _has_same_code(function: object, other: FunctionType) -> bool:
    """Return whether two functions have the same code, whatever they are called."""
    return isinstance(function, FunctionType) and _read_code(function) == _read_code(other)


def _read_code(function: FunctionType) -> tuple[object, ...]:
    code = function.__code__
    # Of the constants only numbers are compared: docstrings are constants, too.
    numbers = [constant for constant in code.co_consts if isinstance(constant, int | float)]
    return code.co_code, code.co_names, numbers


def _find_global(function: object, name: str) -> object:
    """Return the global of this name that a function uses; None if it uses none."""
    if isinstance(function, FunctionType) and name in function.__code__.co_names:
        return function.__globals__.get(name)
    return None


def _rotates_halves(rotary: object) -> bool:
    """Return whether a rotary embedding is Llama's, also in the rotation that it calls."""
    rotation = _find_global(rotary, "rotate_half")
    return _has_same_code(rotary, llama.apply_rotary_pos_emb) and _has_same_code(
        rotation, llama.rotate_half
    )


def _replace_rotary(forward: FunctionType) -> FunctionType:
    """Copy an attention's forward, with our rotary embedding in place of its own."""
    # A copy, because all models of this architecture share the globals of its module.
    names = {**forward.__globals__, ROTARY: _rotate_both}
    copied = FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


def _run_norm(module: llama.LlamaRMSNorm, hidden_states: Tensor) -> Tensor:
    if not hidden_states.dtype == module.weight.dtype == torch.float32:
        plain: Tensor = llama.LlamaRMSNorm.forward(module, hidden_states)
        return plain
    return _apply_function(_RMSNorm, hidden_states, module.weight, module.variance_epsilon)


def _run_mlp(module: llama.LlamaMLP, x: Tensor) -> Tensor:
    projected: Tensor = module.down_proj(
        _apply_function(_SwiGLU, module.gate_proj(x), module.up_proj(x))
    )
    return projected


def _run_adapted(module: LoraLinear, x: Tensor, *more: object, **options: object) -> Tensor:
    """Compute a linear layer with its adapter; PEFT does where it is not one plain adapter."""
    names = [name for name in module.active_adapters if name in module.lora_A]
    base, kind = module.base_layer, x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if (
        more
        or options
        or module.disable_adapters
        or module.merged
        or len(names) != 1
        or names[0] in module.lora_variant
        or not isinstance(module.lora_dropout[names[0]], nn.Identity)
        or module.lora_B[names[0]].bias is not None
        or type(base) is not nn.Linear
        or base.weight.requires_grad
        or base.weight.dtype != dtype
    ):
        plain: Tensor = LoraLinear.forward(module, x, *more, **options)
        return plain
    first, second = module.lora_A[names[0]].weight, module.lora_B[names[0]].weight
    factors = (first.to(dtype), second.to(dtype), module.scaling[names[0]])
    return _apply_function(_Adapted, x.to(dtype), base.weight, base.bias, *factors)


def _rotate_both(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _apply_function(_Rotation, q, cos, sin), _apply_function(_Rotation, k, cos, sin)


def _apply_function(function: type[Function], *arguments: object) -> Tensor:
    """Call a function; with a graph only where a gradient is wanted, because that costs time."""
    result: Tensor = (
        function.apply(*arguments)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled()
        else function.forward(*arguments)
    )
    return result


class _Context(Protocol):
    """What torch gives to a `Function`."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    epsilon: float
    scaling: float

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _RMSNorm(Function):
    """y = x s w with s = 1 / sqrt(mean(x^2) + eps)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return (x * _compute_scale(x, epsilon)).mul_(weight)

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, float], _: Tensor) -> None:
        x, weight, ctx.epsilon = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        scale = _compute_scale(x, ctx.epsilon)
        product = grad * x
        # dL/dx = s w g - x s^3 / E * sum(g x w), where g = dL/dy.
        slope = (product @ weight).unsqueeze(-1) * scale.pow(3) / -x.shape[-1]
        wanted = ctx.needs_input_grad[1]
        grad_weight = scale.flatten() @ product.flatten(0, -2) if wanted else None
        # Last, because it overwrites the product that both sums above read.
        grad_x = torch.mul(grad, weight, out=product).mul_(scale).addcmul_(x, slope)
        return grad_x, grad_weight, None


def _compute_scale(x: Tensor, epsilon: float) -> Tensor:
    """Return what each vector [..., E] is multiplied with, [..., 1]."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()


class _SwiGLU(Function):
    """y = silu(gate) * up."""

    @staticmethod
    def forward(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate).mul_(up)

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor], _: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, F.silu(gate).mul_(grad)


class _Rotation(Function):
    """y = x cos + (-x2, x1) sin, for the halves x1 and x2 of each vector."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        y = x * cos
        y[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
        y[..., half:].addcmul_(x[..., :half], sin[..., half:])
        return y

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor], _: Tensor) -> None:
        _, cos, sin = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        # The transposed map: the halves of the sine change places, and their sign.
        return _Rotation.forward(grad, cos, -sin.roll(sin.shape[-1] // 2, -1)), None, None


class _Adapted(Function):
    """y = x W^T + s (x A^T) B^T, plus a bias; W [O, I] and the bias are frozen.

    Products with A [R, I] and B [O, R] are written so that the tokens are columns: with R rows
    instead of R columns they take a third of the time, and the last of them is added in place.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        # `y` is contiguous, so flattened it is a view, and the sum changes `y` itself.
        y.flatten(0, -2).addmm_((a @ x.flatten(0, -2).t()).t(), b.t(), alpha=scaling)
        return y

    @staticmethod
    def setup_context(
        ctx: _Context,
        inputs: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, float],
        _: Tensor,
    ) -> None:
        x, weight, _bias, a, b, ctx.scaling = inputs
        ctx.save_for_backward(x, weight, a, b)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _Context, grad: Tensor
    ) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x, weight, a, b = ctx.saved_tensors
        x_NI, grad_NO = x.flatten(0, -2), grad.flatten(0, -2)
        inner_RN = (b.t() @ grad_NO.t()).mul_(ctx.scaling)
        grad_a = inner_RN @ x_NI
        grad_b = ((a @ x_NI.t()).mul_(ctx.scaling) @ grad_NO).t()
        if not ctx.needs_input_grad[0]:
            return None, None, None, grad_a, grad_b, None
        grad_x = (grad_NO @ weight).addmm_(inner_RN.t(), a).view(x.shape)
        return grad_x, None, None, grad_a, grad_b, None
