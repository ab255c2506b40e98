"""What the manifest of an export says of its agents, read without PyTorch."""

import json
from collections.abc import Mapping
from pathlib import Path

from waltzrl.telemetry.files import Json
from waltzrl.training.settings import ROLES

EXPORT_MANIFEST = "manifest.json"
LIMITS = "max_new_tokens"
"""Key of the manifest: the role -> the tokens of its longest turn in training."""


def export_limits(folder: Path) -> Mapping[str, int]:
    """Return the tokens of the longest turn of each role; none where the export does not say.

    Exports of version 0.1 do not, and neither does a manifest that cannot be read: whoever loads
    the weights checks it, and tells what is damaged.
    """
    try:
        manifest: Json = json.loads((folder / EXPORT_MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    limits = manifest.get(LIMITS) if isinstance(manifest, dict) else None
    if not isinstance(limits, dict):
        return {}
    return {
        role: limit
        for role in ROLES
        if isinstance(limit := limits.get(role), int) and not isinstance(limit, bool) and limit > 0
    }
