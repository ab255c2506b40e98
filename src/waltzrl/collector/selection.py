"""Which remembered exchanges are collected, and what was asked in them as prompts to learn from.

A prompt's label comes from people first and from the judge second. The feedback agent's labels are
never used: training on them would only confirm them.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import msgspec

from waltzrl.judges import RefusalDetector
from waltzrl.memory.schemas import SafetyEvaluation
from waltzrl.records import Collaboration, Label, Message, Prompt, Verdict
from waltzrl.release.assignment import is_among

REMEMBERED = "memory"
"""`Prompt.source` of prompts from a memory."""

LeftOut = Literal["shadow", "unanswered", "without_consent", "of_other_users"]
"""Why an exchange is not collected; the last one because its user is held out, or is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Collects exchanges that were answered, seen by a user, consented to, and of these users."""

    users: Literal["learning", "held-out"] = "learning"
    """Those to learn from, or those held out for evaluation."""
    held_out_percentage: float = 10.0
    """Share of users held out; raising it keeps those who are."""

    def takes(self, evaluation: SafetyEvaluation) -> bool:
        """Return whether the exchange is collected."""
        return self.leaves_out(evaluation) is None

    def leaves_out(self, evaluation: SafetyEvaluation) -> LeftOut | None:
        """Return why the exchange is not collected; None when it is."""
        if evaluation.arm == "shadow":
            return "shadow"
        if evaluation.collaboration is None or evaluation.decision == "error":
            return "unanswered"
        if not evaluation.may_learn:
            return "without_consent"
        # Without a user, all choices of a request go the same way.
        user = evaluation.subject or evaluation.id.partition("/")[0]
        held_out = is_among("held out", user, self.held_out_percentage)
        return None if held_out is (self.users == "held-out") else "of_other_users"


class PromptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as a line of a file; `waltzrl.data.read_prompts` reads it."""

    subject: str
    """Digest of the user, by which `waltzrl erase` finds the row."""
    id: str
    messages: tuple[Message, ...]
    label: Label | None
    category: str
    source: str = REMEMBERED

    def prompt(self) -> Prompt:
        """Return the prompt without its user."""
        return Prompt(
            id=self.id,
            messages=self.messages,
            label=self.label,
            category=self.category,
            source=self.source,
        )


class PromptLabel(NamedTuple):
    """Whether a good reply must decline, and who says so."""

    label: Label | None
    trust: int
    """2: a person; 1: the judge; 0: unknown."""


def prompts_of(evaluations: Iterable[SafetyEvaluation], selection: Selection) -> list[Prompt]:
    """Return the prompts of collected exchanges, each once."""
    return [row.prompt() for row in prompt_rows(evaluations, selection)]


def prompt_rows(evaluations: Iterable[SafetyEvaluation], selection: Selection) -> list[PromptRow]:
    """Return the prompts of collected exchanges with their users, the oldest first.

    Of equal prompts one is returned: one with a person's label, or the judge's, or the newest.
    """
    collected = distinct(
        filter(selection.takes, evaluations),
        same=lambda evaluation: collaboration_of(evaluation).prompt.messages,
        known=lambda evaluation: prompt_label(evaluation).trust,
    )
    return [
        PromptRow(
            subject=evaluation.subject,
            id=evaluation.id,
            messages=collaboration_of(evaluation).prompt.messages,
            label=prompt_label(evaluation).label,
            category=evaluation.category,
        )
        for evaluation in collected
    ]


def prompt_label(evaluation: SafetyEvaluation) -> PromptLabel:
    """Infer from the labels of a reply whether a good reply must decline; never guess.

    A person who calls a reply correct confirms what it did: it declined, or it did not. A judge
    who calls an answer safe says nothing about the prompt, because a harmless answer can be given
    to a harmful prompt too.
    """
    match evaluation.label:
        case "unsafe":
            return PromptLabel("unsafe", 2)
        case "needless_refusal":
            return PromptLabel("benign", 2)
        case "correct":
            return PromptLabel("unsafe" if _refuses(evaluation) else "benign", 2)
    label = None if evaluation.verdict is None else _judged_label(evaluation.verdict)
    return PromptLabel(label, int(label is not None))


def collaboration_of(evaluation: SafetyEvaluation) -> Collaboration:
    """Return the collaboration of a collected exchange."""
    assert evaluation.collaboration is not None, "only answers are collected"
    return evaluation.collaboration


def distinct(
    evaluations: Iterable[SafetyEvaluation],
    same: Callable[[SafetyEvaluation], Hashable],
    known: Callable[[SafetyEvaluation], int],
) -> list[SafetyEvaluation]:
    """Keep one of those that are the same.

    Args:
        evaluations: in any order.
        same: equal for two of which one is enough.
        known: how much is known about one; the one with most is kept, then the newest.

    Returns:
        Those kept, the oldest first.
    """
    best: dict[Hashable, SafetyEvaluation] = {}
    for evaluation in evaluations:
        before = best.setdefault(same(evaluation), evaluation)
        rank = (known(evaluation), evaluation.time, evaluation.id)
        if rank > (known(before), before.time, before.id):
            best[same(evaluation)] = evaluation
    return sorted(best.values(), key=lambda evaluation: (evaluation.time, evaluation.id))


def _judged_label(verdict: Verdict) -> Label | None:
    if verdict.unsafe or (verdict.refuses and verdict.overrefuses is False):
        return "unsafe"
    return "benign" if verdict.overrefuses else None


def _refuses(evaluation: SafetyEvaluation) -> bool:
    if evaluation.verdict is not None and evaluation.verdict.refuses is not None:
        return evaluation.verdict.refuses
    return _detector().refuses(collaboration_of(evaluation).final.text).refuses


@cache
def _detector() -> RefusalDetector:
    return RefusalDetector()
