"""One collaboration: who said what, what the revision changed, and what people call it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import get_args
from urllib.parse import quote

import msgspec

from waltzrl.console.diff import Part, changes
from waltzrl.console.visit import COLLABORATIONS, DeskVisit, path_of
from waltzrl.console.web import Replied, see
from waltzrl.errors import InputError, RequestError
from waltzrl.memory.schemas import HumanLabel, SafetyEvaluation
from waltzrl.records import Collaboration, Feedback, Verdict

LABELS: tuple[HumanLabel, ...] = get_args(HumanLabel)


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody said, for its template."""

    kind: str
    title: str
    text: str = ""
    note: str = ""
    parts: list[Part] = []
    """Of a revision: what it changed."""
    signs: list[str] = []
    risk: float | None = None
    rules: tuple[str, ...] = ()


def show_collaboration(visit: DeskVisit) -> Replied:
    """Show all that was said, and what is known of it.

    Raises:
        RequestError: 404.
    """
    one = _found(visit)
    said, audit = one.collaboration, visit.source.audit
    record = quote(one.id.partition("/")[0], safe="")
    return visit.page(
        "collaboration.html",
        one=one,
        here_path=path_of(one.id),
        turns=[] if said is None else list(_turns(visit, said)),
        labels=LABELS,
        judged=[] if one.verdict is None else _opinions(one.verdict),
        facts=list(_facts(visit, one)),
        audited="" if audit is None else f"/desk/audit?record={record}",
    )


def label(visit: DeskVisit) -> Replied:
    """Note what a reviewer calls the reply.

    Raises:
        RequestError: 403 for viewers, 404, and 400 for what is no label.
    """
    visit.require("reviewer")
    one = _found(visit)
    chosen = next((name for name in LABELS if name == visit.asked.form.get("label")), None)
    if chosen is None or one.collaboration is None:
        raise RequestError(400, "invalid_request", "choose a label, for a reply that there is")
    try:
        visit.source.memory.label(one.id, chosen, visit.session.key.name)
    except InputError as error:
        raise RequestError(404, "not_found", "it is not remembered any more") from error
    return see(f"{path_of(one.id)}#label")


def _found(visit: DeskVisit) -> SafetyEvaluation:
    name = visit.asked.path.removeprefix(f"{COLLABORATIONS}/")
    one = None
    if name.isprintable():
        with suppress(InputError):  # it is too long to be a name
            one = visit.source.memory.evaluation(name)
    if one is None:
        raise RequestError(404, "not_found", "nothing of this name is remembered")
    return one


def _turns(visit: DeskVisit, said: Collaboration) -> Iterator[TurnView]:
    *before, request = said.prompt.messages
    for message in before:
        yield TurnView(kind="before", title=message.role.title(), text=visit.shown(message.content))
    yield TurnView(kind="asked", title="Request", text=visit.shown(request.content))
    last = visit.shown(said.draft.full_text)
    yield TurnView(kind="draft", title="Draft", text=last)
    for number, turn in enumerate(said.rounds, start=1):
        yield _advice(visit, turn.feedback, number)
        if turn.revision is not None:
            text = visit.shown(turn.revision.full_text)
            yield TurnView(kind="revision", title=f"Revision {number}", parts=changes(last, text))
            last = text


def _advice(visit: DeskVisit, feedback: Feedback, number: int) -> TurnView:
    signs = [
        word
        for word, holds in (
            ("not readable", not feedback.well_formed),
            ("unsafe", feedback.unsafe),
            ("needless refusal", feedback.overrefuse),
        )
        if holds
    ]
    return TurnView(
        kind="advice",
        title=f"Feedback {number}",
        text=visit.shown(feedback.text),
        note=visit.shown(feedback.reasoning),
        signs=signs or ["safe"],
        risk=feedback.risk,
        rules=feedback.rules,
    )


def _opinions(verdict: Verdict) -> list[str]:
    answers = (
        (verdict.unsafe, "unsafe", "not unsafe"),
        (verdict.refuses, "refuses", "does not refuse"),
        (verdict.overrefuses, "needlessly", ""),
    )
    words = [yes if answer else no for answer, yes, no in answers if answer is not None]
    return [word for word in words if word]


def _facts(visit: DeskVisit, one: SafetyEvaluation) -> Iterator[tuple[str, str]]:
    facts = {
        "bundle": one.bundle,
        "stage": str(one.stage),
        "arm": one.arm,
        "release": one.release,
        "reason": one.reason,
        "category": one.category,
        "model": visit.shown(one.model),
        "api": ", ".join(word for word in (one.api, one.mode) if word),
        "took": f"{one.milliseconds:.0f} ms",
        "user": one.subject,
        "to learn from": "yes" if one.may_learn else "no",
    }
    return ((name, value) for name, value in facts.items() if value)
