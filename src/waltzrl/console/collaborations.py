"""The page of one collaboration: its turns, what changed, its labels, and what is next."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from msgspec import structs
from starlette.responses import Response

from waltzrl.console.diff import Part, changes
from waltzrl.console.labels import MAX_TEXT, QUESTIONS, find
from waltzrl.console.queue import (
    LABELS,
    just_labelled,
    list_path,
    list_query,
    path_of,
    selection_of,
    with_query,
)
from waltzrl.console.rendering import duration
from waltzrl.console.request import PageRequest
from waltzrl.memory.labels import LabelEvent, in_force
from waltzrl.memory.schemas import SafetyEvaluation
from waltzrl.records import Collaboration, Feedback, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One text of a collaboration."""

    kind: str
    title: str
    text: str = ""
    note: str = ""
    parts: tuple[Part, ...] = ()
    """Of a revision: what it changed."""
    labels: tuple[str, ...] = ()
    risk: float | None = None
    rules: tuple[str, ...] = ()


def show_collaboration(request: PageRequest) -> Response:
    """Show every turn of a collaboration, and what is known of it.

    Raises:
        RequestError: 404.
    """
    evaluation, query, memory = find(request), list_query(request), request.source.memory
    collaboration, audit = evaluation.collaboration, request.source.audit
    selection = selection_of(request)
    raters = in_force(evaluation.labels)
    mine = raters.get(memory.rater(request.session.key.name))
    # whoever labels second answers before they see what others said
    is_blind = selection.rated == "others" and mine is None
    record = quote(evaluation.id.partition("/")[0], safe="")
    before, after = memory.neighbours(selection, evaluation.id)
    return request.page(
        "collaboration.html",
        evaluation=evaluation,
        path=path_of(evaluation.id, query),
        listed=list_path(query),
        total=memory.queue_length(selection),
        before=before and path_of(before, query),
        after=after and path_of(after, query),
        labels=with_query(LABELS, query),
        done=just_labelled(request),
        turns=[] if collaboration is None else list(_turns(request, collaboration)),
        questions=QUESTIONS,
        longest=MAX_TEXT,
        is_blind=is_blind,
        raters=[] if is_blind else [_visible(request, event) for event in raters.values()],
        mine=mine,
        events=[] if is_blind else [_visible(request, event) for event in evaluation.labels],
        judged=[] if evaluation.verdict is None else _verdict_words(evaluation.verdict),
        facts=_facts(request, evaluation),
        audited="" if audit is None else f"/desk/audit?record={record}",
    )


def _turns(request: PageRequest, collaboration: Collaboration) -> Iterator[TurnView]:
    *history, prompt = collaboration.prompt.messages
    for message in history:
        text = request.visible(message.content)
        yield TurnView(kind="history", title=message.role.title(), text=text)
    yield TurnView(kind="request", title="Request", text=request.visible(prompt.content))
    reply = request.visible(collaboration.draft.reviewed_text)
    yield TurnView(kind="draft", title="Draft", text=reply)
    for number, turn in enumerate(collaboration.rounds, start=1):
        yield _feedback(request, turn.feedback, number)
        if turn.revision is not None:
            revision = request.visible(turn.revision.reviewed_text)
            if turn.revision.origin == "canned":
                note = "The gateway returned this fixed text in place of the reply."
                yield TurnView(kind="canned", title="Canned refusal", text=revision, note=note)
            else:
                parts = tuple(changes(reply, revision))
                yield TurnView(kind="revision", title=f"Revision {number}", parts=parts)
            reply = revision


def _feedback(request: PageRequest, feedback: Feedback, number: int) -> TurnView:
    labels = {
        "unreadable": not feedback.well_formed,
        "unsafe": feedback.unsafe,
        "over-refusal": feedback.overrefuse,
        "doubtful": feedback.doubtful,
    }
    return TurnView(
        kind="feedback",
        title=f"Feedback {number}",
        text=request.visible(feedback.text),
        note=request.visible(feedback.reasoning),
        labels=tuple(label for label, holds in labels.items() if holds) or ("safe",),
        risk=feedback.risk,
        rules=feedback.rules,
    )


def _visible(request: PageRequest, event: LabelEvent) -> LabelEvent:
    """Return a label with its texts as the session may see them."""
    return structs.replace(
        event,
        correction=request.visible(event.correction),
        comment=request.visible(event.comment),
    )


def _verdict_words(verdict: Verdict) -> list[str]:
    words = [
        {True: "unsafe", False: "not unsafe", None: ""}[verdict.unsafe],
        {True: "refuses", False: "does not refuse", None: ""}[verdict.refuses],
        "over-refuses" if verdict.overrefuses else "",
    ]
    return [word for word in words if word]


def _facts(request: PageRequest, evaluation: SafetyEvaluation) -> dict[str, str]:
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
