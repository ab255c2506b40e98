"""The demo's trained pair behind the gateway."""

from pathlib import Path

from waltzrl.config.validation import Table
from waltzrl.data import read_prompts
from waltzrl.errors import InputError
from waltzrl.training import CONVERSATION, FEEDBACK

PAIR = "signed/agents"
"""Inside a seed's folder: the pair that the demo's table calls WaltzRL."""
MAX_NEW_TOKENS = 48
"""Longest turn of the demo's agents."""


def demo_settings(folder: Path) -> Table:
    """Serve the pair that `waltzrl demo` trained; of several seeds the first.

    Raises:
        InputError: there is none.
    """
    agents = _seed(folder) / PAIR
    told = {"wording": "tiny", "max_new_tokens": MAX_NEW_TOKENS}
    return {
        "stage": 2,
        "upstream": {"folder": str(agents / CONVERSATION), **told},
        "feedback": {"model": str(agents / FEEDBACK), **told},
    }


def example_prompt(folder: Path) -> str:
    """Return a harmful prompt of the demo's held-out set.

    Raises:
        InputError: there is none.
    """
    prompts = read_prompts(_seed(folder) / "data" / "test.jsonl")
    return next(prompt for prompt in prompts if prompt.label == "unsafe").messages[-1].content


def _seed(folder: Path) -> Path:
    found = sorted(place for place in folder.glob("seed-*") if (place / PAIR / FEEDBACK).is_dir())
    if not found:
        raise InputError(
            f"{folder} holds no trained pair; run `make demo` first, which takes some minutes, "
            "or name a model with --upstream"
        )
    return found[0]
