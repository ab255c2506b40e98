"""The two trained agents as plain Hugging Face models, ready for any server.

waltzrl_conversation_stage2/    config, safetensors, tokenizer, chat template, generation config
waltzrl_feedback_stage2/
manifest.json                   size and SHA-256 of each file
"""

import copy
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from waltzrl.errors import InputError
from waltzrl.telemetry.files import whole_folder
from waltzrl.training.checkpoints import RoleState, save_role
from waltzrl.training.manifest import verify_manifest, write_manifest

CONVERSATION, FEEDBACK = "waltzrl_conversation_stage2", "waltzrl_feedback_stage2"
"""The names that the requirement gives to the exported agents."""
MANIFEST = "manifest.json"


def export_pair(conversation: RoleState, feedback: RoleState, folder: Path) -> None:
    """Write both agents to the folder, in place of an earlier export.

    Args:
        conversation: its model, or the shared base with an adapter named `conversation`, which is
            then merged into a copy of the base.
        feedback: the same for `feedback`.
        folder: becomes the export, whole or not at all.

    Raises:
        InputError: the folder holds something else, or the disk is full.
    """
    require_place(folder)
    with whole_folder(folder) as unfinished:
        for name, role, exported in (
            ("conversation", conversation, CONVERSATION),
            ("feedback", feedback, FEEDBACK),
        ):
            alone = RoleState(model=_merged(role.model, name), tokenizer=role.tokenizer)
            save_role(unfinished, exported, alone)
        write_manifest(unfinished, MANIFEST)


def require_place(folder: Path) -> None:
    """Make sure that an export may take this place: there is nothing, or an earlier export.

    Raises:
        InputError: the folder holds something else.
    """
    if folder.exists() and not (folder / MANIFEST).exists():
        raise InputError(f"{folder} is there and is no export; choose a new folder")


def verify_export(folder: Path) -> None:
    """Check that every file of an export is there and unaltered.

    Raises:
        CheckpointError: one is not; names the file.
    """
    verify_manifest(folder, MANIFEST)


def _merged(model: PreTrainedModel | PeftModel, adapter: str) -> PreTrainedModel:
    """Return the model itself, or a copy of the shared base with one adapter merged into it."""
    if not isinstance(model, PeftModel):
        return model
    return copy.deepcopy(model).merge_and_unload(adapter_names=[adapter])
