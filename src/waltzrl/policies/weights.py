"""Weights from disk or the Hugging Face hub, as two full models or one base with two adapters."""

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from waltzrl.errors import CheckpointError, InputError, MissingExtraError
from waltzrl.foundation.files import hold_lock, whole_folder
from waltzrl.policies.compute import require_memory
from waltzrl.policies.gguf import GgufFile, find_gguf

try:
    import torch
    from accelerate import init_empty_weights
    from peft import (
        LoraConfig,
        PeftModel,
        get_peft_model,
        get_peft_model_state_dict,
        set_peft_model_state_dict,
    )
    from safetensors import SafetensorError, safe_open
    from torch import Tensor
    from torch.nn import Embedding, Linear, Parameter
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.utils import logging as transformers_logging

    from waltzrl.policies.blocks import fuse_adapters, fuse_blocks
except ImportError as missing:
    raise MissingExtraError("a local policy", "PyTorch", "train") from missing

transformers_logging.disable_progress_bar()  # a training run and a server show their own

logger = logging.getLogger(__name__)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER_CONFIG = "tokenizer_config.json"
BASE_DIGEST = "base_sha256"
"""Key in the metadata of an exported adapter's weights: `base_digest` of what it was trained on."""
BASE_TITLE = "waltzrl_base"
"""Key in the config of a dequantised model, and of all that is made from it: the file's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLM:
    """A model and the tokenizer that belongs to it."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    source: str | None = None
    """The exact place of these weights (those of the base, if there are adapters): a folder, a GGUF
    file, `package:NAME` or a name on the hub; None when they are in this process only.
    """

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends a turn: the generation config's, and the tokenizer's."""
        return end_ids(self.model, self.tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of one role: a model of its own, or an adapter on a shared base."""

    causal_lm: CausalLM
    adapter: str | None = None
    """The name of the adapter; None is the model itself, or the bare base."""


def load_causal_lm(
    name_or_path: str, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """Load a causal LM and its tokenizer, in evaluation mode.

    Args:
        name_or_path: a folder in Hugging Face format, a GGUF file, `package:NAME` of a package that
            holds one, a name on the hub, or a folder with an adapter in PEFT format, which is
            merged into the base that it names. A GGUF file is dequantised once, into the cache.
        device: to load to.
        dtype: of the weights.

    Raises:
        InputError: the package is not installed, the memory is too small, or the cache cannot be
            written.
        CheckpointError: there is no such model, or a file of it is missing, truncated or altered,
            or the adapter is of another base.
    """
    base = _read_base_of_adapter(name_or_path)
    if base is None:
        causal_lm = _load_stored_model(name_or_path, dtype)
    else:
        causal_lm = _merge_adapter(Path(name_or_path), base, dtype)
    model = causal_lm.model.to(device).eval()
    fuse_blocks(model)
    if model.device.type == "cpu":
        store_transposed(model)
    return replace(causal_lm, model=model)


def map_causal_lm(name_or_path: str) -> CausalLM:
    """Load a causal LM without reading its weights: they stay in the mapped file, as it has them.

    Whoever copies a part of a weight reads that part only. See `load_causal_lm`; what is not stored
    in one safetensors folder is read whole.
    """
    base = _read_base_of_adapter(name_or_path)
    if base is not None:
        causal_lm = _merge_adapter(Path(name_or_path), base, torch.float32)
    else:
        causal_lm = _load_stored_model(name_or_path, "auto")
        model = causal_lm.model
        if model.dtype != torch.float32:
            _make_buffers_exact(model)
            model.config.dtype = torch.float32  # of what learns, and is exported
    causal_lm.model.eval()
    fuse_blocks(causal_lm.model)
    return causal_lm


def _make_buffers_exact(model: PreTrainedModel) -> None:
    """Make the buffers of a model in another type as they are in one in float32."""
    with init_empty_weights():  # parameters only
        exact = dict(
            AutoModelForCausalLM.from_config(model.config, dtype=torch.float32).named_buffers()
        )
    for name, buffer in model.named_buffers():
        buffer.data = exact[name].data


def load_config(name_or_path: str) -> PretrainedConfig:
    """Load the config of a model that is on this machine, without its weights.

    Raises:
        OSError: there is none here.
        ValueError: its architecture is unknown.
        InputError, CheckpointError: as in `load_causal_lm`.
    """
    name_or_path = _read_base_of_adapter(name_or_path) or name_or_path
    file = find_gguf(name_or_path)
    if file is None or file.cached.is_dir():
        place = name_or_path if file is None else file.cached
        return AutoConfig.from_pretrained(place, local_files_only=True)
    return AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name)


def _load_stored_model(name_or_path: str, dtype: torch.dtype | Literal["auto"]) -> CausalLM:
    """Load a whole model; "auto" is the type in which it is stored, and reads nothing yet."""
    file = find_gguf(name_or_path)
    folder = Path(name_or_path) if file is None else _find_dequantised(file)
    if folder.is_dir():
        size = sum(weights.stat().st_size for weights in folder.glob("*.safetensors"))
        if dtype != "auto":
            require_memory(size, name_or_path)
        _check_weights(folder)
    causal_lm = _load_pretrained(name_or_path if file is None else str(folder), dtype)
    if file is None:
        source = str(folder.resolve()) if folder.is_dir() else name_or_path
    else:
        source, causal_lm.model.config.name_or_path = file.source, file.title
        logger.info("%s is %s", name_or_path, file.title)
    return replace(causal_lm, source=source)


def _read_base_of_adapter(name_or_path: str) -> str | None:
    """Return the name of the base of the adapter in a folder; None where there is no adapter."""
    config = Path(name_or_path) / ADAPTER_CONFIG
    if not config.is_file():
        return None
    try:
        base = json.loads(config.read_bytes()).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    if not isinstance(base, str):
        raise CheckpointError(
            f"{config} names no base_model_name_or_path; give the merged model, or copy the"
            " adapter again"
        )
    return base


def _merge_adapter(folder: Path, base: str, dtype: torch.dtype) -> CausalLM:
    """Merge an adapter into its base in float32, so that no small change is lost.

    A tokenizer in the adapter's folder has the chat template that the adapter was trained with.

    Raises:
        CheckpointError: the adapter, its tokenizer or its base is missing or damaged.
    """
    adapted = load_adapters(_load_stored_model(base, torch.float32), {"merged": folder})
    assert isinstance(adapted.model, PeftModel)
    model = adapted.model.merge_and_unload()
    narrow_parameters(model, dtype)
    tokenizer = adapted.tokenizer
    if (folder / TOKENIZER_CONFIG).is_file():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: the adapter's tokenizer could not be loaded ({_first_line(error)});"
                f" copy the adapter again, or delete its {TOKENIZER_CONFIG} to use the base's"
            ) from error
    return replace(adapted, model=model, tokenizer=tokenizer, source=str(folder.resolve()))


def _find_dequantised(file: GgufFile) -> Path:
    """Return the folder in the cache with the model in float32, which one process makes."""
    folder = file.cached
    if folder.is_dir():
        return folder
    require_memory(file.parameters * torch.float32.itemsize, str(file.path))
    with hold_lock(folder.with_name(f"{folder.name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not folder.is_dir():
            logger.info("dequantising %s once, into %s", file.path, folder)
            _dequantise_file(file, folder)
    return folder


def _dequantise_file(file: GgufFile, folder: Path) -> None:
    try:
        from transformers import GgufConfig
    except ImportError as missing:
        raise MissingExtraError("a GGUF file", "transformers 5.23", "smollm2") from missing
    causal_lm = _load_pretrained(
        str(file.path.parent),
        torch.float32,
        file=file,
        quantization_config=GgufConfig(dequantize=True),
    )
    setattr(causal_lm.model.config, BASE_TITLE, file.title)
    with whole_folder(folder) as unfinished, library_disk_errors():
        causal_lm.model.save_pretrained(unfinished)
        causal_lm.tokenizer.save_pretrained(unfinished)


@contextmanager
def library_disk_errors() -> Iterator[None]:
    """Raise what safetensors and tokenizers say of a full disk as an OSError.

    They are written in Rust: the one has an error of its own, the other raises a bare Exception.
    """
    try:
        yield
    except Exception as error:
        if "(os error" not in str(error):  # how Rust ends what the operating system said
            raise
        raise OSError(str(error)) from error


def _load_pretrained(
    place: str,
    dtype: torch.dtype | Literal["auto"],
    *,
    file: GgufFile | None = None,
    **options: object,
) -> CausalLM:
    """Load what transformers can load from a folder, from the hub, or from a file in a folder."""
    named = {} if file is None else {"gguf_file": file.path.name}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, output_loading_info=True, **named, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(place, **named)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        # RuntimeError: shapes of another config; KeyError: metadata that a GGUF file lacks.
        reason = _first_line(error)
        if file is not None:
            raise CheckpointError(
                f"{file.path}: a GGUF file of the architecture {file.architecture!r} that cannot be"
                f" dequantised ({reason}); give a folder in Hugging Face format"
            ) from error
        raise CheckpointError(
            f"{place}: no causal language model could be loaded ({reason});"
            " give a folder in Hugging Face format, a GGUF file or a name on the hub"
        ) from error
    # Transformers only warns of these, and leaves random numbers in their place.
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise CheckpointError(
            f"{place if file is None else file.path}: missing weights: {missing[0]} and"
            f" {len(missing) - 1} more; save the checkpoint again or load an earlier one"
        )
    return CausalLM(model=model, tokenizer=tokenizer)


def _first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its kind if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def store_transposed(model: PreTrainedModel) -> None:
    """Store the weights of linear layers transposed in memory, in place; their shapes stay.

    On a CPU the product with few rows, as in decoding, is up to twice as fast, and with many rows
    as fast as before. Copies, gradients and the moments of AdamW have the same layout. A weight
    that is an embedding too is not, because there single rows are read. All weights are copied:
    with a single one in the file that they were loaded from, all that was read of it would stay in
    memory.
    """
    embeddings = [module.weight for module in model.modules() if isinstance(module, Embedding)]
    transposed = {
        module.weight
        for module in model.modules()
        # Not `in`, which would compare the numbers of two tensors.
        if isinstance(module, Linear) and all(module.weight is not table for table in embeddings)
    }
    for parameter in model.parameters():
        values = parameter.data
        parameter.data = values.t().contiguous().t() if parameter in transposed else values.clone()


def copy_model(model: PreTrainedModel, copy_values: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """Copy a model, the values of each parameter with `copy_values`."""
    copies: dict[int, object] = {
        id(parameter): Parameter(copy_values(parameter.detach()), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, copies)  # takes these for the parameters' copies


def narrow_parameters(model: PreTrainedModel | PeftModel, dtype: torch.dtype) -> None:
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
    with _ignore_deprecations_of_peft():
        model = get_peft_model(causal_lm.model, config, adapter_name=roles[0])
    for role in roles[1:]:
        model.add_adapter(role, config)
    # PEFT leaves only the gradients of the active adapter on.
    model.set_requires_grad(roles)
    fuse_adapters(model)
    return replace(causal_lm, model=model.eval())


def copy_adapter(causal_lm: CausalLM, source: str, names: Sequence[str]) -> CausalLM:
    """Add copies of an adapter that the model has, under other names."""
    model = causal_lm.model
    assert isinstance(model, PeftModel)
    learned = get_peft_model_state_dict(model, adapter_name=source)
    for name in names:
        model.add_adapter(name, model.peft_config[source])
        set_peft_model_state_dict(model, learned, adapter_name=name)
    model.set_requires_grad([source, *names])
    return causal_lm


def save_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Save one adapter in PEFT format, as `folder/name`.

    Raises:
        OSError: the disk is full.
    """
    with library_disk_errors():
        # Otherwise PEFT asks the hub whether the base has another vocabulary than this model.
        model.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
    (folder / "README.md").unlink()  # an empty form that PEFT adds


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
        with _ignore_deprecations_of_peft():
            model = PeftModel.from_pretrained(
                causal_lm.model, str(folders[first]), first, torch_device=str(device)
            )
            for name in others:
                model.load_adapter(str(folders[name]), name, torch_device=str(device))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: shapes of another base
        reason = _first_line(error)
        raise CheckpointError(
            f"{folders[first].parent}: the adapters could not be loaded ({reason});"
            " export them again"
        ) from error
    model.set_requires_grad(list(folders))
    fuse_adapters(model)
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
def activate_adapter(
    model: PreTrainedModel | PeftModel, adapter: str | None
) -> Iterator[PreTrainedModel]:
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
def _ignore_deprecations_of_peft() -> Iterator[None]:
    """Ignore that PEFT uses a deprecated name of transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _check_base(adapter: Path, digest: str, source: str | None) -> None:
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="pt") as weights:
        # An adapter that others have made says nothing of its base, and is taken as it is.
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
