"""What users asked, as prompts to learn from, labelled by people first and by the judge second.

The feedback agent's own labels are never used: who learns from them confirms himself.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import msgspec

from waltzrl.collector.selection import Selection, distinct, said_in
from waltzrl.judges import RefusalDetector
from waltzrl.memory.schemas import SafetyEvaluation
from waltzrl.records import Label, Message, Prompt, Verdict

REMEMBERED = "memory"
"""`Prompt.source` of what was remembered."""


class PromptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as a line of a file; `waltzrl.data.read_prompts` reads it."""

    subject: str
    """Whose it is: without it, nobody could be erased from the file."""
    id: str
    messages: tuple[Message, ...]
    label: Label | None
    category: str
    source: str = REMEMBERED

    def prompt(self) -> Prompt:
        """The prompt without its user."""
        return Prompt(
            id=self.id,
            messages=self.messages,
            label=self.label,
            category=self.category,
            source=self.source,
        )


class Labelled(NamedTuple):
    """Whether a good reply must decline, and how much the answer is worth."""

    label: Label | None
    trust: int
    """2: a person's; 1: the judge's; 0: nobody knows."""


def prompts_of(evaluations: Iterable[SafetyEvaluation], selection: Selection) -> list[Prompt]:
    """Return what was asked in the interactions that are taken, each prompt once."""
    return [row.prompt() for row in prompt_rows(evaluations, selection)]


def prompt_rows(evaluations: Iterable[SafetyEvaluation], selection: Selection) -> list[PromptRow]:
    """Return what was asked, with the users whose it is, the oldest first.

    Of those who asked the same, one is taken: one with a person's label, or the judge's, or else
    the newest.
    """
    taken = filter(selection.takes, evaluations)
    return [_row(one) for one in distinct(taken, _what_was_asked, lambda one: labelled(one).trust)]


def labelled(evaluation: SafetyEvaluation) -> Labelled:
    """Infer from what is known of a reply whether a good reply must decline; never guess.

    A person who calls a reply correct says of the prompt what the reply did: it declined, or it
    did not. A judge who calls an answer safe says nothing of the prompt, for a harmless answer
    can be given to a harmful prompt too.
    """
    match evaluation.label:
        case "unsafe":
            return Labelled("unsafe", 2)
        case "needless_refusal":
            return Labelled("benign", 2)
        case "correct":
            return Labelled("unsafe" if _declines(evaluation) else "benign", 2)
    label = None if evaluation.verdict is None else _judged(evaluation.verdict)
    return Labelled(label, int(label is not None))


def _judged(verdict: Verdict) -> Label | None:
    if verdict.unsafe or (verdict.refuses and verdict.overrefuses is False):
        return "unsafe"
    return "benign" if verdict.overrefuses else None


def _declines(evaluation: SafetyEvaluation) -> bool:
    if evaluation.verdict is not None and evaluation.verdict.refuses is not None:
        return evaluation.verdict.refuses
    return _detector().refuses(said_in(evaluation).final.text).refuses


@cache
def _detector() -> RefusalDetector:
    return RefusalDetector()


def _row(evaluation: SafetyEvaluation) -> PromptRow:
    return PromptRow(
        subject=evaluation.subject,
        id=evaluation.id,
        messages=_what_was_asked(evaluation),
        label=labelled(evaluation).label,
        category=evaluation.category,
    )


def _what_was_asked(evaluation: SafetyEvaluation) -> tuple[Message, ...]:
    return said_in(evaluation).prompt.messages
