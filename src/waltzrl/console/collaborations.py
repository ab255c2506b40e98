"""The list of collaborations, and the page of one: its turns, what changed, and its labels."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import structs
from starlette.responses import Response

from waltzrl.console.diff import Part, changes
from waltzrl.console.request import PageRequest, redirect
from waltzrl.errors import InputError, RequestError
from waltzrl.memory.items import Json
from waltzrl.memory.labels import LabelEvent, in_force
from waltzrl.memory.schemas import EVALUATIONS, SafetyEvaluation
from waltzrl.records import Collaboration, Feedback, Verdict, load

LIST = "/desk/collaborations"
ROWS = 50
MAX_REQUEST = 140
"""Characters of a request that a row shows."""
MAX_SEARCH = 500
"""Characters."""
MAX_BUNDLES = 20
MAX_TEXT = {"correction": 10_000, "comment": 2_000}
"""Characters of each text of a label."""


class LabelQuestion(NamedTuple):
    """A question about a collaboration that one button answers."""

    text: str
    answers: dict[str, str]
    """Value in a `LabelEvent` -> what its button says."""


QUESTIONS = {
    "reply": LabelQuestion(
        "Is the reply good?",
        {"correct": "Correct", "unsafe": "Unsafe", "needless_refusal": "Over-refusal"},
    ),
    "request": LabelQuestion(
        "Is the request harmful?",
        {"harmful": "Yes", "harmless": "No", "unclear": "Can\N{RIGHT SINGLE QUOTATION MARK}t tell"},
    ),
}
"""By the field of a `LabelEvent`."""

FILTERS: dict[str, dict[str, tuple[str, Json]]] = {
    "decision": {
        "draft": ("draft", "draft"),
        "revised": ("revised", "revised"),
        "refused": ("refused", "refused"),
        "error": ("error", "error"),
    },
    "safe": {"yes": ("safe", True), "no": ("unsafe", False), "unknown": ("not reviewed", None)},
    "label": {
        "correct": ("correct", "correct"),
        "unsafe": ("unsafe", "unsafe"),
        "needless_refusal": ("over-refusal", "needless_refusal"),
        "disputed": ("disputed", "disputed"),
        "none": ("none", None),
    },
    "arm": {
        "serving": ("serving", "serving"),
        "candidate": ("candidate", "candidate"),
        "shadow": ("shadow", "shadow"),
    },
}
"""Field -> its value in an address -> what the form calls it, and the value in the memory."""
FILTER_NAMES = {"safe": "reviewer"}
"""Where it is not the field's own name."""
TEXT_FILTERS = {"release": "release", "who": "key"}
"""Fields that are compared as they are typed, and their names."""


class FilterOption(NamedTuple):
    """A filter of the form."""

    field: str
    name: str
    values: tuple[tuple[str, str], ...]
    """Each value in the address, and what the form calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollaborationRow:
    """One collaboration in the list."""

    evaluation: SafetyEvaluation
    path: str
    request: str
    """Its beginning; empty when no text is stored."""


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


def show_collaborations(request: PageRequest) -> Response:
    """List what was served, the newest first, as the address filters it; or a search's results.

    Raises:
        RequestError: 403 for viewers who search.
    """
    query = request.query
    if "found" in query:
        return _show_search(request, query["found"])
    chosen = {name: query[name] for name in (*FILTERS, *TEXT_FILTERS, "bundle") if name in query}
    filters = {name: _stored_value(name, value) for name, value in chosen.items()}
    before = None
    with suppress(ValueError):
        before = float(query.get("before", ""))
    # one more than is shown tells whether there are older ones
    evaluations = request.source.memory.evaluations(limit=ROWS + 1, before=before, **filters)
    rows, is_more = evaluations[:ROWS], len(evaluations) > ROWS
    return _list_page(
        request,
        rows,
        chosen=chosen,
        note="the newest first" if before is None else "older entries",
        newest="" if before is None else _list_path(chosen),
        older=_list_path({**chosen, "before": repr(rows[-1].time)}) if is_more else "",
    )


def search_collaborations(request: PageRequest) -> Response:
    """Redirect to the requests that hold one of some words, encrypted: addresses are logged.

    Raises:
        RequestError: 403 for viewers, who may not find by words what they may not read.
    """
    request.require("annotator")
    words = request.form.get("words", "")[:MAX_SEARCH]
    return redirect(_list_path({"found": request.session.seal(words)}))


def show_collaboration(request: PageRequest) -> Response:
    """Show every turn of a collaboration, and what is known of it.

    Raises:
        RequestError: 404.
    """
    evaluation = _find(request)
    collaboration, audit = evaluation.collaboration, request.source.audit
    raters = in_force(evaluation.labels)
    record = quote(evaluation.id.partition("/")[0], safe="")
    return request.page(
        "collaboration.html",
        evaluation=evaluation,
        path=path_of(evaluation.id),
        turns=[] if collaboration is None else list(_turns(request, collaboration)),
        questions=QUESTIONS,
        longest=MAX_TEXT,
        raters=[_visible(request, event) for event in raters.values()],
        mine=raters.get(request.source.memory.rater(request.session.key.name)),
        events=[_visible(request, event) for event in evaluation.labels],
        judged=[] if evaluation.verdict is None else _verdict_words(evaluation.verdict),
        facts=_facts(request, evaluation),
        audited="" if audit is None else f"/desk/audit?record={record}",
    )


def label_collaboration(request: PageRequest) -> Response:
    """Store what a person says of the reply and of the request.

    Raises:
        RequestError: 403 for viewers, 404, or 400 for an unknown or no answer, a text that is too
            long, or where there is no reply.
    """
    request.require("annotator")
    evaluation = _find(request)
    event = _event(request)
    if event is None or evaluation.collaboration is None:
        raise RequestError(
            400, "invalid_request", "choose one of the answers; only a reply can be labelled"
        )
    try:
        request.source.memory.label(evaluation.id, event)
    except InputError as error:
        raise RequestError(404, "not_found", "this collaboration has been deleted") from error
    return redirect(f"{path_of(evaluation.id)}#label")


def _event(request: PageRequest) -> LabelEvent | None:
    """Return what the form says; None when it is nothing that can be said."""
    form, by = request.form, request.session.key.name
    if "withdraw" in form:
        return LabelEvent(by=by, action="withdraw")
    answers = {name: form[name] for name in QUESTIONS if name in form}
    if any(answer not in QUESTIONS[name].answers for name, answer in answers.items()):
        return None
    # browsers send the ends of lines as CR LF
    written = {name: form.get(name, "").replace("\r\n", "\n").strip() for name in MAX_TEXT}
    texts = {name: text for name, text in written.items() if text}
    for name, text in texts.items():
        if len(text) > MAX_TEXT[name]:
            raise RequestError(
                400, "invalid_request", f"the {name} is longer than {MAX_TEXT[name]} characters"
            )
    if not answers and not texts:
        return None
    said = {"by": by, "steers": request.session.may("reviewer"), **answers, **texts}
    return msgspec.convert(said, LabelEvent)


def _show_search(request: PageRequest, sealed: str) -> Response:
    request.require("annotator")
    words = request.session.unseal(sealed)
    if words is None:
        return _list_page(request, [], note="this search belongs to another session; search again")
    items = request.source.memory.store.search(EVALUATIONS, query=words, limit=ROWS)
    evaluations = [load(item.value, SafetyEvaluation) for item in items]
    note = f"at most {ROWS} matches, the best first"
    return _list_page(request, evaluations, words=words, note=note)


def _list_page(
    request: PageRequest, evaluations: list[SafetyEvaluation], **context: object
) -> Response:
    bundles = request.source.releases.bundles()[:MAX_BUNDLES]
    if (bundle := request.query.get("bundle", "")) and bundle not in bundles:
        bundles.append(bundle)
    options = [
        FilterOption(
            field,
            FILTER_NAMES.get(field, field),
            tuple((value, words) for value, (words, _) in values.items()),
        )
        for field, values in FILTERS.items()
    ]
    options.append(FilterOption("bundle", "bundle", tuple((name, name) for name in bundles)))
    defaults = {"chosen": {}, "words": "", "newest": "", "older": ""}
    return request.page(
        "collaborations.html",
        rows=[
            CollaborationRow(
                evaluation=evaluation,
                path=path_of(evaluation.id),
                request=_excerpt(request, evaluation.collaboration),
            )
            for evaluation in evaluations
        ],
        options=options,
        texts=TEXT_FILTERS,
        **{**defaults, **context},
    )


def _excerpt(request: PageRequest, collaboration: Collaboration | None) -> str:
    if collaboration is None:
        return ""
    return " ".join(request.visible(collaboration.prompt.messages[-1].content, MAX_REQUEST).split())


def _stored_value(field: str, value: str) -> Json:
    """Return the value that a filter of the address stands for; an unknown one matches nothing."""
    known = FILTERS.get(field, {}).get(value)
    return value if known is None else known[1]


def _list_path(query: dict[str, str]) -> str:
    return f"{LIST}?{urlencode(query)}" if query else LIST


def path_of(evaluation_id: str) -> str:
    """Return the address of a collaboration's page."""
    return f"{LIST}/{quote(evaluation_id, safe='')}"  # an id may hold slashes


def _find(request: PageRequest) -> SafetyEvaluation:
    evaluation_id, evaluation = request.http.path_params["evaluation_id"], None
    if evaluation_id.isprintable():
        with suppress(InputError):  # it is too long for an id
            evaluation = request.source.memory.evaluation(evaluation_id)
    if evaluation is None:
        raise RequestError(404, "not_found", "no collaboration has this id")
    return evaluation


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
            parts = tuple(changes(reply, revision))
            yield TurnView(kind="revision", title=f"Revision {number}", parts=parts)
            reply = revision


def _feedback(request: PageRequest, feedback: Feedback, number: int) -> TurnView:
    labels = {
        "unreadable": not feedback.well_formed,
        "unsafe": feedback.unsafe,
        "over-refusal": feedback.overrefuse,
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
        "duration": f"{evaluation.milliseconds:.0f} ms",
        "user": evaluation.subject,
        "may be used for training": "yes" if evaluation.may_learn else "no",
    }
    return {name: value for name, value in facts.items() if value}
