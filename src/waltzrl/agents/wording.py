"""The prompts of the agents: system messages, and templates for a review and a revision.

The paper's own prompts are not published; these are ours.
"""

from dataclasses import dataclass
from importlib.resources import files

from waltzrl.errors import InputError

SETS = ("plain", "tiny", "labels_first")
"""For instruction-tuned models; for the demo's small ones; `plain`, but with the labels first."""
LABELS_FIRST = "labels_first"
PARTS = ("conversation_system", "feedback_system", "review", "revise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One set of prompts."""

    conversation_system: str
    """The conversation agent's system message; empty for none."""
    feedback_system: str
    review: str
    """Asks for a review; `{conversation}` and `{reply}` are fenced text."""
    revise: str
    """Asks for a revision; `{feedback}` is fenced text."""
    labels_first: bool = False
    """A review begins with its labels, so that it can stop when both are false: most replies are
    fine, and to say so takes a dozen tokens. Such a review has no reasoning to train on."""


def load_wording(name: str) -> Wording:
    """Read the set `name` from the package; parts that it lacks are those of `plain`.

    Raises:
        InputError: the set does not exist.
    """
    if name not in SETS:
        raise InputError(f"unknown wording {name!r}; choose plain, tiny or labels_first")
    return Wording(**{part: _text(name, part) for part in PARTS}, labels_first=name == LABELS_FIRST)


def _text(name: str, part: str) -> str:
    prompts = files("waltzrl.agents") / "prompts"
    own = prompts / name / f"{part}.md"
    return (own if own.is_file() else prompts / "plain" / f"{part}.md").read_text("utf-8").strip()
