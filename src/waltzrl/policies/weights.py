"""Weights from disk or the Hugging Face hub, as two full models or one base with two adapters."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from waltzrl.errors import CheckpointError, InputError, MissingExtraError

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors import SafetensorError, safe_open
    from torch.nn import Embedding, Linear, Parameter
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.utils import logging as transformers_logging

    from waltzrl.policies.blocks import fuse
except ImportError as missing:
    raise MissingExtraError("a local policy", "PyTorch", "train") from missing

transformers_logging.disable_progress_bar()  # a training run and a server show their own

ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_DIGEST = "base_sha256"
"""Key in the metadata of an exported adapter's weights: `base_digest` of what it was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLM:
    """A model and the tokenizer that belongs to it."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    source: str | None = None
    """The folder, or the name on the hub, of exactly these weights (of the base, if there are
    adapters); None when they are in this process only."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends a turn: the generation config's, and the tokenizer's."""
        return end_ids(self.model, self.tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of one role: a model of its own, or an adapter on a shared base."""

    causal_lm: CausalLM
    adapter: str | None = None
    """None is the model itself, or the bare base."""


def load_causal_lm(
    name_or_path: str, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """Load a causal LM and its tokenizer, in evaluation mode.

    Raises:
        CheckpointError: there is no such model, or a file of it is missing, truncated or altered.
    """
    folder = Path(name_or_path)
    if folder.is_dir():
        _check_weights(folder)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            name_or_path, dtype=dtype, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: shapes of another config
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{name_or_path}: no causal language model could be loaded ({reason});"
            " give a folder in Hugging Face format or a name on the hub"
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise CheckpointError(
            f"{name_or_path}: missing weights: {missing[0]} and {len(missing) - 1} more;"
            " save the checkpoint again or load an earlier one"
        )
    model = model.to(device).eval()
    fuse(model)
    if model.device.type == "cpu":
        store_transposed(model)
    source = str(folder.resolve()) if folder.is_dir() else name_or_path
    return CausalLM(model=model, tokenizer=tokenizer, source=source)


def store_transposed(model: PreTrainedModel) -> None:
    """Store the weights of linear layers transposed in memory, in place; their shapes stay.

    On a CPU the product with few rows, as in decoding, is up to twice as fast, and with many rows
    as fast as before. Copies, gradients and the moments of AdamW have the same layout. A weight
    that is an embedding too stays as it is, because there single rows are read.
    """
    embeddings = [module.weight for module in model.modules() if isinstance(module, Embedding)]
    for module in model.modules():
        if isinstance(module, Linear) and all(module.weight is not table for table in embeddings):
            module.weight.data = module.weight.data.t().contiguous().t()


def narrow(model: PreTrainedModel | PeftModel, dtype: torch.dtype) -> None:
    """Convert the parameters to `dtype`, in place, and drop their gradients.

    Unlike `model.to(dtype)` this leaves the buffers exact: rotary frequencies in bfloat16 would
    put every later token at a wrong place.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
        parameter.grad = None


def add_adapters(causal_lm: CausalLM, roles: Sequence[str], rank: int = 16) -> CausalLM:
    """Freeze the model and add one LoRA adapter per role to all its linear layers.

    Args:
        causal_lm: the shared base; its modules are changed in place.
        roles: names of the adapters, at least one; with all of them off, the base is the
            reference.
        rank: of each adapter; what it adds is doubled (alpha is twice the rank).
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,  # sampling and learning must see the same policy
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with _deprecations_of_peft():
        model = get_peft_model(causal_lm.model, config, adapter_name=roles[0])
    for role in roles[1:]:
        model.add_adapter(role, config)
    model.set_requires_grad(roles)
    return replace(causal_lm, model=model.eval())


def load_adapters(causal_lm: CausalLM, folders: Mapping[str, Path]) -> CausalLM:
    """Freeze the model and put saved LoRA adapters on it.

    Args:
        causal_lm: the shared base; its modules are changed in place.
        folders: of the adapters in PEFT format, by the names that they get; at least one.

    Raises:
        CheckpointError: an adapter is missing or damaged, or was trained on another base.
    """
    digest = base_digest(causal_lm.model)
    (first, *others), device = folders, causal_lm.model.device
    try:
        for folder in dict.fromkeys(folders.values()):
            _check_weights(folder)
            _check_base(folder, digest, causal_lm.source)
        with _deprecations_of_peft():
            model = PeftModel.from_pretrained(
                causal_lm.model, str(folders[first]), first, torch_device=str(device)
            )
            for name in others:
                model.load_adapter(str(folders[name]), name, torch_device=str(device))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: shapes of another base
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{folders[first].parent}: the adapters could not be loaded ({reason});"
            " export them again"
        ) from error
    model.set_requires_grad(list(folders))
    return replace(causal_lm, model=model.eval())


def base_digest(model: PreTrainedModel | PeftModel) -> str:
    """Return a SHA-256 over the base's weights, rounded to bfloat16.

    So it is the same in every number format that a run may hold them in, and with adapters on.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    digest = hashlib.sha256()
    named = {name.replace(".base_layer.", "."): p for name, p in base.named_parameters()}
    for name, parameter in sorted(named.items()):
        if ".lora_" not in name:
            digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
            rounded = parameter.detach().to("cpu", torch.bfloat16).contiguous().reshape(-1)
            digest.update(rounded.view(torch.uint8).numpy())
    return digest.hexdigest()


def role_parameters(
    model: PreTrainedModel | PeftModel, adapter: str | None
) -> list[tuple[str, Parameter]]:
    """Return what a role learns, by name: its adapter's weights, or every weight of a full model.

    Chosen by name because PEFT turns gradients off for adapters that are not active.
    """
    named = list(model.named_parameters())
    return named if adapter is None else [(name, p) for name, p in named if f".{adapter}." in name]


@contextmanager
def activated(model: PreTrainedModel | PeftModel, adapter: str | None) -> Iterator[PreTrainedModel]:
    """Activate one role's adapter inside the block; None switches all adapters off.

    Gradients of every adapter stay on: PEFT would turn off those of the others.

    Raises:
        InputError: the model has no such adapter.
    """
    if not isinstance(model, PeftModel):
        if adapter is not None:
            raise InputError(f"adapter {adapter!r} is unknown: the model has no adapters")
        yield model
        return
    names = list(model.peft_config)
    if adapter is not None and adapter not in names:
        raise InputError(f"no adapter {adapter!r}; the model has {', '.join(names)}")
    before = model.active_adapter
    try:
        if adapter is None:
            with model.disable_adapter():
                yield model.get_base_model()
        else:
            model.set_adapter(adapter)
            model.set_requires_grad(names)
            yield model.get_base_model()
    finally:
        model.set_adapter(before)
        model.set_requires_grad(names)


def end_ids(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Return every token that ends a turn: the generation config's, and the tokenizer's."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*several, tokenizer.eos_token_id] if token is not None)


@contextmanager
def _deprecations_of_peft() -> Iterator[None]:
    """Ignore that PEFT uses a deprecated name of transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _check_base(adapter: Path, digest: str, source: str | None) -> None:
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="pt") as weights:
        trained_on = (weights.metadata() or {}).get(BASE_DIGEST, digest)
    if trained_on != digest:
        raise CheckpointError(
            f"{adapter} was trained on another base than {source} (SHA-256 {trained_on[:12]}, got"
            f" {digest[:12]}); set models.base to the base that it was trained on"
        )


def _check_weights(folder: Path) -> None:
    """Open every safetensors file of the folder, which compares its length with its header."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            raise CheckpointError(
                f"{file}: the weights are truncated or altered ({error});"
                " copy the file again or load an earlier checkpoint"
            ) from error
