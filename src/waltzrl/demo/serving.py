"""Serves the demo's trained pair."""

from pathlib import Path

from waltzrl.config.validation import Table
from waltzrl.data import read_prompts
from waltzrl.demo.paper import MAX_NEW_TOKENS, SERVED
from waltzrl.errors import InputError
from waltzrl.training import CONVERSATION, FEEDBACK

PAIR = f"{SERVED}/agents"
"""Folder of the pair that the demo's table calls WaltzRL, relative to a seed's."""


def demo_settings(folder: Path) -> Table:
    """Return gateway settings for the pair that `waltzrl demo` trained, of the first seed.

    Raises:
        InputError: there is no trained pair.
    """
    agents = _seed(folder) / PAIR
    options = {"wording": "tiny", "max_new_tokens": MAX_NEW_TOKENS}
    return {
        "stage": 2,
        "upstream": {"folder": str(agents / CONVERSATION), **options},
        "feedback": {"model": str(agents / FEEDBACK), "self_test": False, **options},
    }


def example_prompt(folder: Path) -> str:
    """Return a harmful prompt of the demo's held-out set.

    Raises:
        InputError: there is no trained pair.
    """
    prompts = read_prompts(_seed(folder) / "data" / "test.jsonl")
    return next(prompt for prompt in prompts if prompt.label == "unsafe").messages[-1].content


def _seed(folder: Path) -> Path:
    trained = sorted(path for path in folder.glob("seed-*") if (path / PAIR / FEEDBACK).is_dir())
    if not trained:
        raise InputError(
            f"{folder} holds no trained pair; run `make demo` first, which takes some minutes, "
            "or name a model with --upstream"
        )
    return trained[0]
