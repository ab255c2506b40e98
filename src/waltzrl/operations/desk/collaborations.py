"""The page of one collaboration: its turns, what changed, its labels, and what is next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from waltzrl.errors import RequestError
from waltzrl.operations.desk.diff import Part, find_changes
from waltzrl.operations.desk.labels import (
    HARMS,
    MAX_TEXT,
    QUESTIONS,
    SEVERITIES,
    find_evaluation,
    save_label,
    span_line,
    suggestion_of,
    texts_of,
)
from waltzrl.operations.desk.queue import (
    LABELS,
    MAX_EXCERPT,
    blind_to,
    just_labelled,
    list_path,
    list_query,
    path_of,
    queue_of,
    selection_of,
    with_query,
)
from waltzrl.operations.desk.rendering import duration, words
from waltzrl.operations.desk.request import PageRequest, ShownText
from waltzrl.operations.desk.workqueues import NEXT, count_progress
from waltzrl.records import Collaboration, Feedback, Reply, ToolCall, Verdict
from waltzrl.store.memory.labels import LabelEvent, in_force, is_disputed
from waltzrl.store.memory.schemas import SafetyEvaluation
from waltzrl.store.memory.workqueues import WorkQueue

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
    rules: tuple[str, ...] = ()


def show_collaboration(request: PageRequest, problem: str = "", status: int = 200) -> Response:
    """Show every turn of a collaboration, and what is known of it.

    Args:
        request: for the page; its form, if it has one, is shown again as it was sent.
        problem: why the form was not saved.
        status: of the response.

    Raises:
        RequestError: 404.
    """
    evaluation, query, memory = find_evaluation(request), list_query(request), request.source.memory
    audit, queue = request.source.audit, queue_of(request)
    selection, me = selection_of(request), memory.rater(request.session.key.name)
    raters = in_force(evaluation.labels)
    mine = raters.get(me)
    # whoever labels second answers before they see what others said
    is_blind = mine is None and (
        selection.rated == "others" or bool(blind_to(request, [evaluation.id]))
    )
    record = quote(evaluation.id.partition("/")[0], safe="")
    texts = texts_of(evaluation)
    return request.page(
        "collaboration.html",
        status,
        evaluation=evaluation,
        path=path_of(evaluation.id, query),
        listed=list_path(query),
        total=memory.queue_length(selection),
        **_find_neighbours(request, evaluation, queue),
        labels=with_query(LABELS, query),
        done=just_labelled(request),
        turns=_view_turns(request, evaluation, raters, is_blind=is_blind),
        questions=QUESTIONS,
        harms=[(name, words(name)) for name in HARMS],
        severities=[(name, name) for name in SEVERITIES],
        longest=MAX_TEXT,
        is_blind=is_blind,
        raters=[]
        if is_blind
        else [_view_label(request, event, texts) for event in raters.values()],
        mine=mine,
        said=_fill_form(request, mine, texts),
        problem=problem,
        suggestion=None if is_blind or raters else suggestion_of(evaluation),
        settles=(
            mine is None
            and not is_blind
            and request.session.may("reviewer")
            and is_disputed(evaluation.labels)
        ),
        is_disputed=is_disputed(evaluation.labels),
        events=[]
        if is_blind
        else [_view_label(request, event, texts) for event in evaluation.labels],
        judged=[] if evaluation.verdict is None else _verdict_words(evaluation.verdict),
        facts=_list_facts(request, evaluation),
        audited="" if audit is None else f"/desk/audit?record={record}",
    )


def label_collaboration(request: PageRequest) -> Response:
    """Save a label; show the page again, with what was typed, where it cannot be saved.

    Raises:
        RequestError: as `save_label`, but for 400.
    """
    try:
        return save_label(request)
    except RequestError as error:
        if error.status != 400:
            raise
        return show_collaboration(request, str(error), 400)


def _find_neighbours(
    request: PageRequest, evaluation: SafetyEvaluation, queue: WorkQueue | None
) -> dict[str, object]:
    """Return for the page what comes before and after, and what there is to know of the queue."""
    memory, query = request.source.memory, list_query(request)
    if queue is None:
        before, after = memory.neighbours(selection_of(request), evaluation.id)
        links = [f"{path_of(id_, query)}#main" if id_ else "" for id_ in (before, after)]
        return {"before": links[0], "after": links[1], "queue": None, "held": ""}
    works = request.session.may("annotator") and queue.is_for(request.session.key.name)
    done, total = count_progress(request, queue)
    holder = memory.holder(evaluation.id)
    return {
        "before": "",
        "after": with_query(NEXT, {"queue": queue.name, "after": evaluation.id}) if works else "",
        "queue": queue,
        "progress": f"{done:,} of {total:,}",
        "held": "" if holder in (None, memory.rater(request.session.key.name)) else holder,
    }


def _fill_form(
    request: PageRequest, mine: LabelEvent | None, texts: Mapping[str, str]
) -> dict[str, str]:
    """Return what the form shows: what was just sent, or else what the person said before."""
    if request.form:
        return dict(request.form)
    if mine is None:
        return {}
    names = (*QUESTIONS, *MAX_TEXT, "category", "severity")
    return {
        **{name: getattr(mine, name) or "" for name in names},
        "spans": "\n".join(span_line(span, texts) for span in mine.spans),
    }


def _view_turns(
    request: PageRequest,
    evaluation: SafetyEvaluation,
    raters: Mapping[str, LabelEvent],
    *,
    is_blind: bool,
) -> list[TurnView]:
    """Return the turns of a page; a blind one shows only what was asked and returned."""
    collaboration = evaluation.collaboration
    if collaboration is None:
        return []
    rules = {rule for turn in collaboration.rounds for rule in turn.feedback.rules}
    marker = Marker(request) if is_blind else Marker(request, frozenset(rules), raters)
    asked = list(_view_request(request, collaboration, marker))
    if is_blind:
        return [
            *asked,
            _view_reply(request, collaboration.final, marker, "Reply", is_returned=True),
        ]
    return [*asked, *_view_rounds(request, collaboration, marker)]


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks what the rules matched that a reviewer named, and the words that decided."""

    request: PageRequest
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
        rulebook = self.request.source.rulebook
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


def _view_request(
    request: PageRequest, collaboration: Collaboration, marker: Marker
) -> Iterator[TurnView]:
    *history, prompt = collaboration.prompt.messages
    for message in history:
        yield TurnView(
            kind="history",
            title=message.role.title(),
            pieces=marker.marked(message.content, "request" if message.role == "user" else "reply"),
            calls=_view_calls(request, message.calls),
        )
    pieces = marker.marked(prompt.content, "request", is_labelled=True)
    yield TurnView(kind="request", title="Request", pieces=pieces, side="request")


def _view_rounds(
    request: PageRequest, collaboration: Collaboration, marker: Marker
) -> Iterator[TurnView]:
    final, reply = collaboration.final, collaboration.draft
    yield _view_reply(request, reply, marker, "Draft", is_returned=reply is final)
    for number, turn in enumerate(collaboration.rounds, start=1):
        yield _view_feedback(request, turn.feedback, number)
        if turn.revision is None:
            continue
        revision, is_returned = turn.revision, turn.revision is final
        if revision.origin == "canned":
            view = _view_reply(request, revision, marker, "Canned refusal", is_returned=is_returned)
            note = "The gateway returned this fixed text in place of the reply."
            yield replace(view, kind="canned", note=note)
        else:
            title = f"Revision {number}"
            view = _view_reply(request, revision, marker, title, is_returned=is_returned)
            before, after = (request.visible(_join_reasoning(text)) for text in (reply, revision))
            parts = tuple(find_changes(before, after))
            pieces = view.pieces if is_returned else ()
            yield replace(view, kind="revision", parts=parts, pieces=pieces, reasoning="")
        reply = revision


def _view_reply(
    request: PageRequest, reply: Reply, marker: Marker, title: str, *, is_returned: bool
) -> TurnView:
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
        (
            request.visible(name),
            request.visible(
                value
                if isinstance(value, str)
                else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
            ),
        )
        for name, value in arguments.items()
    ]


def _view_feedback(request: PageRequest, feedback: Feedback, number: int) -> TurnView:
    labels = {
        "unreadable": not feedback.well_formed,
        "unsafe": feedback.unsafe,
        "over-refusal": feedback.overrefuse,
        "doubtful": feedback.doubtful,
    }
    return TurnView(
        kind="feedback",
        title=f"Feedback {number}",
        pieces=tuple(
            MarkedText(piece.start, [MarkedPart(piece.text)])
            for piece in request.pieces(feedback.text)
        ),
        note=request.visible(feedback.reasoning),
        labels=tuple(label for label, holds in labels.items() if holds) or ("safe",),
        risk=feedback.risk,
        rules=feedback.rules,
    )


class LabelView(NamedTuple):
    """A label, with its texts as the session may see them."""

    event: LabelEvent
    correction: str
    comment: str
    decided: list[str]
    """The words that decided."""


def _view_label(request: PageRequest, event: LabelEvent, texts: Mapping[str, str]) -> LabelView:
    return LabelView(
        event=event,
        correction=request.visible(event.correction),
        comment=request.visible(event.comment),
        decided=[
            request.excerpt(texts[span.text][span.start : span.end], MAX_EXCERPT)
            for span in event.spans
        ],
    )


def _verdict_words(verdict: Verdict) -> list[str]:
    answers = [
        {True: "unsafe", False: "not unsafe", None: ""}[verdict.unsafe],
        {True: "refuses", False: "does not refuse", None: ""}[verdict.refuses],
        "over-refuses" if verdict.overrefuses else "",
    ]
    return [word for word in answers if word]


def _list_facts(request: PageRequest, evaluation: SafetyEvaluation) -> dict[str, str]:
    facts = {
        "bundle": evaluation.bundle,
        "stage": str(evaluation.stage),
        "arm": evaluation.arm,
        "release": evaluation.release,
        "reason": evaluation.reason,
        "category": evaluation.category,
        "model": request.visible(evaluation.model),
        "api": ", ".join(word for word in (evaluation.api, evaluation.mode) if word),
        "duration": duration(evaluation.milliseconds),
        "cost": "" if evaluation.usd is None else f"USD {evaluation.usd:.6f}",
        "user": evaluation.subject,
        "assigned to": evaluation.assignee or "",
        "may be used for training": "yes" if evaluation.may_learn else "no",
    }
    return {name: value for name, value in facts.items() if value}
