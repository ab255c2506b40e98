"""Everything a run needs to go on as if it had never stopped, as one folder per saved step.

    step-000120/
        conversation/      the role in Hugging Face format, or its LoRA adapter in PEFT format,
            optimizer.pt   with tokenizer, chat template and, if the role learns, its optimiser
        feedback/
        MANIFEST.json      size and SHA-256 of each file, written last

Whatever else a step needs is a function of its number, and that is in the folder's name. A folder
gets its name when it is complete, so a crash leaves no half checkpoint behind.
"""

import hashlib
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from waltzrl.errors import CheckpointError
from waltzrl.telemetry.files import whole_folder
from waltzrl.training.manifest import verify_manifest, write_manifest

MANIFEST = "MANIFEST.json"
STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleState:
    """What belongs to one role; restoring a checkpoint writes into these very objects."""

    model: PreTrainedModel | PeftModel
    """The role's own model, or the shared base in which an adapter bears the role's name."""
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer | None = None
    """None while the role is frozen."""


class Latest(NamedTuple):
    """The newest checkpoint that is whole."""

    path: Path | None
    """None when there is none."""
    refused: tuple[str, ...]
    """One line for each newer checkpoint that is damaged, saying which file and how."""


def save_checkpoint(folder: Path, step: int, roles: Mapping[str, RoleState]) -> Path:
    """Save every role as `folder/step-000120`, whole or not at all.

    Args:
        folder: holds the checkpoints of one run.
        step: optimiser steps taken so far.
        roles: by name, such as `conversation`.

    Raises:
        InputError: the folder cannot be written to, or the disk is full.
    """
    path = folder / f"step-{step:06d}"
    with whole_folder(path) as unfinished:
        for name, role in roles.items():
            save_role(unfinished, name, role)
        write_manifest(unfinished, MANIFEST)
    return path


def load_checkpoint(path: Path, roles: Mapping[str, RoleState]) -> None:
    """Put every role back to where it was.

    Args:
        path: a whole checkpoint, as `latest_good` finds it; its hashes are not checked again.
        roles: by name, the ones that were saved.

    Raises:
        CheckpointError: the checkpoint is of other roles, or of a frozen role that is to learn.
    """
    saved, given = {entry.name for entry in path.iterdir() if entry.is_dir()}, set(roles)
    if saved != given:
        raise CheckpointError(f"{path} has roles {sorted(saved)}, need {sorted(given)}")
    for name, role in roles.items():
        _load_role(path / name, name, role)


def latest_good(folder: Path) -> Latest:
    """Find the newest checkpoint whose files are all there and unaltered."""
    refused = []
    for path in reversed(_checkpoints(folder)):
        try:
            verify_manifest(path, MANIFEST)
        except CheckpointError as error:
            refused.append(f"{path.name} is refused: {error}")
        else:
            return Latest(path, tuple(refused))
    return Latest(None, tuple(refused))


def prune(folder: Path, step: int, keep_last: int, milestones: Collection[int] = ()) -> None:
    """Delete all checkpoints up to `step` but the last `keep_last` and those of milestone steps.

    Args:
        folder: holds the checkpoints of one run.
        step: of the checkpoint just saved; later ones were refused as damaged and will be made
            again, so they do not count among the last.
        keep_last: 1 or more; 2 or more leaves one to fall back to.
        milestones: steps to keep for good, such as the last of each epoch.
    """
    for leftover in folder.glob(".step-*.part"):
        shutil.rmtree(leftover)
    saved = [path for path in _checkpoints(folder) if _step(path) <= step]
    for path in saved[:-keep_last]:
        if _step(path) not in milestones:
            shutil.rmtree(path.rename(folder / f".{path.name}.part"))


def save_role(folder: Path, name: str, role: RoleState) -> None:
    """Save one role as `folder/name`.

    Raises:
        OSError: the disk is full.
    """
    try:
        if isinstance(role.model, PeftModel):
            role.model.save_pretrained(
                str(folder), selected_adapters=[name], save_embedding_layers=False
            )
            (folder / "README.md").unlink()  # an empty form that PEFT adds
        else:
            role.model.save_pretrained(folder / name)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(str(error)) from error
    role.tokenizer.save_pretrained(folder / name)
    if role.optimizer is not None:
        _save_state(role.optimizer.state_dict(), folder / name / "optimizer.pt")


def weights_digest(model: torch.nn.Module) -> str:
    """Return a SHA-256 over all tensors of the model: equal only if they are bit-identical."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if STEP.fullmatch(p.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _save_state(state: Mapping[str, object], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # how torch reports a full disk
        raise OSError(f"{path.name} was cut short") from error


def _load_role(folder: Path, name: str, role: RoleState) -> None:
    model = role.model
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"), name)
    else:
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
    if role.optimizer is not None:
        if not (folder / "optimizer.pt").exists():
            raise CheckpointError(f"{folder} was saved while {name} was frozen; it cannot learn on")
        state = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
        role.optimizer.load_state_dict(state)
