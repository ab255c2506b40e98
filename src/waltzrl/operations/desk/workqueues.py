"""Queues by name: what each is for, how far it is, the next one for a person, and making them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import structs
from starlette.responses import Response

from waltzrl.operations.desk.labels import take_evaluation
from waltzrl.operations.desk.queue import (
    DATES,
    DISPUTED,
    KEPT,
    LABELS,
    LIST,
    NAMES,
    ORDERS,
    QUEUES,
    TEXT_FILTERS,
    just_labelled,
    list_path,
    list_query,
    path_of,
    pending_selection,
    queue_of,
    queue_selection,
    with_query,
)
from waltzrl.operations.desk.request import PageRequest, find_or_none, page_error, redirect_to
from waltzrl.store.memory.queue import QueueSelection
from waltzrl.store.memory.workqueues import (
    MOST_QUEUES,
    WorkQueue,
    drop_queue,
    find_queue,
    put_queue,
    read_queues,
)

NEXT = "/desk/queues/next"
LONGEST_QUEUE_NAME = 60
LONGEST_INSTRUCTIONS = 4_000
ASKS = ("category", "severity")
UNKEPT = ("found", "queue", "rated", "assigned")
"""Fields of a list that a queue does not take over: they are of one session, or of one person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue in the list."""

    queue: WorkQueue
    done: int
    """Evaluations that enough people have labelled."""
    total: int
    """The number of evaluations with a reply."""
    mine: int
    """The number of those that need a label of the person who looks."""
    about: str
    """The queue's filters and its order."""
    listed: str
    """Address of the list of all that it holds."""
    start: str
    """Address of the next one for the person; empty when they may not work on it."""


def show_queues(request: PageRequest) -> Response:
    """List the queues with their progress; who may, makes one of the list that the address says."""
    memory, query = request.memory, queue_query(request)
    return request.page(
        "queues.html",
        rows=[_build_queue_row(request, queue) for queue in read_queues(memory.store)],
        disputed=memory.queue_length(QueueSelection(disputed=True)),
        disputes=list_path({"label": DISPUTED}),
        filters=query,
        about=_describe_filters(query),
        length=LONGEST_INSTRUCTIONS,
        asks=ASKS,
        empty=request.query.get("empty", ""),
        labels=LABELS,
        people=request.people,
        done=just_labelled(request),
    )


def queue_query(request: PageRequest) -> dict[str, str]:
    """Return those fields of a list's address that a queue of it keeps.

    That nobody has labelled a collaboration yet is no field of it: a queue counts those that are.
    """
    query = {name: value for name, value in list_query(request).items() if name not in UNKEPT}
    if query.get("label") == "none":
        del query["label"]
    return query


def count_progress(request: PageRequest, queue: WorkQueue) -> tuple[int, int]:
    """Return how many evaluations of a queue are labelled, and how many there are."""
    memory, selection = request.memory, queue_selection(request, queue)
    # Nobody's name, so that the count is the same whoever looks.
    selection = structs.replace(selection, rater="")
    total = memory.queue_length(structs.replace(selection, answered=True))
    left = memory.queue_length(structs.replace(selection, needs=queue.labels_each))
    return total - left, total


def open_next(request: PageRequest) -> Response:
    """Give the person the next evaluation of a queue, and lead to it.

    Raises:
        RequestError: 403 for viewers and for those whom the queue does not name, or 404.
    """
    request.require("annotator")
    queue = queue_of(request)
    if queue is None:
        raise page_error(404, "name a queue; see the page Queues")
    name = request.name
    if not queue.is_for(name):
        raise page_error(403, f"the queue {queue.name} is for {', '.join(queue.people)}")
    following = take_evaluation(request, queue, after=request.query.get("after", ""))
    if following is None:
        return redirect_to(with_query(QUEUES, {"empty": queue.name}))
    return redirect_to(f"{path_of(following, {'queue': queue.name})}#main")


def change_queue(request: PageRequest) -> Response:
    """Make, replace or delete a queue.

    Raises:
        RequestError: 403 for those below reviewers, or 400 for an invalid name or text.
    """
    request.require("reviewer")
    store, form = request.memory.store, request.form
    name = " ".join(form.get("name", "").split())
    existing = find_or_none(partial(find_queue, store), name) if name else None
    if "delete" in form:
        if existing is not None:
            drop_queue(store, name)
        return redirect_to(QUEUES)
    people = tuple(person for person in request.people if f"person:{person}" in form)
    instructions = form.get("instructions", "").replace("\r\n", "\n").strip()
    if not name or len(name) > LONGEST_QUEUE_NAME or not name.isprintable():
        raise page_error(400, f"a queue needs a name of 1 to {LONGEST_QUEUE_NAME} characters")
    if len(instructions) > LONGEST_INSTRUCTIONS:
        raise page_error(400, f"the instructions are longer than {LONGEST_INSTRUCTIONS} characters")
    if existing is not None or len(read_queues(store)) >= MOST_QUEUES:
        raise page_error(409, "there is a queue of this name, or there are too many; delete one")
    queue = WorkQueue(
        name=name,
        instructions=instructions,
        people=people,
        filters={field: form[f"f:{field}"] for field in KEPT if f"f:{field}" in form},
        until=None if "live" in form else request.now,
        labels_each=2 if form.get("labels_each") == "2" else 1,
        blind="blind" in form,
        asks=tuple(asked for asked in ASKS if f"ask:{asked}" in form),
    )
    put_queue(store, queue)
    return redirect_to(QUEUES)


def _build_queue_row(request: PageRequest, queue: WorkQueue) -> QueueRow:
    memory, name = request.memory, request.name
    done, total = count_progress(request, queue)
    works = request.session.may("annotator") and queue.is_for(name)
    return QueueRow(
        queue=queue,
        done=done,
        total=total,
        mine=memory.queue_length(pending_selection(request, queue)) if works else 0,
        about=_describe_filters(queue.filters),
        listed=with_query(LIST, {"queue": queue.name}),
        start=with_query(NEXT, {"queue": queue.name}) if works else "",
    )


def _describe_filters(filters: Mapping[str, str]) -> str:
    names = {**TEXT_FILTERS, **DATES, **NAMES}
    named = [
        f"{names.get(name, name)} {value}" for name, value in filters.items() if name != "sort"
    ]
    orders = (words for name, words in ORDERS.items() if name == filters.get("sort"))
    return ", ".join([*named, next(orders, ORDERS["newest"])])
