"""The list of collaborations: filtered by what is known, or found by words of the request."""

from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from waltzrl.console.visit import COLLABORATIONS, DeskVisit, path_of
from waltzrl.console.web import Replied, see
from waltzrl.memory.items import Json
from waltzrl.memory.schemas import EVALUATIONS, SafetyEvaluation
from waltzrl.records import load

ROWS = 50
LONGEST_REQUEST = 140
"""Characters of a request that a row shows."""
LONGEST_SEARCH = 500
"""Characters."""
MOST_BUNDLES = 20

VALUES: dict[str, dict[str, tuple[str, Json]]] = {
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
        "needless_refusal": ("needless refusal", "needless_refusal"),
        "none": ("none yet", None),
    },
    "arm": {
        "serving": ("serving", "serving"),
        "candidate": ("candidate", "candidate"),
        "shadow": ("shadow", "shadow"),
    },
}
"""Field -> what an address says of it -> its words, and the value that is looked for."""
NAMES = {"safe": "reviewer said", "label": "label"}
TEXTS = {"release": "release", "who": "key"}
"""Fields that are looked for as they are typed, and their names."""


class FilterOption(NamedTuple):
    """A filter of the form."""

    field: str
    name: str
    values: tuple[tuple[str, str], ...]
    """What the address says, and its words."""


class ConversationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One collaboration in the list."""

    path: str
    time: float
    decision: str
    request: str
    who: str
    arm: str
    safe: bool | None
    label: str | None


def show_collaborations(visit: DeskVisit) -> Replied:
    """List what was served, the newest first, as the address asks; or what a search found.

    Raises:
        RequestError: 403 for viewers who search.
    """
    query = visit.asked.query
    if "found" in query:
        return _show_found(visit, query["found"])
    asked = {name: query[name] for name in (*VALUES, *TEXTS, "bundle") if name in query}
    filters = {name: _wanted(name, value) for name, value in asked.items()}
    before = _number(query.get("before", ""))
    found = visit.source.memory.evaluations(limit=ROWS + 1, before=before, **filters)
    rows = found[:ROWS]
    older = {**asked, "before": repr(rows[-1].time)} if len(found) > ROWS else None
    return _page(
        visit,
        rows,
        asked=asked,
        told="the newest first" if before is None else "older ones",
        newest=_address(asked) if before is not None else "",
        older=_address(older) if older else "",
    )


def search_collaborations(visit: DeskVisit) -> Replied:
    """Lead to the list of those whose requests hold one of some words, which its address conceals.

    Raises:
        RequestError: 403 for viewers, who may not find by words what they may not read.
    """
    visit.require("reviewer")
    words = visit.asked.form.get("words", "")[:LONGEST_SEARCH]
    return see(_address({"found": visit.session.seal(words)}))


def _show_found(visit: DeskVisit, sealed: str) -> Replied:
    """List what some words find, the best fit first."""
    visit.require("reviewer")
    words = visit.session.unseal(sealed)
    if words is None:
        return _page(visit, [], told="this search was another session's; search again")
    items = visit.source.memory.store.search(EVALUATIONS, query=words, limit=ROWS)
    found = [load(item.value, SafetyEvaluation) for item in items]
    return _page(visit, found, words=words, told=f"the best {ROWS} that fit, the best first")


def _page(visit: DeskVisit, found: list[SafetyEvaluation], **context: object) -> Replied:
    asked = visit.asked.query
    bundles = visit.source.releases.bundles()[:MOST_BUNDLES]
    if (bundle := asked.get("bundle", "")) and bundle not in bundles:
        bundles.append(bundle)
    choices = [
        FilterOption(
            field, NAMES.get(field, field), tuple((key, words) for key, (words, _) in of.items())
        )
        for field, of in VALUES.items()
    ]
    choices.append(FilterOption("bundle", "bundle", tuple((one, one) for one in bundles)))
    defaults = {"asked": {}, "words": "", "newest": "", "older": ""}
    return visit.page(
        "collaborations.html",
        rows=[_row(visit, one) for one in found],
        choices=choices,
        texts=TEXTS,
        **{**defaults, **context},
    )


def _row(visit: DeskVisit, one: SafetyEvaluation) -> ConversationRow:
    said = one.collaboration
    request = "" if said is None else said.prompt.messages[-1].content
    return ConversationRow(
        path=path_of(one.id),
        time=one.time,
        decision=one.decision,
        request=" ".join(visit.shown(request, LONGEST_REQUEST).split()),
        who=one.caller,
        arm=one.arm,
        safe=one.safe,
        label=one.label,
    )


def _wanted(name: str, value: str) -> Json:
    """Return the value behind a word of the address; an unknown word finds nothing."""
    known = VALUES.get(name, {}).get(value)
    return value if known is None else known[1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _address(query: dict[str, str]) -> str:
    return f"{COLLABORATIONS}?{urlencode(query)}" if query else COLLABORATIONS
