"""Which remembered exchanges are collected, and what was asked in them as prompts to learn from.

A prompt's label is what people answered about the request, or the judge where no person labelled
anything. What anybody says of a reply is never taken for a label of the request, and the feedback
agent's labels are never used: training on them would only confirm them.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from waltzrl.foundation.buckets import is_among
from waltzrl.records import Collaboration, Message, Prompt, PromptLabel
from waltzrl.store.memory.labels import RequestLabel, find_agreed, request_labels
from waltzrl.store.memory.schemas import SafetyEvaluation

REMEMBERED = "memory"
"""`Prompt.source` of prompts from a memory."""

LeftOut = Literal["shadow", "unanswered", "without_consent", "of_other_users"]
"""The reason why an exchange is not collected; the last is that its user is held out, or is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Collects exchanges that were answered, seen by a user, consented to, and of these users."""

    users: Literal["learning", "held-out"] = "learning"
    """The users to learn from, or those held out for evaluation."""
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
    """A prompt as a line of a file; `waltzrl.foundation.jsonl.read_prompts` reads it."""

    subject: str
    """Digest of the user, by which `waltzrl erase` finds the row."""
    id: str
    messages: tuple[Message, ...]
    label: PromptLabel | None
    label_source: Literal["person", "judge"] | None
    """The author of the label; None without one. Rules and the reviewer label no prompt."""
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


PromptSource = Literal["person", "judge", "disputed", "unclear", "only_reply", "nobody"]
"""The author of a prompt's label, or the reason why it has none: people differ about the request,
cannot tell, or labelled the reply alone; or nobody labelled anything."""


class LabelledPrompt(NamedTuple):
    """A prompt with its user, and where its label comes from."""

    row: PromptRow
    source: PromptSource
    judged: PromptLabel | None
    """The judge's own label, whoever gave the row's; None without one."""


def prompts_of(evaluations: Iterable[SafetyEvaluation], selection: Selection) -> list[Prompt]:
    """Return the prompts of collected exchanges, each once."""
    return [prompt.row.prompt() for prompt in labelled_prompts(evaluations, selection)]


def labelled_prompts(
    evaluations: Iterable[SafetyEvaluation], selection: Selection
) -> list[LabelledPrompt]:
    """Return the prompts of collected exchanges with their users, the oldest first.

    Of equal prompts one is returned: one whose request a person labelled, or the judge, or the
    newest. What people said of any of them counts.
    """
    requests: dict[tuple[Message, ...], set[RequestLabel]] = {}

    def asked() -> Iterator[SafetyEvaluation]:
        for evaluation in filter(selection.takes, evaluations):
            requests.setdefault(_messages_of(evaluation), set()).update(
                request_labels(evaluation.labels)
            )
            yield evaluation

    # Reads all of `asked` first, and with it every label of equal requests.
    collected = keep_distinct(asked(), same=_messages_of, known=_rank_label)
    return [
        _label_prompt(evaluation, requests[_messages_of(evaluation)]) for evaluation in collected
    ]


def collaboration_of(evaluation: SafetyEvaluation) -> Collaboration:
    """Return the collaboration of a collected exchange."""
    assert evaluation.collaboration is not None, "only answers are collected"
    return evaluation.collaboration


def keep_distinct(
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


def _messages_of(evaluation: SafetyEvaluation) -> tuple[Message, ...]:
    return collaboration_of(evaluation).prompt.messages


def _rank_label(evaluation: SafetyEvaluation) -> int:
    """Return 2 where a person labelled the request, 1 where the judge did, else 0."""
    if request_labels(evaluation.labels):
        return 2
    return int(_find_judged_label(evaluation) is not None)


def _label_prompt(
    evaluation: SafetyEvaluation, requests: Collection[RequestLabel]
) -> LabelledPrompt:
    """Label the prompt of an exchange.

    Args:
        evaluation: of the exchange.
        requests: what people call the request.
    """
    judged = _find_judged_label(evaluation)
    label: PromptLabel | None
    source: PromptSource
    match find_agreed(requests):
        case "harmful":
            label, source = "unsafe", "person"
        case "harmless":
            label, source = "benign", "person"
        # Where people looked and did not decide, the judge's label does not count either.
        case "unclear" | "disputed" as reason:
            label, source = None, reason
        case _ if evaluation.label is not None:
            label, source = None, "only_reply"
        case _:
            label, source = judged, "nobody" if judged is None else "judge"
    row = PromptRow(
        subject=evaluation.subject,
        id=evaluation.id,
        messages=_messages_of(evaluation),
        label=label,
        label_source=source if source in ("person", "judge") else None,
        category=evaluation.category,
    )
    return LabelledPrompt(row, source, judged)


def _find_judged_label(evaluation: SafetyEvaluation) -> PromptLabel | None:
    """Return what the judge holds of the request; whether a reply is unsafe says nothing of it.

    Whether a refusal is an over-refusal does: the judge had to decide on the request.
    """
    verdict = evaluation.verdict
    if verdict is None:
        return None
    if verdict.prompt_harmful is not None:
        return "unsafe" if verdict.prompt_harmful else "benign"
    if verdict.refuses and verdict.overrefuses is not None:
        return "benign" if verdict.overrefuses else "unsafe"
    return None
