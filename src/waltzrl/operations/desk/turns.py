"""The turns of a collaboration as a page shows them: what matched, what changed, what was found."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from waltzrl.agents.rules import Rulebook
from waltzrl.operations.desk.diff import Part, find_changes
from waltzrl.operations.desk.request import PageRequest, ShownText
from waltzrl.records import Collaboration, Feedback, Reply, ToolCall
from waltzrl.store.memory.labels import LabelEvent

MOST_MARKS = 200
"""Marks of rules that one piece of a text shows at most."""


class CallView(NamedTuple):
    """A tool call: the tool, and its arguments by name."""

    name: str
    arguments: list[tuple[str, str]]


class TextMark(NamedTuple):
    """A place in a text, and whose it is."""

    start: int
    end: int
    rule: str = ""
    """The rule that matched there."""
    person: str = ""
    """The person for whom the words there decided."""


class MarkedPart(NamedTuple):
    """A part of a text, alike from its beginning to its end."""

    text: str
    rules: tuple[str, ...] = ()
    """The rules that matched in it."""
    people: tuple[str, ...] = ()
    """The people who chose it as words that decided."""


class MarkedText(NamedTuple):
    """A piece of a text, cut where marks begin and end."""

    start: int
    """The index in the stored text where it begins."""
    parts: list[MarkedPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One text of a collaboration."""

    kind: str
    title: str
    pieces: tuple[MarkedText, ...] = ()
    """The whole text, or its beginning and its end."""
    side: Literal["", "request", "reply"] = ""
    """The text that spans are places of; empty for any other."""
    reasoning: str = ""
    calls: tuple[CallView, ...] = ()
    note: str = ""
    parts: tuple[Part, ...] = ()
    """The changes that a revision made."""
    labels: tuple[str, ...] = ()
    risk: float | None = None
    scores: tuple[tuple[str, float], ...] = ()
    """The parts of the risk, and the probability of an over-refusal, where they are known."""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks what the rules matched that a reviewer named, and the words that decided."""

    request: PageRequest
    rulebook: Rulebook | None
    """The rules that search again; None for no marks of theirs."""
    rules: frozenset[str] = frozenset()
    raters: Mapping[str, LabelEvent] = field(default_factory=dict)
    """Name -> what the person said."""

    def marked(
        self, text: str, side: Literal["request", "reply"], *, is_labelled: bool = False
    ) -> tuple[MarkedText, ...]:
        """Return a text as a page shows it.

        Args:
            text: as it is stored.
            side: which rules search it.
            is_labelled: whether it is the text whose words people choose.
        """
        shown = []
        for piece in self.request.pieces(text):
            marks = list(self._matched(piece.text, side))
            if is_labelled and text.replace("\r\n", "\n").startswith(piece.text, piece.start):
                marks += self._decided(piece, side)  # else it is redacted, and has other places
            shown.append(MarkedText(piece.start, _cut_text(piece.text, marks)))
        return tuple(shown)

    def _matched(self, text: str, side: Literal["request", "reply"]) -> list[TextMark]:
        rulebook = self.rulebook
        if rulebook is None or not self.rules:
            return []
        findings = rulebook.request(text) if side == "request" else rulebook.reply(text)
        named = [finding for finding in findings if finding.rule in self.rules][:MOST_MARKS]
        return [TextMark(finding.start, finding.end, rule=finding.rule) for finding in named]

    def _decided(self, piece: ShownText, side: Literal["request", "reply"]) -> Iterator[TextMark]:
        for person, event in self.raters.items():
            for span in event.spans:
                start = max(span.start - piece.start, 0)
                end = min(span.end - piece.start, len(piece.text))
                if span.text == side and start < end:
                    yield TextMark(start, end, person=person)


def _cut_text(text: str, marks: Sequence[TextMark]) -> list[MarkedPart]:
    """Cut a text where marks begin and end."""
    ends = {place for mark in marks for place in (mark.start, mark.end)}
    parts = []
    for start, end in pairwise([0, *sorted(ends - {0, len(text)}), len(text)]):
        here = [mark for mark in marks if mark.start <= start and end <= mark.end]
        rules = dict.fromkeys(mark.rule for mark in here if mark.rule)
        people = dict.fromkeys(mark.person for mark in here if mark.person)
        parts.append(MarkedPart(text[start:end], tuple(rules), tuple(people)))
    return parts


def view_request(marker: Marker, collaboration: Collaboration) -> Iterator[TurnView]:
    *history, prompt = collaboration.prompt.messages
    for message in history:
        yield TurnView(
            kind="history",
            title=message.role.title(),
            pieces=marker.marked(message.content, "request" if message.role == "user" else "reply"),
            calls=_view_calls(marker.request, message.calls),
        )
    pieces = marker.marked(prompt.content, "request", is_labelled=True)
    yield TurnView(kind="request", title="Request", pieces=pieces, side="request")


def view_rounds(marker: Marker, collaboration: Collaboration) -> Iterator[TurnView]:
    visible = marker.request.visible
    final, reply = collaboration.final, collaboration.draft
    # By identity, because a revision may repeat the words of the draft.
    yield view_reply(marker, reply, "Draft", is_returned=reply is final)
    for number, turn in enumerate(collaboration.rounds, start=1):
        yield _view_feedback(marker.request, turn.feedback, number)
        if turn.revision is None:
            continue
        revision, is_returned = turn.revision, turn.revision is final
        if revision.origin == "canned":
            view = view_reply(marker, revision, "Canned refusal", is_returned=is_returned)
            note = "The gateway returned this fixed text in place of the reply."
            yield replace(view, kind="canned", note=note)
        else:
            view = view_reply(marker, revision, f"Revision {number}", is_returned=is_returned)
            # Redacted before they are compared: personal data cut into parts would not be found.
            before, after = (visible(_join_reasoning(text)) for text in (reply, revision))
            parts = tuple(find_changes(before, after))
            pieces = view.pieces if is_returned else ()
            yield replace(view, kind="revision", parts=parts, pieces=pieces, reasoning="")
        reply = revision


def view_reply(marker: Marker, reply: Reply, title: str, *, is_returned: bool) -> TurnView:
    request = marker.request
    return TurnView(
        kind="draft",
        title=title,
        pieces=marker.marked(reply.text, "reply", is_labelled=is_returned),
        side="reply" if is_returned else "",
        reasoning=request.visible(reply.reasoning),
        calls=_view_calls(request, reply.calls),
    )


def _join_reasoning(reply: Reply) -> str:
    return f"{reply.reasoning}\n{reply.text}" if reply.reasoning else reply.text


def _view_calls(request: PageRequest, calls: Sequence[ToolCall]) -> tuple[CallView, ...]:
    return tuple(
        CallView(request.visible(call.name), _list_arguments(request, call)) for call in calls
    )


def _list_arguments(request: PageRequest, call: ToolCall) -> list[tuple[str, str]]:
    """Return the arguments of a call, a name and a value each; what is no object has no name."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        arguments = None
    if not isinstance(arguments, dict):
        return [("", request.visible(call.arguments))]
    return [
        (request.visible(name), request.visible(_spell_value(value)))
        for name, value in arguments.items()
    ]


def _spell_value(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _view_feedback(request: PageRequest, feedback: Feedback, number: int) -> TurnView:
    return TurnView(
        kind="feedback",
        title=f"Feedback {number}",
        pieces=tuple(
            MarkedText(piece.start, [MarkedPart(piece.text)])
            for piece in request.pieces(feedback.text)
        ),
        note=request.visible(feedback.reasoning),
        labels=feedback.labels,
        risk=feedback.risk,
        scores=tuple(feedback.scores.items()),
        rules=feedback.rules,
    )
