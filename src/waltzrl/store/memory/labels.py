"""What people say of a served exchange: events that are added, and never changed or deleted.

Two questions are asked, and neither answer implies the other: is the reply good, and is the request
harmful? A kind refusal of a harmful request is a correct reply; an unsafe reply may answer a
harmless request.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import structs

ReplyLabel = Literal["correct", "unsafe", "overrefusal", "unhelpful", "unclear"]
"""A person's word for the reply that was returned. `overrefusal` refuses a harmless request,
`unhelpful` is safe but wrong, or does not help, `unclear`: cannot tell."""
RequestLabel = Literal["harmful", "harmless", "unclear"]
"""A person's opinion of the request, whatever was replied; unclear: cannot tell."""
Selection = Literal[
    "sample", "newest", "risk", "uncertainty", "disagreement", "search", "filter", "import"
]
"""The way by which a person came to label an exchange: in the order of the random sample, which
alone measures the judge; in another order of the desk's list, which may have been searched or
filtered; or a program labelled it."""
Severity = Literal["low", "medium", "high"]
"""The size of the harm that a reply could do."""
AnnotatorKind = Literal["person", "accepted", "program"]
"""The kind of annotator: a person, a person who accepted a suggestion as it was, or a program."""
Disputed = Literal["disputed"]
"""People differ."""
ReferenceAnswer = Literal["yes", "no", "disputed"]
Answer = TypeVar("Answer", bound=str)


class LabelSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Words that decided, by their place in a text."""

    text: Literal["request", "reply"]
    """The content of the last turn, or the text of the returned reply, both as they are stored."""
    start: int
    """First character."""
    end: int
    """Behind the last character."""


class LabelEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A person labels an exchange, or withdraws everything that they said of it before."""

    by: str
    """Name of the person's key."""
    time: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""
    action: Literal["label", "withdraw"] = "label"
    reply: ReplyLabel | None = None
    """The label of the reply; None, like an empty text below, leaves what the person said before.
    """
    request: RequestLabel | None = None
    correction: str = ""
    """A better reply, as it should have been returned."""
    comment: str = ""
    category: str = ""
    """Subject of the harm, of `waltzrl.agents.rules.CATEGORIES`."""
    severity: Severity | None = None
    spans: tuple[LabelSpan, ...] = ()
    steers: bool = False
    """Whether the person's role lets their labels of replies steer releases."""
    selection: Selection | None = None
    """The way to the exchange; None where it is not known."""
    settles: bool = False
    """Whether it decides a dispute of others: where it answers, only it counts."""
    annotator_kind: AnnotatorKind = "person"


class ReferenceLabels(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge is measured against: the labels of people whose role steers releases."""

    unsafe: ReferenceAnswer
    overrefuses: ReferenceAnswer


class SampleCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One yes-or-no question in the random sample: the judge's answers against those of people.

    People count as true. The answers that the judge calls bad are one sample, the others another.
    """

    true_positives: int = 0
    """Both said yes."""
    false_negatives: int = 0
    """People said yes, the judge no."""
    false_positives: int = 0
    true_negatives: int = 0
    unknown_positives: int = 0
    """The judge said yes, and people differ, or passed it over."""
    unknown_negatives: int = 0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable the online judge is, by people's labels of a random sample of its answers."""

    unsafe: SampleCounts = SampleCounts()
    """Was the reply unsafe?"""
    overrefusal: SampleCounts = SampleCounts()
    """Was it an over-refusal?"""


def in_force(events: Iterable[LabelEvent]) -> dict[str, LabelEvent]:
    """Return what holds of what each person said, in the order in which they first said it."""
    held: dict[str, LabelEvent] = {}
    for event in events:
        if event.action == "withdraw":
            held.pop(event.by, None)
            continue
        # Without an earlier event the new one falls back on itself.
        before = held.get(event.by, event)
        held[event.by] = structs.replace(
            event,
            reply=event.reply or before.reply,
            request=event.request or before.request,
            correction=event.correction or before.correction,
            comment=event.comment or before.comment,
            category=event.category or before.category,
            severity=event.severity or before.severity,
            spans=event.spans or before.spans,
            settles=event.settles or before.settles,
            # It says who gave the label of the reply, which other events leave as it is.
            annotator_kind=(event if event.reply else before).annotator_kind,
        )
    return held


def find_undoing(events: Sequence[LabelEvent], by: str) -> list[LabelEvent]:
    """Return the events after which a person's last one no longer counts; none without one."""
    own = [event for event in events if event.by == by]
    if not own:
        return []
    # Events are never deleted: a withdrawal follows, and then what held before is said again.
    before = in_force(own[:-1]).get(by)
    withdrawn = [] if own[-1].action == "withdraw" else [LabelEvent(by=by, action="withdraw")]
    return withdrawn if before is None else [*withdrawn, structs.replace(before, time=time.time())]


def find_agreed(answers: Iterable[Answer | None]) -> Answer | Disputed | None:
    """Return the one answer of all who gave any; None when nobody did."""
    given = {answer for answer in answers if answer is not None}
    if len(given) > 1:
        return "disputed"
    return given.pop() if given else None


def reply_label(events: Sequence[LabelEvent]) -> ReplyLabel | Disputed | None:
    """Return what people call the reply; who cannot tell disputes nothing."""
    answers = [event.reply for event in _list_replies(events)]
    return find_agreed(answer for answer in answers if answer != "unclear") or find_agreed(answers)


def request_labels(events: Sequence[LabelEvent]) -> set[RequestLabel]:
    """Return what people call the request."""
    answered = [event for event in in_force(events).values() if event.request is not None]
    return {event.request for event in _select_counting(answered) if event.request is not None}


def is_disputed(events: Sequence[LabelEvent]) -> bool:
    """Whether people differ about the reply or about the request, and nobody has settled it."""
    return reply_label(events) == "disputed" or len(request_labels(events)) > 1


def reference_labels(events: Sequence[LabelEvent]) -> ReferenceLabels | None:
    """Return what the judge is measured against; None when nobody may say.

    A suggestion that was accepted measures nothing: it may be the judge's own.
    """
    labels = [
        event.reply
        for event in _list_replies(events)
        if event.steers and event.annotator_kind == "person" and event.reply != "unclear"
    ]
    if not labels:
        return None
    return ReferenceLabels(
        unsafe=_combine_answers(label == "unsafe" for label in labels),
        overrefuses=_combine_answers(label == "overrefusal" for label in labels),
    )


def double_answers(
    labelled: Iterable[Sequence[LabelEvent]],
) -> Mapping[str, list[tuple[bool | None, bool | None]]]:
    """Collect by question the answers of the first two people who labelled an exchange.

    Returns:
        Question -> (the first person's answer, the second's); None where one cannot tell or did
        not say.
    """
    pairs = [
        [event for event in in_force(events).values() if not event.settles][:2]
        for events in labelled
    ]
    return {
        question: [(answer(pair[0]), answer(pair[1])) for pair in pairs if len(pair) == 2]
        for question, answer in _ANSWERS.items()
    }


def _list_replies(events: Sequence[LabelEvent]) -> list[LabelEvent]:
    return _select_counting(
        [event for event in in_force(events).values() if event.reply is not None]
    )


def _select_counting(answered: list[LabelEvent]) -> list[LabelEvent]:
    """Return those that count of the answers to a question: a settlement alone, or all."""
    settled = [event for event in answered if event.settles]
    return [max(settled, key=lambda event: event.time)] if settled else answered


def _calls_it(event: LabelEvent, label: ReplyLabel) -> bool | None:
    return None if event.reply in (None, "unclear") else event.reply == label


_ANSWERS: Mapping[str, Callable[[LabelEvent], bool | None]] = {
    "reply unsafe": lambda event: _calls_it(event, "unsafe"),
    "over-refusal": lambda event: _calls_it(event, "overrefusal"),
    "request harmful": lambda event: {"harmful": True, "harmless": False}.get(event.request or ""),
}


def _combine_answers(answers: Iterable[bool]) -> ReferenceAnswer:
    given = set(answers)
    if len(given) > 1:
        return "disputed"
    return "yes" if True in given else "no"
