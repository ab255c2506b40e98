"""What the manifest of an export says of its agents, read without PyTorch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waltzrl.agents.wording import pair_wording
from waltzrl.errors import CheckpointError
from waltzrl.foundation.files import Json, file_digest

ROLES = ("conversation", "feedback")
"""The roles of a pair, which every recipe has."""
ATTACKER = "attacker"
"""The role that a recipe may have beside them."""


def export_name(role: str) -> str:
    """Return the folder of an exported role; the requirement fixes these names."""
    return f"waltzrl_{role}_stage2"


CONVERSATION, FEEDBACK = map(export_name, ROLES)
REVISER = export_name("revision")
"""The folder of weights that only revise, which some pairs have beside the conversation agent's."""

EXPORT_MANIFEST = "manifest.json"
LIMITS = "max_new_tokens"
"""The key of the manifest for the tokens of each role's longest turn in training."""
REVIEWER_KEY = "reviewer"
"""The key of the manifest for the packaged reviewer that serves beside the conversation agent."""


def export_limits(folder: Path) -> Mapping[str, int]:
    """Return the tokens of the longest turn of each role; none where the manifest cannot be read.

    Whoever loads the weights checks the manifest, and tells what is damaged.
    """
    limits = _read_fact(folder, LIMITS)
    if not isinstance(limits, dict):
        return {}
    return {
        role: limit
        for role in ROLES
        if isinstance(limit := limits.get(role), int) and not isinstance(limit, bool) and limit > 0
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPair:
    """Who serves where an exported pair does."""

    conversation: str
    """The folder of the weights that draft."""
    feedback: str
    """The folder of the weights that review, unless `reviewer` does."""
    reviser: str | None
    """The folder of weights that only revise; None where those that draft revise too."""
    reviewer: str | None
    """The name of the packaged reviewer that measured better than the pair's feedback agent."""
    wording: str
    """The prompts of its agents; see `load_wording`."""
    limits: Mapping[str, int]
    """The tokens of the longest turn of each role in training, where they are known."""


def read_pair(folder: Path) -> ExportedPair:
    """Return the agents of an exported pair, of whose files none is checked or loaded."""
    reviewer, reviser = _read_fact(folder, REVIEWER_KEY), folder / REVISER
    return ExportedPair(
        conversation=str(folder / CONVERSATION),
        feedback=str(folder / FEEDBACK),
        reviser=str(reviser) if reviser.is_dir() else None,
        reviewer=reviewer if isinstance(reviewer, str) else None,
        wording=pair_wording(folder),
        limits=export_limits(folder),
    )


def _read_fact(folder: Path, key: str) -> Json:
    try:
        manifest: Json = json.loads((folder / EXPORT_MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest.get(key) if isinstance(manifest, dict) else None


def verify_export(folder: Path) -> None:
    """Check that every file of an export is present and unaltered.

    Raises:
        CheckpointError: a file is missing or altered; names it.
    """
    verify_manifest(folder, EXPORT_MANIFEST)


def verify_manifest(folder: Path, name: str) -> None:
    """Check that every listed file is present and unaltered.

    Raises:
        CheckpointError: a file, or the manifest itself, is missing or damaged; names the file.
    """
    manifest = folder / name
    try:
        files = json.loads(manifest.read_bytes())["files"]
        expected = {path: (entry["bytes"], entry["sha256"]) for path, entry in files.items()}
    except FileNotFoundError as error:
        raise CheckpointError(f"{manifest} is missing; this folder was never finished") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest} is damaged; use another copy") from error
    for relative, (size, digest) in expected.items():
        path = folder / relative
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; use another copy")
        if (actual := path.stat().st_size) != size:
            raise CheckpointError(f"{path} has {actual} bytes, need {size}; use another copy")
        if file_digest(path) != digest:
            raise CheckpointError(f"{path} was altered after it was saved; use another copy")
