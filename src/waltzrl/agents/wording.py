"""The prompts of the agents: system messages, and templates for a review and a revision.

The paper's own prompts are not published; these are ours.
"""

from dataclasses import dataclass
from importlib.resources import files

from waltzrl.errors import InputError
from waltzrl.policies.json_format import LABEL_VALUES, JsonField, JsonFormat
from waltzrl.rules import CATEGORIES

SETS = ("plain", "tiny", "labels_first")
"""For instruction-tuned models; for the demo's small ones; `plain`, but with the labels first."""
LABELS_FIRST = "labels_first"
PARTS = ("conversation_system", "feedback_system", "review", "revise")
NO_CATEGORY = "none"
HARMS = tuple(name for name in CATEGORIES if name != "refusal")
REASONING = JsonField("reasoning")
LABELS = (JsonField("unsafe", LABEL_VALUES), JsonField("overrefuse", LABEL_VALUES))
CATEGORY = JsonField("category", tuple(f'"{name}"' for name in (*HARMS, NO_CATEGORY)))
ADVICE = JsonField("feedback")
REASONING_FIRST_FORMAT = JsonFormat((REASONING, *LABELS, ADVICE))
"""What models are trained to write."""
LABELS_FIRST_FORMAT = JsonFormat((*LABELS, CATEGORY, ADVICE))


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

    @property
    def format(self) -> JsonFormat:
        """The object that is a review."""
        return LABELS_FIRST_FORMAT if self.labels_first else REASONING_FIRST_FORMAT


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
