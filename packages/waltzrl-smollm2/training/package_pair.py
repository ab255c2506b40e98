"""Write the pair that this package ships: adapters in float16, and their prompts.

    python training/package_pair.py AGENTS [REVISING]

AGENTS is what `waltzrl export` wrote for a run of recipes/smollm2.toml, REVISING for one of
recipes/smollm2-reviser.toml, whose conversation agent writes the revisions.
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from waltzrl.agents import pair_wording
from waltzrl.agents.exports import (
    EXPORT_MANIFEST,
    REVIEWER_KEY,
    REVISER,
    ROLES,
    export_name,
    verify_export,
)
from waltzrl.foundation.files import whole_folder
from waltzrl.policies.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from waltzrl.training.checkpoints import ADAPTERS, write_manifest

REVIEWER = "smollm2"
"""The classifier of this package reviews better than the pair's feedback agent."""
SHIPPED = Path(__file__).parents[1] / "src" / "waltzrl_smollm2" / "pair"


def main(agents: Path, revising: Path | None = None, out: Path = SHIPPED) -> None:
    verify_export(agents)
    facts = json.loads((agents / EXPORT_MANIFEST).read_bytes())
    del facts["files"]
    facts[REVIEWER_KEY] = REVIEWER
    with whole_folder(out) as unfinished:
        for role in ROLES:
            _copy_adapter(agents / ADAPTERS / role, unfinished / export_name(role))
        if revising is not None:
            verify_export(revising)
            _copy_adapter(revising / ADAPTERS / "conversation", unfinished / REVISER)
        wording = Path(pair_wording(agents))
        shutil.copytree(wording, unfinished / wording.name)
        write_manifest(unfinished, EXPORT_MANIFEST, facts)


def _copy_adapter(adapter: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copy(adapter / ADAPTER_CONFIG, folder)
    with safe_open(adapter / ADAPTER_WEIGHTS, "pt") as tensors:
        half = {name: tensors.get_tensor(name).half() for name in tensors.keys()}  # noqa: SIM118
        save_file(half, folder / ADAPTER_WEIGHTS, tensors.metadata())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
