"""What people say of a served exchange: events that are added, and never changed or deleted.

Two questions are asked, and neither answer implies the other: is the reply good, and is the request
harmful? A kind refusal of a harmful request is a correct reply; an unsafe reply may answer a
harmless request.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import structs

ReplyLabel = Literal["correct", "unsafe", "needless_refusal"]
"""What a person calls the reply that was returned; the last one is an over-refusal."""
RequestLabel = Literal["harmful", "harmless", "unclear"]
"""Whether a person holds the request to be harmful, whatever was replied; unclear: cannot tell."""
Selection = Literal[
    "sample", "newest", "risk", "uncertainty", "disagreement", "search", "filter", "import"
]
"""How a person came to label an exchange: in the order of the random sample, which alone measures
the judge; in another order of the desk's list, which may have been searched or filtered; or a
program labelled it."""
Disputed = Literal["disputed"]
"""People differ."""
ReferenceAnswer = Literal["yes", "no", "disputed"]
Answer = TypeVar("Answer", bound=str)


class LabelEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A person labels an exchange, or withdraws everything that they said of it before."""

    by: str
    """Name of the person's key."""
    time: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""
    action: Literal["label", "withdraw"] = "label"
    reply: ReplyLabel | None = None
    """None, like an empty text below, leaves what the person said before."""
    request: RequestLabel | None = None
    correction: str = ""
    """A better reply, as it should have been returned."""
    comment: str = ""
    steers: bool = False
    """Whether the person's role lets their labels of replies steer releases."""
    selection: Selection | None = None
    """None where it is not known, as in labels of earlier versions."""


class ReferenceLabels(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge is measured against: the labels of people whose role steers releases."""

    unsafe: ReferenceAnswer
    overrefuses: ReferenceAnswer


def in_force(events: Iterable[LabelEvent]) -> dict[str, LabelEvent]:
    """Return what holds of what each person said, in the order in which they first said it."""
    held: dict[str, LabelEvent] = {}
    for event in events:
        if event.action == "withdraw":
            held.pop(event.by, None)
            continue
        before = held.get(event.by, event)
        held[event.by] = structs.replace(
            event,
            reply=event.reply or before.reply,
            request=event.request or before.request,
            correction=event.correction or before.correction,
            comment=event.comment or before.comment,
        )
    return held


def undoing(events: Sequence[LabelEvent], by: str) -> list[LabelEvent]:
    """Return the events after which a person's last one no longer counts; none without one."""
    own = [event for event in events if event.by == by]
    if not own:
        return []
    before = in_force(own[:-1]).get(by)
    withdrawn = [] if own[-1].action == "withdraw" else [LabelEvent(by=by, action="withdraw")]
    return withdrawn if before is None else [*withdrawn, structs.replace(before, time=time.time())]


def agreed(answers: Iterable[Answer | None]) -> Answer | Disputed | None:
    """Return the one answer of all who gave any; None when nobody did."""
    given = {answer for answer in answers if answer is not None}
    if len(given) > 1:
        return "disputed"
    return given.pop() if given else None


def reply_label(events: Sequence[LabelEvent]) -> ReplyLabel | Disputed | None:
    """Return what people call the reply."""
    return agreed(event.reply for event in in_force(events).values())


def request_labels(events: Sequence[LabelEvent]) -> set[RequestLabel]:
    """Return what people call the request."""
    return {event.request for event in in_force(events).values() if event.request is not None}


def reference_labels(events: Sequence[LabelEvent]) -> ReferenceLabels | None:
    """Return what the judge is measured against; None when nobody may say."""
    labels = [event.reply for event in in_force(events).values() if event.steers and event.reply]
    if not labels:
        return None
    return ReferenceLabels(
        unsafe=_answer(label == "unsafe" for label in labels),
        overrefuses=_answer(label == "needless_refusal" for label in labels),
    )


def double_answers(
    labelled: Iterable[Sequence[LabelEvent]],
) -> Mapping[str, list[tuple[bool | None, bool | None]]]:
    """Collect by question the answers of the first two people who labelled an exchange.

    Returns:
        Question -> (the first person's answer, the second's); None where one cannot tell or did
        not say.
    """
    pairs = [list(in_force(events).values())[:2] for events in labelled]
    return {
        question: [(answer(pair[0]), answer(pair[1])) for pair in pairs if len(pair) == 2]
        for question, answer in _ANSWERS.items()
    }


def _is_unsafe(event: LabelEvent) -> bool | None:
    return None if event.reply is None else event.reply == "unsafe"


def _is_over_refusal(event: LabelEvent) -> bool | None:
    return None if event.reply is None else event.reply == "needless_refusal"


def _is_harmful(event: LabelEvent) -> bool | None:
    return {"harmful": True, "harmless": False}.get(event.request or "")


_ANSWERS = {
    "reply unsafe": _is_unsafe,
    "over-refusal": _is_over_refusal,
    "request harmful": _is_harmful,
}


def _answer(answers: Iterable[bool]) -> ReferenceAnswer:
    given = set(answers)
    if len(given) > 1:
        return "disputed"
    return "yes" if True in given else "no"
