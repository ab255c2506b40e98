"""Trained roles on disk: one checkpoint per saved step of a run, and the export of its end.

    step-000120/                    waltzrl_conversation_stage2/    one plain Hugging Face model
        conversation/               waltzrl_feedback_stage2/        per role, for any server
            optimizer.safetensors   adapters/conversation/          where adapters were trained:
        feedback/                   adapters/feedback/              they, in PEFT format, and their
        state.json                  base/                           base unless it is elsewhere
        MANIFEST.json               manifest.json

In a checkpoint a role is a model in Hugging Face format or a LoRA adapter in PEFT format, with its
tokenizer, chat template and, if the role learns, the state of its optimiser. Every rank writes its
part of these files, and any number of ranks reads them. What steps remember besides is a few
numbers in state.json. Whatever else a step needs is a function of its number, which is in the
folder's name. The manifest holds size and SHA-256 of every file and is written last; a folder gets
its name when it is complete, so a crash leaves no half checkpoint behind.
"""

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from peft import (
    PeftModel,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from waltzrl.agents.exports import EXPORT_MANIFEST, export_name, verify_manifest
from waltzrl.agents.wording import EXPORTED, Wording, save_wording
from waltzrl.errors import CheckpointError, InputError
from waltzrl.foundation.files import (
    Json,
    disk_errors,
    file_digest,
    sync_to_disk,
    whole_folder,
    write_json,
)
from waltzrl.policies.weights import (
    ADAPTER_WEIGHTS,
    BASE_DIGEST,
    base_digest,
    library_disk_errors,
    save_adapter,
)
from waltzrl.training import ranks
from waltzrl.training.parts import copy_own_rows, has_parts, save_parts
from waltzrl.training.sharding import gather_whole, load_whole

MANIFEST = "MANIFEST.json"
ADAPTERS, EXPORTED_BASE = "adapters", "base"
STATE, WEIGHTS, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"
NO_FACTS: Mapping[str, Json] = {}
STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleState:
    """What belongs to one role; restoring a checkpoint writes into these very objects."""

    model: PreTrainedModel | PeftModel
    """The role's own model, or the shared base with an adapter of the role's name."""
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer | None = None
    """The role's optimiser; None while the role is frozen."""
    base: str | None = None
    """The place of an adapter's base, as in `CausalLM.source`; None if the run made it."""


class Latest(NamedTuple):
    """The newest checkpoint that is whole."""

    path: Path | None
    """Folder of the checkpoint; None when there is none."""
    refused: tuple[str, ...]
    """One line for each newer checkpoint that is damaged, naming the file and the damage."""


def save_checkpoint(
    folder: Path, step: int, roles: Mapping[str, RoleState], state: Mapping[str, float]
) -> Path:
    """Save every role as `folder/step-000120`, whole or not at all.

    Every rank writes its part of what is split, and the first one all else.

    Args:
        folder: holds the checkpoints of one run.
        step: optimiser steps taken so far.
        roles: by name, such as `conversation`.
        state: numbers that later steps need.

    Raises:
        InputError: the folder is not writable, or the disk is full.
    """
    path = checkpoint_path(folder, step)
    with whole_folder(path) if ranks.is_first() else disk_errors(path) as unfinished:
        # Only the first rank has made the folder, into which the others write their parts too.
        shared = ranks.ask_first(lambda: unfinished)
        for name, role in roles.items():
            _save_role(shared, name, role)
        if unfinished is not None:
            # The parts of all ranks are there by now: `save_parts` ends with a barrier.
            write_json(unfinished / STATE, dict(state))
            write_manifest(unfinished, MANIFEST)
    return path


def read_state(path: Path) -> dict[str, float]:
    """Return the numbers of a whole checkpoint."""
    state: dict[str, float] = json.loads((path / STATE).read_bytes())
    return state


def load_checkpoint(path: Path, roles: Mapping[str, RoleState]) -> None:
    """Restore every role.

    Args:
        path: a whole checkpoint, as `latest_good` or `describe_damage` found it; its hashes are not
            checked again.
        roles: by name, the ones that were saved.

    Raises:
        CheckpointError: the checkpoint has other roles, or a role was frozen that is to learn.
    """
    saved, given = {entry.name for entry in path.iterdir() if entry.is_dir()}, set(roles)
    if saved != given:
        raise CheckpointError(f"{path} has roles {sorted(saved)}, need {sorted(given)}")
    for name, role in roles.items():
        _load_role(path / name, name, role)


def latest_good(folder: Path) -> Latest:
    """Return the newest checkpoint whose files are all present and unaltered."""
    refused: list[str] = []
    for path in reversed(_list_checkpoints(folder)):
        if not (damage := describe_damage(path)):
            return Latest(path, tuple(refused))
        refused.append(damage)
    return Latest(None, tuple(refused))


def describe_damage(path: Path) -> str:
    """Return a line that names the damage of a checkpoint; empty if it is whole."""
    try:
        verify_manifest(path, MANIFEST)
    except CheckpointError as error:
        return f"{path.name} is refused: {error}"
    return ""


def prune_checkpoints(
    folder: Path, step: int, keep_last: int, milestones: Collection[int] = ()
) -> None:
    """Delete all checkpoints up to `step` but the last `keep_last` and those of milestone steps.

    Args:
        folder: holds the checkpoints of one run.
        step: of the checkpoint just saved; later ones were refused as damaged and will be saved
            again, so they do not count among the last.
        keep_last: 1 or more; 2 or more leaves one to fall back to.
        milestones: steps to keep for good, such as the last of each epoch.
    """
    # What a crash left of saving, or of the deleting below.
    for unfinished in folder.glob(".step-*.part"):
        shutil.rmtree(unfinished)
    for old in find_outdated(map(step_of, _list_checkpoints(folder)), step, keep_last, milestones):
        path = checkpoint_path(folder, old)
        # Renamed first: a crash while deleting must not leave a damaged checkpoint.
        shutil.rmtree(path.rename(folder / f".{path.name}.part"))


def find_outdated(
    steps: Iterable[int], step: int, keep_last: int, milestones: Collection[int]
) -> list[int]:
    """Return the steps whose checkpoints `prune_checkpoints` deletes."""
    saved = sorted(each for each in steps if each <= step)
    return [each for each in saved[:-keep_last] if each not in milestones]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the place of the checkpoint after so many steps."""
    return folder / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """Return how many steps precede a checkpoint."""
    return int(path.name.removeprefix("step-"))


def export_roles(
    roles: Mapping[str, RoleState],
    folder: Path,
    wording: Wording,
    facts: Mapping[str, Json] = NO_FACTS,
) -> None:
    """Write every role as a plain model, and their prompts, replacing an earlier export.

    A role that is an adapter is merged into a float32 copy of its base, so that no small change is
    lost, and written as an adapter too, from which training can continue. The copies are made in
    CPU memory, one after the other: 4 bytes for each parameter. The first rank writes what is
    whole, as it does in a checkpoint.

    Args:
        roles: by name.
        folder: becomes the export, whole or not at all.
        wording: of both roles.
        facts: of the run, which the manifest repeats.

    Raises:
        InputError: the folder holds something else, or the disk is full.
    """
    require_exportable(folder)
    with whole_folder(folder) if ranks.is_first() else disk_errors(folder) as unfinished:
        shared = ranks.ask_first(lambda: unfinished)
        for name, role in roles.items():
            model = role.model
            # A base with adapters is whole on every rank, so the first one merges alone.
            if unfinished is not None and isinstance(model, PeftModel):
                model = _cpu_copy(model, torch.float32).merge_and_unload(adapter_names=[name])
            plain = RoleState(model=model, tokenizer=role.tokenizer)
            _save_role(shared, export_name(name), plain)
            del model, plain  # or the next role's copy would be made beside this one's
        if unfinished is not None:
            _export_adapters(unfinished, roles)
            save_wording(wording, unfinished / EXPORTED)
            write_manifest(unfinished, EXPORT_MANIFEST, facts)


def _cpu_copy(model: PeftModel, dtype: torch.dtype | None = None) -> PeftModel:
    """Copy a model into CPU memory, without a copy on its device in between.

    Args:
        model: is left as it is.
        dtype: of the copy's parameters; None keeps theirs. Buffers stay exact.
    """
    copies: dict[int, Tensor] = {id(buffer): buffer.cpu().clone() for buffer in model.buffers()}
    for parameter in model.parameters():
        data = parameter.detach().to("cpu", dtype, copy=True)
        copies[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, copies)  # takes these for the tensors' copies


def _export_adapters(folder: Path, roles: Mapping[str, RoleState]) -> None:
    """Write the adapters among the roles, and the base that they share where only the run has it.

    Raises:
        OSError: the disk is full.
    """
    for name, role in roles.items():
        if not isinstance(role.model, PeftModel):
            continue
        export_adapter(folder / ADAPTERS / name, name, role)
        if role.base is None and not (folder / EXPORTED_BASE).exists():
            bare = RoleState(model=_cpu_copy(role.model).unload(), tokenizer=role.tokenizer)
            _save_role(folder, EXPORTED_BASE, bare)
            del bare


def export_adapter(folder: Path, name: str, role: RoleState) -> None:
    """Write the adapter `name` of a role in PEFT format, with the digest of its base.

    Raises:
        OSError: the disk is full.
    """
    # A copy, because the model may go on learning with its own.
    config = copy.copy(role.model.peft_config[name])
    config.base_model_name_or_path = role.base
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)  # of a set, in any order
    config.save_pretrained(str(folder))
    # By default PEFT would ask the hub whether the vocabulary of the base was changed.
    tensors = get_peft_model_state_dict(role.model, adapter_name=name, save_embedding_layers=False)
    metadata = {"format": "pt", BASE_DIGEST: base_digest(role.model)}
    (folder / ADAPTER_WEIGHTS).write_bytes(_in_order(save(tensors, metadata)))


def _in_order(safetensors: bytes) -> bytes:
    """Sort the keys of the file's header, which are in any order: equal weights, equal bytes."""
    # A file is the header's length in 8 bytes, the header as JSON, and the tensors.
    length = int.from_bytes(safetensors[:8], "little")
    header = json.loads(safetensors[8 : 8 + length])
    # Padded to its old length, which keeps the tensors behind it aligned.
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode().ljust(length)
    return len(text).to_bytes(8, "little") + text + safetensors[8 + length :]


def require_exportable(folder: Path) -> None:
    """Check that the folder is missing, or holds an earlier export.

    Raises:
        InputError: the folder holds something else.
    """
    if folder.exists() and not (folder / EXPORT_MANIFEST).exists():
        raise InputError(f"{folder} exists and is not an export; choose a new folder")


def weights_digest(model: torch.nn.Module) -> str:
    """Return a SHA-256 over all tensors of the model: equal only if they are bit-identical."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = gather_whole(tensor.detach()).cpu().contiguous().reshape(-1)
        # As bytes, because NumPy has no bfloat16.
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if STEP.fullmatch(p.name)), key=step_of)


def _save_role(folder: Path | None, name: str, role: RoleState) -> None:
    """Save one role as `folder/name`, in which every rank that holds a part of it writes.

    Raises:
        OSError: the disk is full.
    """
    assert folder is not None
    inside, model = folder / name, role.model
    parameters = dict(model.named_parameters())
    split = has_parts(parameters.values())
    if ranks.is_first():
        if isinstance(model, PeftModel):
            save_adapter(model, name, folder)
        elif split:
            # All but the weights, which the ranks write together below.
            model.config.save_pretrained(inside)
            model.generation_config.save_pretrained(inside)
        else:
            with library_disk_errors():
                model.save_pretrained(inside)
        with library_disk_errors():
            role.tokenizer.save_pretrained(inside)
    if split:
        save_parts(inside / WEIGHTS, parameters)
    if role.optimizer is not None:
        state = role.optimizer.state_dict()["state"]
        # A number is the place of a parameter in the order in which AdamW was given them.
        moments = {f"{number}.{key}": v for number, own in state.items() for key, v in own.items()}
        save_parts(inside / OPTIMIZER, moments)


def _load_role(folder: Path, name: str, role: RoleState) -> None:
    model = role.model
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"), name)
    else:
        # It only maps the file, of which each rank reads what it holds.
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        load_whole(model, dict(saved.named_parameters()))
    if role.optimizer is not None:
        if not (folder / OPTIMIZER).exists():
            raise CheckpointError(
                f"{folder} was saved while {name} was frozen; it cannot continue to learn"
            )
        _load_moments(folder / OPTIMIZER, role.optimizer)


def _load_moments(file: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restore an optimiser's state; its settings are the run's.

    The moments get their parameters' layout in memory, which fused AdamW takes for granted, and
    of a sharded parameter only this rank's part.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    with safe_open(file, framework="pt") as stored:
        for entry in stored.keys():  # noqa: SIM118 - it is no mapping
            number, key = int(entry.partition(".")[0]), entry.partition(".")[2]
            moment = stored.get_slice(entry)
            # The moments have the shape of their parameter; the count of steps is a scalar.
            if moment.get_shape() == [*parameters[number].shape]:
                own = torch.empty_like(parameters[number])
                copy_own_rows(own, moment)
            else:
                own = stored.get_tensor(entry)
            state.setdefault(number, {})[key] = own
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def write_manifest(folder: Path, name: str, facts: Mapping[str, Json] = NO_FACTS) -> None:
    """Flush every file below the folder to the disk and list it in the manifest `name`.

    Args:
        folder: is otherwise whole.
        name: of the manifest, such as that of an export.
        facts: of the run, which the manifest repeats.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != name]
    # Folders too, or a power failure could lose the names of files that are on the disk.
    for path in [*files, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_to_disk(path)
    listed: dict[str, Json] = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_digest(path),
        }
        for path in files
    }
    write_json(folder / name, {**facts, "files": listed})
