"""The prompts of the agents: system messages, and templates for a review and a revision.

The paper's own prompts are not published; these are ours.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from waltzrl.agents.fence import fence
from waltzrl.agents.rules.pack import CATEGORIES, NO_HARM_OF_TEXT
from waltzrl.errors import InputError
from waltzrl.policies.json_format import LABEL_VALUES, JsonField, JsonFormat

SETS = ("plain", "tiny", "short", "labels_first")
"""The names of the prompts: for instruction-tuned models; for the demo's small ones; for
instruction-tuned models so small that they read `plain` longer than they reply; `plain`, but with
the labels first.
"""
LABELS_FIRST = "labels_first"
PARTS = ("conversation_system", "feedback_system", "review", "revise")
FIELDS = {"review": ("{conversation}", "{reply}"), "revise": ("{feedback}",)}
"""The fields that a part must have a place for."""
EXPORTED = "wording"
"""Folder of an exported pair with the prompts that it was trained with."""
NO_CATEGORY = "none"
FORBIDDEN = re.compile(
    r"\b(?:no|never|avoid|without|(?:do|does|must|may|should) not|don't)\s+([^.,;:\n]+)",
    re.IGNORECASE,
)
"""What a policy in words forbids."""
POLICY_FOR_REVIEWS = (
    "The operator of this service has a policy of its own. A reply that breaks it is unsafe too,"
    " and your feedback then says what to leave out or change. The policy can forbid more than the"
    " rules above and can allow nothing that they forbid:"
)
POLICY_FOR_REVISIONS = (
    "The operator's policy, which the new reply must keep to as far as it makes it no less safe:"
)
HARMS = tuple(name for name in CATEGORIES if name not in NO_HARM_OF_TEXT)
REASONING = JsonField("reasoning")
LABELS = (JsonField("unsafe", LABEL_VALUES), JsonField("overrefuse", LABEL_VALUES))
CATEGORY = JsonField("category", tuple(f'"{name}"' for name in (*HARMS, NO_CATEGORY)))
ADVICE = JsonField("feedback")
REASONING_FIRST_FORMAT = JsonFormat((REASONING, *LABELS, ADVICE))
"""The format that models are trained to write."""
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

    def with_policy(self, text: str) -> "Wording":
        """Return the prompts with an operator's policy, fenced and below our own rules.

        Args:
            text: of the policy; empty for none.
        """
        if not text:
            return self
        policy = fence("policy", text)
        return replace(
            self,
            feedback_system=f"{self.feedback_system}\n\n{POLICY_FOR_REVIEWS}\n{policy}",
            # It is a template, in which the braces of the policy must stand for themselves.
            revise=f"{self.revise}\n\n{POLICY_FOR_REVISIONS}\n"
            + policy.replace("{", "{{").replace("}", "}}"),
        )


def find_forbidden(text: str) -> str:
    """Return what a policy forbids as a list of quoted phrases, or else all of it."""
    phrases = [match[1].strip() for match in FORBIDDEN.finditer(text)] or [text.strip()]
    return ", ".join(f'"{phrase}"' for phrase in phrases)


def load_wording(name: str) -> Wording:
    """Read a set of prompts.

    Args:
        name: of a set in the package, where parts that it lacks are those of `plain`; or the path
            of a folder with all of `PARTS` as .md files. Its reviews begin with the labels if its
            feedback_system.md asks for a "category" and for no "reasoning".

    Raises:
        InputError: there is no such set or folder, or a part of it is missing or has no room for
            what it carries.
    """
    if name in SETS:
        texts = {part: _read_prompt_part(name, part) for part in PARTS}
        return Wording(**texts, labels_first=name == LABELS_FIRST)
    texts = _read_folder_texts(name)
    for part, fields in FIELDS.items():
        if missing := [field for field in fields if field not in texts[part]]:
            raise InputError(f"{Path(name) / part}.md has no {missing[0]}; write where it belongs")
    asked = texts["feedback_system"]
    labels_first = '"category"' in asked and '"reasoning"' not in asked
    return Wording(**texts, labels_first=labels_first)


def wording_name(name: str) -> str:
    """Return what stands for a set where results depend on it.

    A folder is named with its hash, unless its texts are those of a set in the package.

    Raises:
        InputError: there is no such set or folder, or a part of it is missing.
    """
    if name in SETS:
        return name
    wording = load_wording(name)
    for packaged in SETS:
        if wording == load_wording(packaged):
            return packaged
    digest = hashlib.sha256(repr(sorted(_read_folder_texts(name).items())).encode())
    return f"{name}@{digest.hexdigest()[:12]}"


def save_wording(wording: Wording, folder: Path) -> None:
    """Write a set of prompts as a new folder, which `load_wording` reads.

    Raises:
        OSError: the disk is full.
    """
    folder.mkdir()
    for part in PARTS:
        (folder / f"{part}.md").write_text(getattr(wording, part), "utf-8")


def pair_wording(pair: Path) -> str:
    """Return the name of an exported pair's own prompts; `plain` if the export has none."""
    folder = pair / EXPORTED
    return str(folder) if folder.is_dir() else "plain"


def _read_folder_texts(name: str) -> dict[str, str]:
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(
            f"unknown wording {name!r}; choose one of {', '.join(SETS)}, or give a folder with"
            f" {', '.join(f'{part}.md' for part in PARTS)}"
        )
    texts = {}
    for part in PARTS:
        try:
            texts[part] = (folder / f"{part}.md").read_text("utf-8").strip()
        except FileNotFoundError:
            raise InputError(
                f"wording {name}: {part}.md is missing; an empty file leaves a system message out"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"wording {name}: {part}.md cannot be read ({error})") from None
    return texts


def _read_prompt_part(name: str, part: str) -> str:
    prompts = files("waltzrl.agents") / "prompts"
    own = prompts / name / f"{part}.md"
    return (own if own.is_file() else prompts / "plain" / f"{part}.md").read_text("utf-8").strip()
