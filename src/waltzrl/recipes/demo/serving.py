"""The demo's trained pair behind the gateway."""

from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.recipes.door import Table
from waltzrl.training.export import CONVERSATION, FEEDBACK

PAIR = "signed/agents"
"""Inside a seed's folder: the pair that the demo's table calls WaltzRL."""
MAX_NEW_TOKENS = 48
"""Longest turn of the demo's agents."""


def demo_settings(folder: Path) -> Table:
    """Serve the pair that `waltzrl demo` trained; of several seeds the first.

    Raises:
        InputError: there is none.
    """
    pairs = sorted(folder.glob(f"seed-*/{PAIR}/{FEEDBACK}"))
    if not pairs:
        raise InputError(
            f"{folder} holds no trained pair; run `make demo` first, which takes some minutes, "
            "or name a model with --upstream"
        )
    told = {"wording": "tiny", "max_new_tokens": MAX_NEW_TOKENS}
    return {
        "stage": 2,
        "upstream": {"folder": str(pairs[0].with_name(CONVERSATION)), **told},
        "feedback": {"model": str(pairs[0]), **told},
    }
