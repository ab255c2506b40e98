"""The list of collaborations as a queue: filters, orders, search, totals, and an export as CSV.

The address of a list says all that it shows. The pages of its collaborations keep it, so that they
know what comes next.
"""

import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, get_args
from urllib.parse import quote, urlencode

from msgspec import structs
from starlette.responses import Response

from waltzrl.agents.rules import CATEGORIES
from waltzrl.evaluation.sample_correction import labelled_samples
from waltzrl.operations.desk import rendering
from waltzrl.operations.desk.request import (
    NO_STORE,
    PageRequest,
    find_or_none,
    page_error,
    read_number,
    redirect_to,
)
from waltzrl.records import Verdict
from waltzrl.store.audit.query import FORMULA
from waltzrl.store.memory.counts import BundleCounts
from waltzrl.store.memory.items import Filter, Json
from waltzrl.store.memory.labels import LabelEvent, ReplyLabel, Selection, in_force, is_disputed
from waltzrl.store.memory.queue import Order, QueuedEvaluation, QueueSelection, Rated
from waltzrl.store.memory.schemas import ROUTE, SafetyEvaluation
from waltzrl.store.memory.workqueues import WorkQueue, find_queue, read_queues

LIST = "/desk/collaborations"
EXPORT = "/desk/export"
LABELS = "/desk/labels"
QUEUES = "/desk/queues"
ROWS = 50
MAX_EXCERPT = 140
"""Characters of a request and of a reply that a row shows."""
MAX_SEARCH = 500
"""Characters."""
MAX_BUNDLES = 20
MAX_EXPORTED = 10_000
DAY = 86_400.0
UNCERTAIN = 0.25
"""A risk is uncertain if it is at most this far from a half."""

ORDERS: dict[Order, str] = {
    "newest": "the newest first",
    "risk": "the highest risk first",
    "uncertainty": "the most uncertain risk first",
    "disagreement": "where the judge disagrees first",
    "sample": "a random sample, which measures the judge",
}
DISPUTED = "disputed"
FILTERS: dict[str, dict[str, tuple[str, Filter]]] = {
    "decision": {
        name: (name, {"decision": name}) for name in ("draft", "revised", "refused", "error")
    },
    "safe": {
        "yes": ("safe", {"safe": True}),
        "no": ("unsafe", {"safe": False}),
        "unknown": ("not reviewed", {"safe": None}),
    },
    "judge": {
        "unsafe": ("unsafe", {"verdict": {"unsafe": True}}),
        "overrefusal": ("over-refusal", {"verdict": {"overrefuses": True}}),
        "good": ("neither", {"verdict": {"unsafe": False, "overrefuses": False}}),
        "unscored": ("unscored", {"verdict": {"$ne": None, "unsafe": None}}),
        "none": ("not sampled", {"verdict": None}),
    },
    "label": {
        **{name: (rendering.words(name), {"label": name}) for name in get_args(ReplyLabel)},
        DISPUTED: ("disputed", {}),  # about the reply or the request: `QueueSelection.disputed`
        "none": ("none", {"label": None}),
    },
    "thumb": {name: (name, {"thumb": name}) for name in ("up", "down")},
    "served": {
        "users": ("to users", {"arm": {"$ne": "shadow"}, "api": {"$ne": ROUTE}}),
        "answers": ("without reviews", {"mode": {"$ne": "review"}}),
    },
    "arm": {name: (name, {"arm": name}) for name in ("serving", "candidate", "shadow")},
    "category": {name: (rendering.words(name), {"category": name}) for name in CATEGORIES},
}
"""Field of an address -> its value there -> what the form calls it, and the memory's filter."""
RATED: dict[Rated, str] = {"no": "not by me", "others": "by others, not by me", "yes": "by me"}
ASSIGNED = {"me": "me", "nobody": "nobody"}
TEXT_FILTERS = {"release": "release", "who": "key", "subject": "user", "model": "model"}
"""Fields that are compared as they are typed, and their names."""
DATES = {"since": "from", "until": "to"}
NAMES = {"safe": "reviewer", "rated": "labelled", "assigned": "assigned to"}
"""The form's name for a field, where it is not the field's own name."""
SLOWER = "slower"
"""Field of an address: only what took more milliseconds."""
KEPT = (
    *(*FILTERS, "rated", "assigned", *TEXT_FILTERS, "bundle", SLOWER, *DATES),
    *("sort", "found", "queue"),
)
"""Fields of an address that say which list it is; beside them are `after` and `done`."""
REDACTED = (
    "what you search for is redacted before it is stored, so no text holds it; search for other "
    "words of the same text"
)
SHOWN_BLIND = ("id", "time", "bundle", "arm", "release", "caller", "subject", "assignee")
"""Columns of an export that say nothing of what others hold of a collaboration."""


class SampleOffer(NamedTuple):
    """The random sample of a bundle's answers, which people may label."""

    bundle: str
    path: str
    judged: int
    """Answers that the judge has judged."""
    labelled: int
    """The number of these answers that are labelled in the sample."""
    lacking: int
    """Labels that are at least missing before the judge's rates are corrected."""


class JustLabelled(NamedTuple):
    """What the last form labelled."""

    ids: list[str]
    words: str
    """The label that was given, in words; empty where that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollaborationRow:
    """One collaboration in the list."""

    evaluation: SafetyEvaluation
    path: str
    request: str
    """The beginning of the request; empty when no text is stored."""
    reply: str
    """The beginning of what was returned."""
    risk: float | None
    rules: tuple[str, ...]
    judge: str
    """Empty when it was not asked."""
    reasons: tuple[str, ...]
    """The reasons why it may be worth a look."""
    is_blind: bool
    """Whether verdicts and labels are hidden."""


def list_query(request: PageRequest) -> dict[str, str]:
    """Return the fields of the address that say which list it is, or is part of."""
    return {name: request.query[name] for name in KEPT if name in request.query}


def with_query(path: str, query: Mapping[str, str]) -> str:
    """Return an address."""
    return f"{path}?{urlencode(query)}" if query else path


def list_path(query: Mapping[str, str]) -> str:
    """Return the address of a list."""
    return with_query(LIST, query)


def path_of(evaluation_id: str, query: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the address of a collaboration's page, as part of a list."""
    # an id may hold slashes
    return with_query(f"{LIST}/{quote(evaluation_id, safe='')}", query)


def selection_of(request: PageRequest) -> QueueSelection:
    """Return which evaluations the address lists; what it does not know matches nothing.

    Raises:
        RequestError: 403 for viewers who search, 404 for a queue that does not exist.
    """
    queue = queue_of(request)
    return (
        _read_selection(request, list_query(request))
        if queue is None
        else queue_selection(request, queue)
    )


def queue_of(request: PageRequest) -> WorkQueue | None:
    """Return the named queue that the address is part of; None for any other list.

    Raises:
        RequestError: 404.
    """
    name = request.query.get("queue")
    if name is None:
        return None
    queue = find_or_none(partial(find_queue, request.memory.store), name)
    if queue is None:
        raise page_error(404, f"there is no queue {name!r}; see the page Queues")
    return queue


def queue_selection(request: PageRequest, queue: WorkQueue) -> QueueSelection:
    """Return which evaluations a queue holds, labelled or not."""
    selection = _read_selection(request, queue.filters)
    ends = [end for end in (selection.until, queue.until) if end is not None]
    return structs.replace(selection, until=min(ends, default=None))


def pending_selection(request: PageRequest, queue: WorkQueue) -> QueueSelection:
    """Return which evaluations of a queue need a label of the person who asks."""
    selection = queue_selection(request, queue)
    return structs.replace(selection, rater=request.me, needs=queue.labels_each)


def blind_to(request: PageRequest, ids: Sequence[str]) -> frozenset[str]:
    """Return of which collaborations a person may not see what judges and others say of them.

    Those are what they may still be given by a queue that is blind, by whatever way they come.
    """
    if not ids or not request.session.may("annotator"):
        return frozenset()
    memory = request.memory
    hidden: set[str] = set()
    for queue in read_queues(memory.store):
        if queue.blind and queue.is_for(request.name):
            selection = pending_selection(request, queue)
            hidden.update(memory.ids(structs.replace(selection, ids=tuple(ids))))
    return frozenset(hidden)


def _read_selection(request: PageRequest, query: Mapping[str, str]) -> QueueSelection:
    filters: dict[str, Json] = {}
    for name in (*FILTERS, *TEXT_FILTERS, "bundle"):
        if name in query:
            known = FILTERS.get(name, {}).get(query[name])
            filters |= {name: query[name]} if known is None else known[1]
    if "assigned" in query:
        filters["assignee"] = {"me": request.me, "nobody": None}.get(
            query["assigned"], request.memory.rater(query["assigned"])
        )
    if (slower := read_number(query.get(SLOWER, ""))) is not None:
        filters["milliseconds"] = {"$gt": slower}
    until = _parse_day(query.get("until", ""))
    words = None
    if "found" in query:
        request.require("annotator")
        # Of another session's search nothing is listed: an empty text matches no item.
        words = request.session.unseal(query["found"]) or ""
    return QueueSelection(
        order=_read_order(query),
        filters=filters,
        since=_parse_day(query.get("since", "")),
        # The day that the address names is listed as a whole.
        until=None if until is None else until + DAY,
        words=words,
        rater=request.me,
        rated=next((rated for rated in RATED if rated == query.get("rated")), None),
        disputed=query.get("label") == DISPUTED,
    )


def way_to_label(query: Mapping[str, str], queue: WorkQueue | None) -> Selection:
    """Return how a person came to what they label.

    Args:
        query: the fields of its list's address.
        queue: the named queue that the list is of.
    """
    if queue is not None:
        # A queue with an end leaves out what is served later, as a filter does.
        query = {**queue.filters, **({} if queue.until is None else {"until": ""})}
    order = _read_order(query)
    if "found" in query:
        return "search"
    if order == "sample":  # of one bundle, or of each
        is_whole = query.get("rated") in (None, "no") and set(query) <= {"sort", "rated", "bundle"}
        return "sample" if is_whole else "filter"
    return order if set(query) <= {"sort"} else "filter"


def sample_offers(served: Sequence[BundleCounts]) -> list[SampleOffer]:
    """Offer the random sample of each bundle of which the judge has judged anything."""
    offers = []
    for counts in served:
        labels = labelled_samples(counts.labels)
        lacking = max(
            labels["unsafe"].lacks(counts.unsafe, counts.unsafe_scored),
            labels["overrefusal"].lacks(counts.overrefusal, counts.overrefusal_scored),
        )
        judged = max(counts.unsafe_scored, counts.overrefusal_scored)
        labelled = max(sample.labels for sample in labels.values())
        path = list_path({"sort": "sample", "rated": "no", "bundle": counts.bundle})
        if judged:
            offers.append(SampleOffer(counts.bundle, path, judged, labelled, lacking))
    return offers


def show_collaborations(request: PageRequest) -> Response:
    """List what was served, as the address filters, orders and searches it.

    Raises:
        RequestError: 403 for viewers who search.
    """
    query, memory = list_query(request), request.memory
    selection = selection_of(request)
    queue, after = queue_of(request), request.query.get("after", "")
    # one more than is shown tells whether there are further ones
    matching = memory.queue(selection, limit=ROWS + 1, after=after)
    rows, is_more = matching[:ROWS], len(matching) > ROWS
    words = request.session.unseal(query["found"]) if "found" in query else ""
    note = ORDERS[selection.order] if queue is None else f"in the queue {queue.name}"
    if words is None:
        note = "this search belongs to another session; search again"
    hidden = _find_blind(request, matching)
    labelled = [row.evaluation.id for row in rows if row.evaluation.collaboration is not None]
    return request.page(
        "collaborations.html",
        rows=[
            row_of(request, queued, query, is_blind=queued.evaluation.id in hidden)
            for queued in rows
        ],
        problems=_list_problems(request, words or ""),
        queue=queue,
        queued=with_query(QUEUES, query) if queue is None and "found" not in query else "",
        total=memory.queue_length(selection),
        note=note,
        words=words or "",
        chosen=query,
        options=_list_options(request, query),
        names=NAMES,
        orders=list(ORDERS.items()),
        texts=TEXT_FILTERS,
        dates=DATES,
        first=list_path(query) if after else "",
        further=list_path({**query, "after": rows[-1].evaluation.id}) if is_more else "",
        exported=with_query(EXPORT, query),
        labels=with_query(LABELS, query),
        shown="\n".join(labelled),
        people=[(name, name) for name in request.people],
        done=just_labelled(request),
        samples=sample_offers(memory.rates(request.now - DAY)) if not query else [],
    )


def search_collaborations(request: PageRequest) -> Response:
    """Redirect to what holds some words, encrypted: addresses are logged.

    Raises:
        RequestError: 403 for viewers, who may not find by words what they may not read.
    """
    request.require("annotator")
    words = request.form.get("words", "")[:MAX_SEARCH]
    return redirect_to(list_path({**list_query(request), "found": request.session.seal(words)}))


def export_collaborations(request: PageRequest) -> Response:
    """Return a list as CSV, without any text: nobody could erase it from a download.

    Raises:
        RequestError: 403 for viewers who search.
    """
    lines = [
        _export_row(queued, is_blind=queued.evaluation.id in hidden)
        for page in _read_pages(request, selection_of(request))
        for hidden in [_find_blind(request, page)]
        for queued in page
    ]
    table = io.StringIO()
    writer = csv.writer(table)
    # Iterating over a row yields the names of its columns.
    writer.writerow(lines[0] if lines else ["id"])
    writer.writerows([map(_format_cell, line.values()) for line in lines])
    headers = {**NO_STORE, "content-disposition": 'attachment; filename="collaborations.csv"'}
    content = table.getvalue().encode("utf-8", "replace")
    return Response(content, media_type="text/csv", headers=headers)


def just_labelled(request: PageRequest) -> JustLabelled:
    """Return for a page what the last form labelled, as the address says, and as what."""
    done = request.query.get("done", "").split("\n")[:ROWS] if "done" in request.query else []
    evaluation = find_or_none(request.memory.evaluation, done[0]) if done else None
    mine = None if evaluation is None else in_force(evaluation.labels).get(request.me)
    said = []
    if mine is not None:
        said = [rendering.words(mine.reply)] if mine.reply else []
        said += [f"the request {rendering.words(mine.request)}"] if mine.request else []
    return JustLabelled(done, ", ".join(said))


def row_of(
    request: PageRequest,
    queued: QueuedEvaluation,
    query: Mapping[str, str],
    *,
    is_blind: bool = False,
) -> CollaborationRow:
    """Return what a row shows; of a blind one only what was asked and returned."""
    evaluation, collaboration = queued.evaluation, queued.evaluation.collaboration
    asked = replied = ""
    rules: tuple[str, ...] = ()
    if collaboration is not None:
        asked, replied = collaboration.prompt.request, collaboration.final.full_text
        rules = collaboration.rounds[0].feedback.rules if collaboration.rounds else ()
    return CollaborationRow(
        evaluation=evaluation,
        path=path_of(evaluation.id, query),
        request=request.excerpt(asked, MAX_EXCERPT),
        reply=request.excerpt(replied, MAX_EXCERPT),
        risk=None if is_blind else queued.risk,
        rules=() if is_blind else rules,
        judge="" if is_blind or evaluation.verdict is None else verdict_word(evaluation.verdict),
        reasons=() if is_blind else tuple(_list_reasons(queued)),
        is_blind=is_blind,
    )


def verdict_word(verdict: Verdict) -> str:
    """Return what matters most of a verdict."""
    if verdict.unsafe is None:
        return "unscored"
    if verdict.unsafe:
        return "unsafe"
    return "over-refusal" if verdict.overrefuses else "safe"


def _list_reasons(queued: QueuedEvaluation) -> Iterator[str]:
    evaluation = queued.evaluation
    if queued.against_people:
        yield "judge and people differ"
    if is_disputed(evaluation.labels):
        yield "people differ"
    if queued.against_reviewer:
        yield "judge and reviewer differ"
    if evaluation.safe is False:
        yield "returned although unsafe"
    if queued.risk is not None and abs(queued.risk - 0.5) <= UNCERTAIN:
        yield "risk is uncertain"


def _find_blind(request: PageRequest, queued: Sequence[QueuedEvaluation]) -> frozenset[str]:
    """Return the blind ones of a list: who labels second does so before they see anything."""
    ids = [row.evaluation.id for row in queued]
    if request.query.get("rated") == "others":
        return frozenset(ids)
    return blind_to(request, ids)


def _list_problems(request: PageRequest, words: str) -> list[str]:
    """Name what the address asks for and the list cannot do."""
    known: dict[str, Collection[str]] = {**FILTERS, "rated": RATED, "sort": ORDERS}
    known["assigned"] = (*ASSIGNED, *request.people)
    problems = [REDACTED] if words and request.memory.store.scrub(words) != words else []
    for name, value in request.query.items():
        if name not in (*KEPT, "after", "done"):
            problems.append(f"{name!r} is no filter; use {', '.join(KEPT)}")
        elif name in known and value not in known[name]:
            problems.append(f"{name} cannot be {value!r}; use {', '.join(known[name])}")
        elif name in DATES and _parse_day(value) is None:
            problems.append(f"{name} cannot be {value!r}; use a day such as 2026-11-30")
        elif name == SLOWER and read_number(value) is None:
            problems.append(f"{name} cannot be {value[:20]!r}; use milliseconds such as 2000")
    return problems


def _read_pages(
    request: PageRequest, selection: QueueSelection
) -> Iterator[list[QueuedEvaluation]]:
    after, count = "", 0
    while count < MAX_EXPORTED:
        page = request.memory.queue(selection, limit=500, after=after)
        yield page
        if len(page) < 500:
            return
        after, count = page[-1].evaluation.id, count + len(page)


def _export_row(queued: QueuedEvaluation, *, is_blind: bool) -> dict[str, object]:
    evaluation, verdict = queued.evaluation, queued.evaluation.verdict
    raters = in_force(evaluation.labels)
    cells = {
        "id": evaluation.id,
        "time": datetime.fromtimestamp(evaluation.time, UTC).isoformat(timespec="seconds"),
        **{
            name: getattr(evaluation, name)
            for name in ("decision", "bundle", "arm", "release", "caller", "subject", "category")
        },
        "risk": queued.risk,
        "reviewer": {True: "safe", False: "unsafe", None: None}[evaluation.safe],
        "judge": None if verdict is None else verdict_word(verdict),
        "label": evaluation.label,
        "replies": _by_rater(raters, lambda event: event.reply),
        "requests": _by_rater(raters, lambda event: event.request),
        "annotator_kind": _by_rater(raters, lambda event: event.annotator_kind),
        "settled_by": " ".join(by for by, event in raters.items() if event.settles),
        "harm": " ".join(
            f"{by}={event.category}/{event.severity or ''}"
            for by, event in raters.items()
            if event.category or event.severity
        ),
        "spans": " ".join(
            f"{by}={span.text}:{span.start}-{span.end}"
            for by, event in raters.items()
            for span in event.spans
        ),
        "assignee": evaluation.assignee,
    }
    return {
        name: None if is_blind and name not in SHOWN_BLIND else cell for name, cell in cells.items()
    }


def _by_rater(raters: Mapping[str, LabelEvent], answer: Callable[[LabelEvent], str | None]) -> str:
    return " ".join(f"{by}={said}" for by, event in raters.items() if (said := answer(event)))


def _format_cell(value: object) -> str:
    """Return a value as a spreadsheet may open it: none is a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def _list_options(
    request: PageRequest, query: Mapping[str, str]
) -> dict[str, Sequence[tuple[str, str]]]:
    """Return the filters of the form: each value in the address, and what the form calls it."""
    bundles = request.releases.bundles()[:MAX_BUNDLES]
    if (bundle := query.get("bundle", "")) and bundle not in bundles:
        bundles.append(bundle)
    values: dict[str, Sequence[tuple[str, str]]] = {
        name: [(value, words) for value, (words, _) in known.items()]
        for name, known in FILTERS.items()
    }
    values["rated"] = list(RATED.items())
    values["assigned"] = [*ASSIGNED.items(), *((name, name) for name in request.people)]
    values["bundle"] = [(name, name) for name in bundles]
    return values


def _read_order(query: Mapping[str, str]) -> Order:
    return next((order for order in get_args(Order) if order == query.get("sort")), "newest")


def _parse_day(date: str) -> float | None:
    """Return when a day begins in UTC, in seconds since the epoch; None for what is no date."""
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
