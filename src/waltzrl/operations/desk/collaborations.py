"""The page of one collaboration: its turns, what changed, its labels, and what is next."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from waltzrl.errors import RequestError
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
from waltzrl.operations.desk.request import PageRequest
from waltzrl.operations.desk.turns import (
    Marker,
    TurnView,
    view_reply,
    view_request,
    view_rounds,
)
from waltzrl.operations.desk.workqueues import NEXT, count_progress
from waltzrl.records import Verdict
from waltzrl.store.memory.labels import LabelEvent, in_force, is_disputed
from waltzrl.store.memory.schemas import SafetyEvaluation
from waltzrl.store.memory.workqueues import WorkQueue


def show_collaboration(request: PageRequest, problem: str = "", status: int = 200) -> Response:
    """Show every turn of a collaboration, and what is known of it.

    Args:
        request: for the page; its form, if it has one, is shown again as it was sent.
        problem: why the form was not saved.
        status: of the response.

    Raises:
        RequestError: 404.
    """
    evaluation, query, memory = find_evaluation(request), list_query(request), request.memory
    audit, queue = request.source.audit, queue_of(request)
    selection, me = selection_of(request), request.me
    raters = in_force(evaluation.labels)
    mine = raters.get(me)
    # whoever labels second answers before they see what others said
    is_blind = mine is None and (
        selection.rated == "others" or bool(blind_to(request, [evaluation.id]))
    )
    # The audit log knows a choice by the id of its request.
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
    memory, query = request.memory, list_query(request)
    if queue is None:
        before, after = memory.neighbours(selection_of(request), evaluation.id)
        links = [f"{path_of(id_, query)}#main" if id_ else "" for id_ in (before, after)]
        return {"before": links[0], "after": links[1], "queue": None, "held": ""}
    works = request.session.may("annotator") and queue.is_for(request.name)
    done, total = count_progress(request, queue)
    holder = memory.holder(evaluation.id)
    return {
        "before": "",
        "after": with_query(NEXT, {"queue": queue.name, "after": evaluation.id}) if works else "",
        "queue": queue,
        "progress": f"{done:,} of {total:,}",
        "held": "" if holder in (None, request.me) else holder,
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
    rulebook = request.source.rulebook
    named = (frozenset[str](), {}) if is_blind else (frozenset(rules), raters)
    marker = Marker(request, rulebook, *named)
    asked = list(view_request(marker, collaboration))
    if is_blind:
        return [*asked, view_reply(marker, collaboration.final, "Reply", is_returned=True)]
    return [*asked, *view_rounds(marker, collaboration)]


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
