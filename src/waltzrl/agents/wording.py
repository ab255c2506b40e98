"""The words around the agents: system prompts and the templates that carry a turn to an agent.

The paper's own prompts are not published; these are ours.
"""

from dataclasses import dataclass
from importlib.resources import files

from waltzrl.errors import InputError

SETS = ("plain", "tiny", "labels_first")
"""For instruction-tuned models; for the demo's small ones; `plain`, but the verdict comes first."""
LABELS_FIRST = "labels_first"
PARTS = ("conversation_system", "feedback_system", "review", "revise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One set of texts."""

    conversation_system: str
    """May be empty: then the conversation agent has no system message of ours."""
    feedback_system: str
    review: str
    """Asks for a review; `{conversation}` and `{reply}` are fenced text."""
    revise: str
    """Asks for a revision; `{feedback}` is fenced text."""
    labels_first: bool = False
    """A review begins with its labels, so that it is over when both are false: most replies are
    fine, and to say so takes a dozen tokens. There is no reasoning to learn from then."""


def load_wording(name: str) -> Wording:
    """Read the set `name` from the package; what it does not say itself, `plain` says.

    Raises:
        InputError: there is no such set.
    """
    if name not in SETS:
        raise InputError(f"there is no wording {name!r}; say plain, tiny or labels_first")
    return Wording(**{part: _text(name, part) for part in PARTS}, labels_first=name == LABELS_FIRST)


def _text(name: str, part: str) -> str:
    prompts = files("waltzrl.agents") / "prompts"
    own = prompts / name / f"{part}.md"
    return (own if own.is_file() else prompts / "plain" / f"{part}.md").read_text("utf-8").strip()
